"""How the model computes: number type, XLA, and what backward recomputes. It changes speed and memory only."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from bert_horovod.runtime.xla import compiled


class ComputePolicy(NamedTuple):
    """How a forward and backward pass is carried out."""

    dtype: tf.DType = tf.float32  # of matrix products and of what is kept between them; parameters stay float32
    xla: str = "off"  # "elementwise": compile what lies between matrix products; "layers": whole layers too
    recompute: str = "none"  # what backward computes again instead of keeping it: "attention" or the whole "layer"


def kernel(function: Callable, compute: ComputePolicy) -> Callable:
    """An elementwise function, as one XLA kernel unless XLA is off.

    On CPU TensorFlow's own operations would read and write memory once for each of its terms.
    """
    return function if compute.xla == "off" else compiled(function)
