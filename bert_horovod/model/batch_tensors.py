"""The arrays of a micro-batch in the dtypes that the graphs expect, float32 or int32."""

from __future__ import annotations

import numpy as np

from bert_horovod.runtime import lazy_tensorflow as tf

FLOAT_BATCH = ("masked_weights", "sequence_weights", "weights", "targets")  # float32; other arrays of a batch are int32


def as_arrays(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A micro-batch's arrays in these dtypes."""
    return {name: np.asarray(array, np.float32 if name in FLOAT_BATCH else np.int32) for name, array in batch.items()}


def as_tensors(batch: dict[str, np.ndarray]) -> dict[str, tf.Tensor]:
    """A micro-batch's arrays as tensors of these dtypes."""
    return {name: tf.constant(array) for name, array in as_arrays(batch).items()}
