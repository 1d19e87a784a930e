"""XLA's choices of algorithms on a GPU: it times several for each matrix product and takes the fastest.

Another choice adds in another order. A process keeps its choices as files in a directory of its own, by XLA's own
names, which hold the GPU and XLA's version; a file that is there before a program is compiled decides.
"""

import atexit
import os
import re
import shutil
import tempfile
from pathlib import Path

# XLA has two autotuners, each with a flag of its own.
_FLAGS = ("xla_gpu_per_fusion_autotune_cache_dir", "xla_gpu_experimental_autotuner_cache_dir")
_NAME = re.compile(r"[\w=+-][\w.=+-]*")
_directory: Path | None = None


def keep_choices() -> None:
    """Let XLA write its choices, and read those of `add`; call it before anything is compiled.

    Does nothing if XLA_FLAGS already names a directory.
    """
    global _directory
    flags = os.environ.get("XLA_FLAGS", "")
    if _directory is not None or any(flag in flags for flag in _FLAGS):
        return
    _directory = Path(tempfile.mkdtemp(prefix="bert_horovod.xla."))
    atexit.register(shutil.rmtree, _directory, ignore_errors=True)
    os.environ["XLA_FLAGS"] = " ".join([flags, *(f"--{flag}={_directory}" for flag in _FLAGS)]).strip()


def choices() -> dict[str, str]:
    """This process's choices so far: texts by name; empty if it keeps none."""
    if _directory is None:
        return {}
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(_directory.glob("*.textproto"))}


def add(chosen: dict[str, str]) -> None:
    """Let programs that are compiled from now on take these choices; raises ValueError for a name that is no file's."""
    for name, text in chosen.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a choice of XLA")
        if _directory is not None:
            (_directory / name).write_text(text, encoding="utf-8")
