"""`bert-horovod pretrain`, saved at the marks of lab/same_minutes.py: a JSON object, then the words of `pretrain`."""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.__main__ import main
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.training import loop
from bert_horovod.training.hooks.base import Hook, StepEvent
from bert_horovod.training.run import Run
from lab.peers.minutes import Minutes

WORK = json.loads(sys.argv.pop(1))
_BESIDE = ("saving", "evaluating")  # activities that do not count, see Hook.doing


class Marks(Hook):
    """Saves where rank 0's clock has reached a mark."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._minutes = Minutes(WORK)
        self._due = False
        self._beside_since: float | None = None

    def doing(self, what: str, more_s: float = 0) -> None:
        now = time.time()
        if self._beside_since is not None:
            self._minutes.beside_s += now - self._beside_since
        self._beside_since = now if what.startswith(_BESIDE) and self.run.phase else None

    def wants_state(self, step: int) -> bool:
        with tf.device("/CPU:0"):
            own = tf.constant(float(self._minutes.due(step)), tf.float64)
            self._due = bool(self.run.world.broadcast(own, "mark").numpy())
        return self._due

    def wants_checkpoint(self, step: int) -> bool:
        return self._due

    def step(self, event: StepEvent) -> None:
        self._minutes.ended(event.step, self._due)

    def finish(self) -> None:
        run = self.run
        if run.world.rank == 0 and run.state.progress.step == run.recipe.total_steps:  # else it was asked to stop
            self._minutes.write(rows=run.phase.source.count)


if __name__ == "__main__":
    loop.HOOKS = (Marks, *loop.HOOKS)
    sys.argv.insert(1, "pretrain")
    main()
