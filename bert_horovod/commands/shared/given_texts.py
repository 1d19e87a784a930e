"""Texts that come as arguments or by standard input, of which not all bytes may be UTF-8."""

import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO


def whole_text(argument: str) -> str:
    """A text from the command line, with U+FFFD, which tokenizers drop, in place of bytes that are not UTF-8."""
    return os.fsencode(argument).decode("utf-8", "replace") if not argument.isascii() else argument


def lines_of(stream: TextIO) -> Iterator[str]:
    """Yield a stream's lines as they come, without their ends, with U+FFFD in place of bytes that are not UTF-8.

    The first line with such bytes is named on stderr.
    """
    raw = getattr(stream, "buffer", None) or io.BytesIO(stream.read().encode("utf-8", "replace"))
    warned = False
    for number, line in enumerate(raw, 1):
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if not warned and "\ufffd" in text and "\ufffd".encode() not in line:
            warned = True
            print(
                f"bert-horovod: warning: line {number} of standard input has bytes that are not UTF-8; these are "
                "left out",
                file=sys.stderr,
            )
        yield text
