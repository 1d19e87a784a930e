"""How the model computes: number type, XLA, and what backward recomputes. It changes speed and memory only."""

from typing import NamedTuple

import tensorflow as tf


class ComputePolicy(NamedTuple):
    """How a forward and backward pass is carried out."""

    dtype: tf.DType = tf.float32  # of matrix products and of activations kept for backward; parameters stay float32
    xla: str = "off"  # "elementwise": compile the operations between matrix products; "layers": whole layers too
    recompute: str = "none"  # what backward computes again instead of keeping it: "attention" or the whole "layer"
