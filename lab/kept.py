"""Files of results: a JSON object a line, added as soon as it is found. A line that a kill tore off does not count."""

import json
from pathlib import Path
from typing import Any

Line = dict[str, Any]


def read_lines(file: Path) -> list[Line]:
    """The whole lines of a file; none if there is no such file."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def by_key(file: Path) -> dict[str, Line]:
    """The lines of a file by their "key"; of those with the same one the last counts."""
    return {line["key"]: line for line in read_lines(file)}


def add_line(file: Path, line: Line) -> None:
    """Add a line, in the place of one that is torn."""
    with file.open("ab+") as lines:
        lines.seek(0)
        lines.truncate(lines.read().rfind(b"\n") + 1)
        lines.write(json.dumps(line).encode() + b"\n")
