"""Progress towards a known number of bytes: a bar on a terminal, else a line every few seconds."""

import sys
import threading
import time

from bert_horovod.wording import counted

_LINE_EVERY_S = 5.0


class ReadingProgress:
    """Counts bytes towards a known total; a context manager. Threads may share it."""

    def __init__(self, what: str, total_bytes: int):
        self._what, self._total, self._done = what, total_bytes, 0
        self._lock = threading.Lock()
        self._start = self._last = time.monotonic()
        self._bar = None
        if total_bytes and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total_bytes, desc=what, unit="B", unit_scale=True, dynamic_ncols=True)

    def __enter__(self) -> "ReadingProgress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, more_bytes: int) -> None:
        """Show that so many more bytes are done."""
        with self._lock:
            self.at(self._done + more_bytes)

    def at(self, done_bytes: int, documents: int | None = None) -> None:
        """Show how many bytes, and documents where they are counted, are done by now; cheap enough to call often."""
        if self._bar is not None:
            if documents is not None:
                self._bar.set_postfix_str(counted(documents, "document"), refresh=False)
            self._bar.update(done_bytes - self._done)
        self._done = done_bytes
        now = time.monotonic()
        if self._bar is None and now - self._last >= _LINE_EVERY_S and done_bytes:
            self._last = now
            rate = done_bytes / (now - self._start)
            a_second = 0 if documents is None else documents / (now - self._start)
            of_documents = "" if documents is None else f"{counted(documents, 'document')}, {a_second:,.0f} a second, "
            print(
                f"{self._what}: {done_bytes / 1e6:,.0f} of {self._total / 1e6:,.0f} MB, {rate / 1e6:.1f} MB/s, "
                f"{of_documents}{max(0, self._total - done_bytes) / rate:,.0f} s left",
                file=sys.stderr,
                flush=True,
            )
