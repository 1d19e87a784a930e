"""Make the next steps' input in a background thread while the device works."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


def prefetch(make: Callable[[int], T], first: int, last: int, depth: int) -> Iterator[tuple[T, float]]:
    """Yield make(t) for t in [first, last), in order, made ahead by a thread that starts with the first `next`.

    Args:
        make: makes the item of step t; called in the background thread only, one call at a time.
        first: first step.
        last: one past the last step.
        depth: items made ahead, the one being made included; at least 1.

    Yields:
        The item and the seconds that the consumer waited for it.

    Raises:
        ValueError: depth below 1.
        Whatever `make` raises, at the consumer, in place of the item.

    Closing the iterator (or dropping it) stops the thread after its current call of `make`.
    """
    if depth < 1:
        raise ValueError(f"prefetch: depth = {depth}: expected at least 1")
    return _items(make, first, last, depth)


def _items(make: Callable[[int], T], first: int, last: int, depth: int) -> Iterator[tuple[T, float]]:
    finished: queue.SimpleQueue = queue.SimpleQueue()
    room = threading.Semaphore(depth)
    closed = threading.Event()

    def work() -> None:
        for step in range(first, last):
            room.acquire()
            if closed.is_set():
                return
            try:
                finished.put((make(step), None))
            except BaseException as error:  # whatever it is, the consumer must not wait forever
                finished.put((None, error))
                return

    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        for _ in range(first, last):
            began = time.perf_counter()
            prepared, error = finished.get()
            waited_s = time.perf_counter() - began
            if error is not None:
                raise error
            room.release()
            yield prepared, waited_s
    finally:
        closed.set()
        room.release()
        thread.join()
