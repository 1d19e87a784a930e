"""Judges a run's model by minimal pairs after each evaluation: what execution.probe = "pairs" asks for."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bert_horovod.collectives.world import from_all_ranks
from bert_horovod.corpus.reading.pair_files import read_pairs
from bert_horovod.corpus.store import Store
from bert_horovod.errors import RunError
from bert_horovod.inference.outputs import NotFiniteError
from bert_horovod.inference.pair_scores import PairScorer, PairTokens
from bert_horovod.recipe.sections import Model
from bert_horovod.training.hooks.base import Hook, StepEvent
from bert_horovod.training.run import FIRST_STEP_S, Run
from bert_horovod.wording import counted

_PAIRS = 2000  # at most


class PairProbeHook(Hook):
    """Records the accuracy in metrics.jsonl as probe_pairs; all ranks share the pairs; does not change the run."""

    def __init__(self, tokens: PairTokens, run: Run) -> None:
        super().__init__(run)
        self._tokens, self._tell = tokens, True
        if len(set(from_all_ranks([tokens.pairs.hash], run.world, "pairs"))) > 1:
            raise RunError("--probe_dir: ranks have other pairs than rank 0; copy the same files to all hosts")

    def phase(self) -> None:
        self._scorer = PairScorer(self._tokens, self.run.phase.recipe.model, world=self.run.world)

    def wants_state(self, step: int) -> bool:
        return self.run.evaluation_due(step)

    def _go_on(self, *_: int) -> None:
        self.run.doing("judging by pairs", FIRST_STEP_S)

    def step(self, event: StepEvent) -> None:
        run = self.run
        if not self.wants_state(event.step):
            return
        self._go_on()
        begun = time.monotonic()
        try:
            judged = self._scorer(run.state.parameters, self._go_on)
        except NotFiniteError as error:  # the same on all ranks
            run.say(f"pairs left out: {error}")
            return
        if run.journal is not None:
            run.journal.record({"step": event.step, "probe_pairs": judged["accuracy"]})
        took = f" ({counted(judged['pairs'], 'pair')}, {time.monotonic() - begun:.0f} s)" if self._tell else ""
        self._tell = False
        run.say(f"pairs: accuracy {judged['accuracy']:.4f}{took}")


def hook(inputs: list[Path], model: Model, store: Store) -> Callable[[Run], Hook]:
    """A factory of the run's hook, for Job.hooks; raises the errors of read_pairs and PairTokens."""
    pairs = read_pairs(inputs, flag="--probe_dir").at_most(_PAIRS)
    longest = model.max_position_embeddings
    return partial(PairProbeHook, PairTokens(pairs, store.vocabulary, store.tokenizer_settings, longest))
