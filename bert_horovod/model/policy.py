"""The compute policy: dtype, XLA, and recomputation in backward. It changes speed, memory and rounding only."""

from typing import NamedTuple

import tensorflow as tf


class ComputePolicy(NamedTuple):
    """How a forward and backward pass is carried out."""

    dtype: tf.DType = tf.float32  # of matrix products and of activations kept for backward; parameters stay float32
    xla: str = "off"  # "elementwise": compile the operations between matrix products; "layers": whole layers too
    recompute: str = "none"  # "attention" or "layer": backward computes it again, so that memory need not keep it
    kernels: str = "xla"  # "triton": compiled layers use gpu_kernels/ where these serve the shape
