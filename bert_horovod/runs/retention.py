"""Which checkpoints are kept, on disk and in a mirror."""

from collections.abc import Callable, Sequence

from bert_horovod.recipe.sections import Execution


def superseded(
    steps: Sequence[int], saved_at: Callable[[int], float], best: int | None, checked: int, execution: Execution
) -> list[int]:
    """The steps whose checkpoints are not kept.

    Args:
        steps: of all checkpoints, in order.
        saved_at: tells when that of a step was saved, in seconds.
        best: the step of the best one, which is kept.
        checked: the newest one up to this step, of the last good check of gradients, is kept too; 0: there was none.
        execution: the run's settings.
    """
    of_check = max((step for step in steps if checked and step <= checked), default=None)
    kept = {best, of_check, *([0] if execution.checkpoint_step_0 else [])}
    every_s, last_kept, removed = 3600 * execution.keep_every_hours, float("-inf"), []
    for step in steps[: -execution.keep_checkpoints]:
        if step in kept:
            continue
        if every_s and saved_at(step) >= last_kept + every_s:
            last_kept = saved_at(step)
        else:
            removed.append(step)
    return removed
