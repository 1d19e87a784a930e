"""Whether a model's layers are computed with Triton kernels, and why not."""

import functools

from bert_horovod.errors import UserError
from bert_horovod.model.forward import ComputePolicy
from bert_horovod.model.gpu_kernels.limits import length_served, why_not
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime.devices import gpu_details

_failed: set[tuple[Model, int]] = set()  # models and lengths whose programs did not compile or run


@functools.cache
def capability() -> tuple[int, int] | None:
    """The compute capability of this rank's GPU; None without a GPU."""
    return (gpu_details() or {}).get("compute_capability")


def chosen(setting: str, model: Model, lengths: tuple[int, ...], precision: str, xla: str) -> str:
    """Whether "triton" or "xla" computes, from execution.kernels and this rank's GPU; the rest as in limits.why_not.

    Raises UserError if the setting is "triton" and the kernels cannot be used.
    """
    if setting == "xla":
        return "xla"
    reason = why_not(capability(), model, lengths if setting == "triton" else (), precision, xla)
    if setting == "triton" and reason:
        raise UserError(
            f'execution.kernels = "triton", but the kernels cannot be used here: {reason}. execution.kernels = "auto" '
            "uses them where they can be used"
        )
    return "xla" if reason else "triton"


def used(model: Model, policy: ComputePolicy, length: int) -> bool:
    """Whether training passes over rows of this length use the kernels."""
    return policy.kernels == "triton" and length_served(length) and (model, length) not in _failed


def give_up(model: Model, length: int) -> None:
    """From now on compute this model's layers over rows of this length without the kernels."""
    _failed.add((model, length))
