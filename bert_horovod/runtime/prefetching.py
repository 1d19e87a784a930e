"""Items made ahead of their consumer by a thread."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetch(make: Callable[[int], T], first: int, last: int, depth: int) -> Iterator[tuple[T, float]]:
    """Yield make(t) for t in [first, last), in order, made ahead by a thread that starts with the first `next`.

    The thread makes `depth` items ahead, the one being made included. With each item come the seconds that the consumer
    waited for it. What `make` raises is raised at the consumer, in place of the item. Closing the iterator (or dropping
    it) stops the thread after its current call of `make`.
    """
    maker = ThreadPoolExecutor(1, "prefetch")
    try:
        ahead = deque(maker.submit(make, step) for step in range(first, min(first + depth, last)))
        for step in range(first + depth, last + depth):
            began = time.perf_counter()
            prepared = ahead.popleft().result()
            waited_s = time.perf_counter() - began
            if step < last:
                ahead.append(maker.submit(make, step))
            yield prepared, waited_s
    finally:
        maker.shutdown(cancel_futures=True)
