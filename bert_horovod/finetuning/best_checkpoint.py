"""Keep and name the checkpoint with the best dev score, and end a run whose score no longer gets better."""

import json
from dataclasses import asdict

from bert_horovod.collectives.world import from_rank_0
from bert_horovod.runs.checkpoint import BEST, Best, best_record, path_of
from bert_horovod.storage.writing import write_atomically
from bert_horovod.training.hooks.base import Hook
from bert_horovod.training.run import Run


class BestCheckpoint(Hook):
    """See above; all ranks have the same scores, and so end after the same step.

    Args:
        metric: name of the dev score that decides; more is better.
        patience: evaluations without a better score after which the run ends; None: it never does.
        run: a step with the best score so far is saved, whatever execution.checkpoint_steps says.
    """

    def __init__(self, metric: str, patience: int | None, run: Run) -> None:
        super().__init__(run)
        self._metric, self._patience = metric, patience
        self._best: Best | None = None

    def phase(self) -> None:
        run = self.run
        recorded = best_record(run.job.output_dir) if run.world.rank == 0 else None
        if run.world.rank == 0 and recorded is None and (path := run.job.output_dir / BEST).exists():
            run.say(f"warning: {path} is damaged, or its checkpoint is gone; later evaluations tell the best one anew")
        told = from_rank_0(asdict(recorded) if recorded else None, run.world, "the best checkpoint")
        if not told or told["metric"] != self._metric or told["step"] > run.state.progress.step:
            return
        self._best = best = Best(**(told | {"ended": False}))
        if best.last_step > (step := run.state.progress.step):  # the run was killed before it saved a checkpoint
            every = run.recipe.execution.evaluate_steps
            best.last_step, best.evaluations_since = step, step // every - best.step // every if every else 0
        self._write()

    def wants_to_end(self) -> bool:
        self._look()
        best = self._best
        if best is None or self._patience is None or best.evaluations_since < self._patience:
            return False
        self.run.ended = (
            f"ended at step {best.last_step}, because {self._metric.replace('_', ' ')} did not get better in "
            f"{best.evaluations_since} evaluations (--early_stop)"
        )
        if not best.ended:
            best.ended = True
            self._write()
        return True

    def finish(self) -> None:
        self._look()
        if best := self._best:
            path = path_of(self.run.job.output_dir, best.step)
            self.run.say(f"best checkpoint: {path}, {best.metric.replace('_', ' ')} {best.score:.4f}")

    def wants_checkpoint(self, step: int) -> bool:
        return self._is_better(self._score(step))

    def _score(self, step: int) -> float | None:
        """The score of the evaluation after this step, if there was one; while the loss is far up nothing is saved."""
        run = self.run
        score = run.held_out.get(f"held_out_{self._metric}")  # none if nothing was left to train: no phase is open
        if score is None or not run.evaluation_due(step) or run.state.progress.jumped_in_a_row:
            return None
        return score

    def _is_better(self, score: float | None) -> bool:
        return score is not None and (self._best is None or score > self._best.score)

    def _look(self) -> None:
        """Take the score of an evaluation after this step, if there was one."""
        best, step = self._best, self.run.state.progress.step
        score = self._score(step)
        if score is None or (best and best.last_step >= step):
            return
        if self._is_better(score):
            self._best = Best(self._metric, score, step, 0, step, False)
        elif best is not None:
            best.last_step, best.evaluations_since = step, best.evaluations_since + 1
        if self._best is not None:
            self._write()

    def _write(self) -> None:
        if self.run.world.rank == 0:
            write_atomically(self.run.job.output_dir / BEST, json.dumps(asdict(self._best), indent=1) + "\n")
