"""The first call of a layer's programs with Triton kernels, before training needs them."""

import tensorflow as tf

from bert_horovod.model.dropout import DropoutState
from bert_horovod.model.gpu_kernels.choice import capability, give_up, used
from bert_horovod.model.gpu_kernels.layer import kernel_programs
from bert_horovod.model.gpu_kernels.rows import kernel_rows
from bert_horovod.model.policy import ComputePolicy
from bert_horovod.recipe.sections import Model


def try_kernels(
    model: Model, policy: ComputePolicy, weights: dict[str, tf.Tensor], rows: int, length: int
) -> str | None:
    """Compile and run a layer, forward and backward, if the kernels are to be used for this shape.

    If that fails, the layers of this model and length are computed without kernels from now on.

    Args:
      model, policy: of the run.
      weights: a layer's cast weights; see weights.layer_weights.
      rows, length: of a micro-batch.

    Returns:
      What failed, one line; None if nothing did.
    """
    if not used(model, policy, length):
        return None
    try:
        programs = kernel_programs(model, policy, capability())
        x = tf.zeros([rows * length, model.hidden_size], policy.dtype)
        dropout = DropoutState(tf.zeros([1], tf.uint64), tf.constant(0, tf.uint64))
        packed = kernel_rows(tf.ones([rows, length], tf.int32))
        arguments = x, weights, dropout, packed, tf.constant(1, tf.uint64), None
        y, kept = programs.forward(*arguments)
        gradients = programs.backward(y, kept, *arguments)
        tf.reduce_sum(tf.cast(gradients[0], tf.float32)).numpy()  # waits until the device has done it
    except (tf.errors.OpError, ValueError) as error:
        give_up(model, length)
        return str(error).strip().partition("\n")[0][:300]
    return None
