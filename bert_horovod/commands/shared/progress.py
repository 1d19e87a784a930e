"""A bar that shows how far a command is, and the time left."""

import contextlib
import sys
import time
from collections.abc import Iterator

from bert_horovod.inference.options import Progress


@contextlib.contextmanager
def shown_progress(what: str, unit: str, quiet: bool = False) -> Iterator[Progress]:
    """Yield what shows how many units are done, as a bar that begins at the first, so that a mistake prints none.

    Its time and its rate are counted from here.
    """
    from tqdm import tqdm

    bars: list[tqdm] = []
    begun = time.time()

    def progress(done: int, of: int) -> None:
        if not bars:
            bars.append(tqdm(total=of, unit=f" {unit}", desc=what, file=sys.stderr, disable=quiet, smoothing=0))
            bars[0].start_t = begun
        bars[0].total = of
        bars[0].update(done - bars[0].n)

    try:
        yield progress
    finally:
        for bar in bars:
            bar.close()
