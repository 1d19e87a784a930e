"""Takes a run back to its last checkpoint after a divergence."""

from bert_horovod.collectives.world import from_rank_0
from bert_horovod.errors import UserError
from bert_horovod.runs.checkpoint import paths
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.training.hooks.divergence import Diverged, pass_over
from bert_horovod.training.run import Run

MOST_ROLLBACKS = 3  # to the same checkpoint


def roll_back(run: Run, error: Diverged) -> None:
    """Load the last checkpoint and go on with rows that no step has used yet.

    Raises UserError if numerics.on_divergence says to stop, or the run has gone back to that checkpoint often enough.
    """
    if run.recipe.numerics.on_divergence == "stop":
        run.settle()
        saved = from_rank_0([str(path) for path in paths(run.job.output_dir)[-1:]], run.world, "last checkpoint")
        begin = [f"; --init_checkpoint {path} begins before it" for path in saved if isinstance(run.task, Pretraining)]
        raise UserError(
            f"{error}. The same command would diverge again: give another recipe and another --output_dir"
            + "".join(begin)
        ) from error
    diverged = run.state.progress
    for hook in run.hooks:
        hook.wait()
    run.console.clear()  # a damaged checkpoint is told on standard error
    run.load()
    progress = run.state.progress
    step, count = run.rollbacks
    run.rollbacks = (progress.step, count + 1 if step == progress.step else 1)
    if run.rollbacks[1] > MOST_ROLLBACKS:
        raise UserError(
            f"{error}. The run has gone back to step {progress.step} {MOST_ROLLBACKS} times and diverged each time"
        )
    pass_over(progress, diverged, run.recipe.phase)
    run.exchange = None
    for hook in run.hooks:
        hook.rolled_back()
    if run.journal is not None:
        run.journal.incident(
            progress.step,
            f"{error}. Back to step {progress.step}; passing over the rows of the {diverged.step - progress.step} "
            f"steps since (rollback {run.rollbacks[1]} of at most {MOST_ROLLBACKS} from there)",
        )
