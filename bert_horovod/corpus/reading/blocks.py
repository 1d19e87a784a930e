"""Cuts what is read into blocks of bounded size, so that memory does not grow with a file."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
BLOCK_BYTES = 4 << 20  # of a block's characters, and of _ITEM_BYTES for each item
WHOLE = math.inf  # for one block
_ITEM_BYTES = 1024  # an item's own share of a block's size: a block has at most 4,096 items


def in_blocks(items: Iterable[Item], most: float, characters: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yield items in their order, in lists that end when their size reaches `most` bytes.

    >>> [len(block) for block in in_blocks(["a" * 1000] * 5, 4000, len)]
    [2, 2, 1]
    """
    block: list[Item] = []
    size = 0
    for item in items:
        block.append(item)
        size += _ITEM_BYTES + characters(item)
        if size >= most:
            yield block
            block, size = [], 0
    if block:
        yield block
