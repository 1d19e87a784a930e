"""The kernels' operations and their gradients in float64 NumPy, from the formulas of the papers."""

import math

import numpy as np


def attention(
    qkv: np.ndarray, sequences: np.ndarray, heads: int, kept: np.ndarray | None, keep: float, dcontext: np.ndarray,
    window: int | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Context, the scores' log2 of sums of exponentials, and the gradient of qkv [rows * length, 3 hidden].

    kept: bool [rows, heads, length, length], or None without dropout. window: None: all positions are near.
    """
    rows, length = sequences.shape
    size = qkv.shape[1] // 3 // heads

    def split(x: np.ndarray) -> np.ndarray:
        return x.astype(np.float64).reshape(rows, length, -1, heads, size).transpose(2, 0, 3, 1, 4)

    def merge(x: np.ndarray) -> np.ndarray:
        return x.transpose(1, 3, 0, 2, 4).reshape(rows * length, -1)

    query, key, value = split(qkv)  # (rows, heads, length, size)
    (dcontext,) = split(dcontext)
    same = sequences[:, None, :, None] == sequences[:, None, None, :]
    if window is not None:
        same = same & (np.abs(np.arange(length)[:, None] - np.arange(length)) <= window)
    scores = np.where(same, query @ key.swapaxes(-1, -2) / math.sqrt(size), -np.inf)
    exponentials = np.where(same, np.exp(scores), 0)
    total = exponentials.sum(-1, keepdims=True)
    probabilities = exponentials / total
    factors = np.ones_like(probabilities) if kept is None else kept * keep
    weights = probabilities * factors
    dprobabilities = dcontext @ value.swapaxes(-1, -2) * factors
    dscores = probabilities * (dprobabilities - (probabilities * dprobabilities).sum(-1, keepdims=True))
    dscores /= math.sqrt(size)
    dqkv = np.stack([dscores @ key, dscores.swapaxes(-1, -2) @ query, weights.swapaxes(-1, -2) @ dcontext])
    return merge((weights @ value)[None]), np.log2(total[..., 0]), merge(dqkv)


def turned(x: np.ndarray, angles: np.ndarray, heads: int) -> np.ndarray:
    """x [rows * length, 3 hidden] with queries and keys turned by angles [rows, length, size / 2]."""
    parts = x.astype(np.float64).reshape(*angles.shape[:2], 3, heads, 2, -1)
    first, second = parts[..., 0, :], parts[..., 1, :]
    cosines, sines = (each(angles)[:, :, None, None] for each in (np.cos, np.sin))
    pairs = np.stack([first * cosines - second * sines, second * cosines + first * sines], -2)
    pairs[:, :, 2] = parts[:, :, 2]
    return pairs.reshape(x.shape)


def layer_norm(
    x: np.ndarray, branch: np.ndarray, weight: np.ndarray, bias: np.ndarray, epsilon: float, factors: np.ndarray,
    dy: np.ndarray,
) -> dict[str, np.ndarray]:  # fmt: skip
    """LayerNorm of x + factors * branch, and all gradients; `branch` has its offset."""
    x, branch, weight, dy = (each.astype(np.float64) for each in (x, branch, weight, dy))
    total = x + factors * branch
    centred = total - total.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    normal = centred * inverse
    dnormal = dy * weight
    # From the mean's and the variance's gradients, one after the other.
    dvariance = (dnormal * centred).sum(-1, keepdims=True) * -0.5 * inverse**3
    dmean = -(dnormal * inverse).sum(-1, keepdims=True)
    dx = dnormal * inverse + dvariance * 2 * centred / x.shape[1] + dmean / x.shape[1]
    dbranch = dx * factors
    return {
        "y": normal * weight + bias,
        "normal": normal,
        "inverse": inverse[:, 0],
        "dx": dx,
        "dbranch": dbranch,
        "sums": np.stack([(dy * normal).sum(0), dy.sum(0), dbranch.sum(0)]),
    }


def gelu(x: np.ndarray, tanh: bool) -> np.ndarray:
    """x times the normal distribution function of x, or its tanh form."""
    x = x.astype(np.float64)
    if tanh:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
