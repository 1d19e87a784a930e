"""What the Triton kernels serve, whether a model's layers are computed with them, and why not."""

import functools

from bert_horovod.errors import UserError
from bert_horovod.model.architectures.families import family_of
from bert_horovod.model.forward import ComputePolicy
from bert_horovod.model.gpu_kernels import catalogue
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


def give_up_kernels(model: Model, length: int) -> None:
    """From now on compute this model's layers over rows of this length without the kernels."""
    _failed.add((model, length))


SMALLEST_CAPABILITY = (8, 0)


def why_not(
    capability: tuple[int, int] | None, model: Model, lengths: tuple[int, ...], precision: str, xla: str
) -> str | None:
    """Why layers cannot be computed with the kernels, and the setting that would change it; None: they can.

    Args:
        capability: the compute capability of the rank's GPU; None without a GPU.
        model: its sizes.
        lengths: positions a row, of all phases.
        precision: numerics.precision.
        xla: "off", "elementwise" or "layers".
    """
    head_size = model.hidden_size // model.num_attention_heads
    if capability is None:
        return "this rank has no GPU"
    if capability < SMALLEST_CAPABILITY:
        return f"the GPU's compute capability is {'.'.join(map(str, capability))}, and they need 8.0 or later"
    if precision == "float32":
        return 'they compute in bfloat16 or float16: numerics.precision = "bfloat16"'
    if xla != "layers":
        return f'they are part of whole compiled layers: execution.xla = "layers", not "{xla}"'
    kernels = family_of(model).kernels
    if not kernels:
        return f"they do not compute the layers of {family_of(model).title}"
    if head_size not in kernels.HEAD_SIZES:
        *others, last = kernels.HEAD_SIZES
        return f"a head has {head_size} numbers, and they serve {', '.join(map(str, others))} and {last}"
    if model.hidden_size > catalogue.NORM_COLUMNS[-1]:
        return f"model.hidden_size is {model.hidden_size}, and they serve at most {catalogue.NORM_COLUMNS[-1]}"
    if model.intermediate_size % kernels.INNER_DIVISOR:
        return f"{kernels.INNER_DIVISOR} must divide model.intermediate_size"
    if not all(map(length_served, lengths)):
        return f"{catalogue.BLOCK} must divide phase.sequence_length"
    return None


def length_served(length: int) -> bool:
    """Whether the kernels serve rows of this length."""
    return length % catalogue.BLOCK == 0
