"""Which ports a process listens on."""

import os
from pathlib import Path


def listening(process: int | str) -> int:
    """How many ports a process of this host listens on, in this network namespace."""
    files = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        try:
            files.add(os.readlink(descriptor))
        except OSError:  # closed meanwhile
            continue
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return sum(line[3] == "0A" and f"socket:[{line[9]}]" in files for line in lines)
