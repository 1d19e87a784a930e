"""The compute policy: dtype, XLA, and recomputation in backward. It changes speed, memory and rounding only."""

from __future__ import annotations

from dataclasses import dataclass, field

from bert_horovod.runtime import lazy_tensorflow as tf


@dataclass(frozen=True)
class ComputePolicy:
    """How a forward and backward pass is carried out."""

    # Of matrix products and of activations kept for backward; parameters stay float32.
    dtype: tf.DType = field(default_factory=lambda: tf.float32)
    xla: str = "off"  # "elementwise": compile the operations between matrix products; "layers": whole layers too
    recompute: str = "none"  # "attention" or "layer": backward computes it again, so that memory need not keep it
    kernels: str = "xla"  # "triton": compiled layers use gpu_kernels/ where these serve the shape
