"""What the Triton kernels serve. Needs neither TensorFlow nor a GPU."""

from bert_horovod.model.architectures.families import family_of
from bert_horovod.model.gpu_kernels import catalogue
from bert_horovod.recipe.sections import Model

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
