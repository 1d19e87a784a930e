"""Randomness without state: a counter-based generator and seeded bijections, both vectorised and O(1) per element."""

import functools

import numpy as np

# SplitMix64: its increment (2^64 divided by the golden ratio) and its finaliser, which is Stafford's variant 13 of
# MurmurHash3's. Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
_INCREMENT = 0x9E3779B97F4A7C15
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_WORD = (1 << 64) - 1
_FEISTEL_ROUNDS = 8  # each changes half of the bits
_FEW = 12  # elements for which Python is faster than NumPy


def keyed_hash(seed: int, *streams: int, index: np.ndarray) -> np.ndarray:
    """Random words, uint64 of the shape of `index` (uint64 too), each a pure function of (seed, streams, index).

    Each is uniform over [0, 2^64). Of the seed its low 64 bits count. The streams, whole numbers, name the purpose of
    the words; different ones are independent.
    """
    words = np.asarray(index, np.uint64) * np.uint64(_INCREMENT)
    words += _stream_start(seed, *streams)
    return _finalise(words)


def stream_seed(seed: int, stream: int) -> int:
    """A separate seed for a stream of a seed: in [0, 2^63)."""
    return int(keyed_hash(seed, stream, index=np.zeros(1, np.uint64))[0] >> np.uint64(1))


def permute(index: np.ndarray, n: np.ndarray | int, key: np.ndarray | int) -> np.ndarray:
    """Map `index` by a seeded bijection of [0, n), without computing the map of other elements.

    An alternating Feistel network permutes [0, m), where m is the smallest power of two that is at least n; a value
    outside of [0, n) goes through it again until it falls inside (cycle-walking), at most two passes on average.

    `index` and the result are int64 of one shape, with values in [0, n). Of `n`, at least 1 and below 2^53, and of
    `key`, uint64, which names the bijection, there is one for all elements or one for each.
    """
    index = np.asarray(index, np.int64)
    sizes = np.broadcast_to(np.asarray(n, np.int64), index.shape).ravel()
    numbers = index.ravel()
    if np.any((numbers < 0) | (numbers >= sizes)):
        raise ValueError("permute: index must be in [0, n)")
    numbers, sizes = numbers.astype(np.uint64), sizes.astype(np.uint64)
    keys = np.broadcast_to(np.asarray(key, np.uint64), index.shape).ravel()
    rounds = np.arange(_FEISTEL_ROUNDS, dtype=np.uint64)[:, None] * np.uint64(_INCREMENT)
    round_keys = _finalise(keys + rounds)
    bits = np.maximum(2, np.frexp((sizes - np.uint64(1)).astype(np.float64))[1]).astype(np.uint64)
    outside = np.arange(numbers.size)
    while outside.size > _FEW:
        numbers[outside] = _feistel(numbers[outside], bits[outside], round_keys[:, outside])
        outside = outside[numbers[outside] >= sizes[outside]]
    for i in outside.tolist():
        numbers[i] = _walk(int(numbers[i]), int(sizes[i]), int(bits[i]), round_keys[:, i].tolist())
    return numbers.astype(np.int64).reshape(index.shape)


def below(words: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Random whole numbers in [0, bound), int64, made from random words uint64; a bias of bound / 2^64 remains."""
    return (words % bound.astype(np.uint64)).astype(np.int64)


@functools.cache
def _stream_start(*parts: int) -> np.uint64:
    state = 0
    for part in parts:
        state = int(_finalise(np.array([(state ^ part) + _INCREMENT & _WORD], np.uint64))[0])
    return np.uint64(state)


def _finalise(words: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser, a bijection of 64-bit words; works in place."""
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        words ^= words >> shift
        words *= multiplier
    words ^= words >> _SHIFTS[2]
    return words


def _walk(number: int, size: int, bits: int, keys: list[int]) -> int:
    """As _feistel, again until the number is below `size`, for one element."""
    low_bits = bits >> 1
    low_mask, high_mask = (1 << low_bits) - 1, (1 << bits - low_bits) - 1
    while True:
        low, high = number & low_mask, number >> low_bits
        for even, odd in zip(keys[::2], keys[1::2], strict=True):
            low ^= _finalised(high + even & _WORD) & low_mask
            high ^= _finalised(low + odd & _WORD) & high_mask
        number = high << low_bits | low
        if number < size:
            return number


def _finalised(word: int) -> int:
    """As _finalise, of one word."""
    word ^= word >> 30
    word = word * 0xBF58476D1CE4E5B9 & _WORD
    word ^= word >> 27
    word = word * 0x94D049BB133111EB & _WORD
    return word ^ word >> 31


def _feistel(numbers: np.ndarray, bits: np.ndarray, round_keys: np.ndarray) -> np.ndarray:
    low_bits = bits >> np.uint64(1)
    one = np.uint64(1)
    masks = ((one << low_bits) - one, (one << (bits - low_bits)) - one)
    halves = [numbers & masks[0], numbers >> low_bits]
    for number, keys in enumerate(round_keys):
        target = number % 2
        halves[target] ^= _finalise(halves[1 - target] + keys) & masks[target]
    return halves[1] << low_bits | halves[0]
