"""Which checkpoints are kept, on disk and in a mirror."""

from collections.abc import Sequence

from bert_horovod.recipe.settings import Execution


def superseded(steps: Sequence[int], best: int | None, checked: int, execution: Execution) -> list[int]:
    """The steps, of all checkpoints' in order, whose checkpoints are not kept; that of the best one is.

    `checked`: the newest one up to this step, of the last good check of gradients, is kept too; 0: there was none.
    """
    of_check = max((step for step in steps if checked and step <= checked), default=None)
    return [step for step in steps[: -execution.keep_checkpoints] if step not in (best, of_check)]
