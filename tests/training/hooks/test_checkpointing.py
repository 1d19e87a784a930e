"""When a checkpoint is saved."""

from types import SimpleNamespace

import numpy as np

from bert_horovod.runs.state import Progress
from bert_horovod.training.hooks.checkpointing import CheckpointHook
from tests.toy_runs import new_state


def test_rank_0_does_not_end_the_run_alone_when_it_tries_to_save_again():
    """The other ranks go on with the next step: in a rollback rank 0 would wait for them for ever."""
    run = SimpleNamespace(
        state=new_state({"weight": np.full(2, np.inf, np.float32)}, Progress(step=5)),
        exchange=SimpleNamespace(ranks_equal_after=lambda step: True),
        hooks=[],
        doing=lambda what: None,
        save_due=lambda step: False,
        evaluation_due=lambda step: False,
    )
    hook = CheckpointHook(run)
    hook._saver = SimpleNamespace(retry_due=lambda: True)
    assert hook.wants_state(5)
    hook.step(SimpleNamespace(step=5))
