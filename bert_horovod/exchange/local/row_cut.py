"""Cuts parameters, at rows of tensors, into parts of nearly equal size that are sent in turn. No TensorFlow."""

import math

Piece = tuple[str, int, int]  # a parameter, its first row, its last row + 1


def cut(shapes: dict[str, tuple[int, ...]], parts: int) -> list[list[Piece]]:
    """Cut parameters, one after another, at rows of tensors, into `parts` parts of nearly equal size (or empty)."""
    total = sum(math.prod(shape) for shape in shapes.values())
    pieces: list[list[Piece]] = [[] for _ in range(parts)]
    place = 0
    for name, shape in shapes.items():
        rows, width = shape[0], math.prod(shape[1:])
        begin = 0
        while begin < rows:
            part = place * parts // total
            # Up to the first row that begins in the next part.
            end = min(rows, begin + -(-((part + 1) * total - place * parts) // (parts * width)))
            pieces[part].append((name, begin, end))
            place += (end - begin) * width
            begin = end
    return pieces


def piece_size(shape: tuple[int, ...], begin: int, end: int) -> int:
    """How many numbers rows begin to end of a parameter have."""
    return (end - begin) * math.prod(shape[1:])
