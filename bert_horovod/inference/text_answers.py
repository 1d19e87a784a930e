"""The answers of a text classifier or a regression: one function for evaluation, submissions and predictions."""

import numpy as np


def answers(logits: np.ndarray, labels: int) -> np.ndarray:
    """The answers, from the head's outputs.

    Args:
        logits: float32 [examples, outputs].
        labels: number of labels; 0: a real number is predicted.

    Returns:
        [examples]: int64 numbers of the likeliest labels, at a tie the first; or real numbers, float64, as files show
        them: the shortest decimals that stand for the float32 values.
    """
    return logits.argmax(axis=-1) if labels else np.array([float(str(logit)) for logit in logits[:, 0]])


def probabilities(logits: np.ndarray) -> np.ndarray:
    """The softmax of logits [examples, labels]: float64 of the same shape, in float64."""
    shifted = logits.astype(np.float64)
    shifted = np.exp(shifted - shifted.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)
