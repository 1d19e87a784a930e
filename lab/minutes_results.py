"""Results of lab/same_minutes.py: the file that keeps them, steps from a pace, the text that is cut, the table."""

import gzip
import hashlib
import json
import math
import statistics
from collections.abc import Callable, Iterable
from itertools import groupby, pairwise
from pathlib import Path

from bert_horovod.errors import UserError
from bert_horovod.reporting.tables import table
from lab.curves import steps_to
from lab.kept import Line, add_line, by_key

NAMES = {
    "a": "bert-horovod",
    "b": "bert-horovod, bert-mini",
    "c": "run_mlm.py, at its best",
    "d": "run_mlm.py, defaults",
}
MARKS = (3, 5, 10, 15, 20, 30, 45, 60)  # minutes
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)  # of epochs
HELD_OUT_EVERY = 10  # books
SLOW = 3.0  # a step that takes so many medians was compiled


class Enough(Exception):
    """As many lines were found as were asked for."""


class Results:
    """The file of results: a line for each run and pilot, by a key of all that decides it.

    `most`: so many new ones are found, then Enough is raised; None: all.
    """

    def __init__(self, file: Path, most: int | None = None) -> None:
        self._file, self._left = file, most
        self.lines = by_key(file)

    def once(self, what: Line, find: Callable[[str], Line]) -> Line:
        """The line of `what`; if there is none, `find` finds it for its key."""
        key = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]
        if key not in self.lines:
            self.require_more()
            self.keep({"key": key} | what | find(key))
            self._left = None if self._left is None else self._left - 1
        return self.lines[key]

    def require_more(self) -> None:
        """Raise Enough if no new line is asked for; `find` asks again where it has found another one first."""
        if self._left == 0:
            raise Enough

    def keep(self, line: Line) -> None:
        """Add a line; of those with the same key the last one counts."""
        self.lines[line["key"]] = line
        add_line(self._file, line)


def split_books(books: list[Path], words: int) -> dict[str, str]:
    """The text to train on, cut to so many words at a paragraph's end, and held-out books.

    A line is a paragraph, a blank line ends a book. Raises UserError if the books have too few words.
    """
    texts: dict[str, list[str]] = {"train": [], "held_out": []}
    left = words
    for number, book in enumerate(books):
        with (gzip.open if book.suffix == ".gz" else open)(book, "rt", encoding="utf-8") as file:
            paragraphs = [line.strip() for line in file if line.strip()]
        if number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1:
            texts["held_out"] += [*paragraphs, ""]
            continue
        for paragraph in paragraphs:
            if left > 0:
                texts["train"].append(paragraph)
                left -= len(paragraph.split())
        texts["train"].append("")
    if left > 0 or not texts["held_out"]:
        raise UserError(
            f"--books has {words - left:,} words in {len(books)} books, each tenth held out; "
            f"expected at least {HELD_OUT_EVERY} books and --words {words:,}"
        )
    return {name: "\n".join(lines) + "\n" for name, lines in texts.items()}


def pace_of(ends: list[float]) -> dict[str, float]:
    """Seconds of a step, and of all that a run does once, from the seconds at which a pilot's steps ended."""
    seconds = [b - a for a, b in pairwise(ends)]
    usual = [each for each in seconds if each <= SLOW * statistics.median(seconds)]
    step_s = statistics.fmean(usual)
    return {"fixed_s": ends[-1] - step_s * len(seconds), "step_s": step_s}


def steps_of(minutes: float, pace: Line) -> int:
    """Steps that end with the minutes; 0 if there is no time for one."""
    return max(0, int((60 * minutes - pace["fixed_s"]) / pace["step_s"]))


def marks_of(unit: str, amount: float, steps: int) -> list[Line]:
    """When a run of so many minutes or epochs is judged: at minutes of the clock, or at shares of the epochs."""
    if unit == "epochs":
        return [{"mark": amount * share, "step": max(1, round(steps * share))} for share in SHARES]
    before = [minutes for minutes in MARKS if minutes < amount] or [amount / 2]
    return [*({"mark": minutes, "seconds": 60 * minutes} for minutes in before), {"mark": amount, "step": steps}]


def length_of(line: Line) -> tuple[str, float]:
    """The unit and length of a run."""
    return next((unit, line[unit]) for unit in ("minutes", "epochs") if unit in line)


def curves(lines: Iterable[Line]) -> dict[tuple[str, float, str], list[Line]]:
    """By unit, length and contestant: marks, with the means over seeds of minutes and loss, and the seeds' losses.

    Of a contestant those count that have the settings, machine and texts of its last one.
    """
    runs = [line for line in lines if line.get("losses") and "pilot" not in line]
    found = {}

    def which(line: Line) -> tuple[str, float, str]:
        return *length_of(line), line["contestant"]

    def where(line: Line) -> list:
        return [line.get(name) for name in ("settings", "machine", "data", "net")]

    last = {which(line): where(line) for line in runs}
    runs = [line for line in runs if where(line) == last[which(line)]]
    for name, group in groupby(sorted(runs, key=which), which):
        points = zip(*(line["losses"] for line in group), strict=False)
        found[name] = [
            {
                "mark": point[0]["mark"],
                "minutes": statistics.fmean(each["seconds"] for each in point) / 60,
                "loss": statistics.fmean(each["loss"] for each in point),
                "losses": [each["loss"] for each in point],
            }
            for point in points
        ]
    return found


def report(lines: Iterable[Line]) -> str:
    """A table for each length, and when (a) is where (c) ends."""
    lines = list(lines)
    found, said = curves(lines), []
    for unit, amount in dict.fromkeys(key[:2] for key in found):
        rows, columns = [], {}
        for name, curve in ((key[2], curve) for key, curve in found.items() if key[:2] == (unit, amount)):
            runs = [line for line in lines if line.get("contestant") == name and line.get("losses")]
            pairs = [line["pairs"] for line in runs if length_of(line) == (unit, amount) and "pairs" in line]
            row = {"configuration": f"({name}) {NAMES[name]}", "seeds": len(curve[0]["losses"])}
            row |= {f"{point['mark']:g}": point["loss"] for point in curve}
            row |= {"end": curve[-1]["minutes"], "pairs": statistics.fmean(pairs) if pairs else None}
            last = curve[-1]["losses"]
            row["spread"] = statistics.stdev(last) if len(last) > 1 and math.isfinite(sum(last)) else None
            rows.append(row)
            columns |= {f"{point['mark']:g}": (f"{point['mark']:g} {unit}", "{:.4f}".format) for point in curve}
        columns = {"seeds": ("seeds", str)} | columns | {"spread": ("spread of the last", "{:.4f}".format)}
        columns |= {"end": ("ended after, min", "{:.1f}".format), "pairs": ("pairs", "{:.1%}".format)}
        said.append(table(rows, columns))
        ours, theirs = found.get((unit, amount, "a")), found.get((unit, amount, "c"))
        if ours and theirs:
            said.append(share_of(ours, theirs))
    return "\n".join(said) or "nothing is kept yet"


def share_of(ours: list[Line], theirs: list[Line]) -> str:
    """After which share of (c)'s time (a) has (c)'s last loss."""
    goal, whole = theirs[-1]["loss"], theirs[-1]["minutes"]
    minutes = steps_to(goal, [[point["minutes"], point["loss"]] for point in ours])
    if minutes is None:
        return f"(a) does not reach (c)'s last loss, {goal:.4f}: it ends {ours[-1]['loss'] - goal:.4f} above"
    at_most = "at most " if minutes == ours[0]["minutes"] else ""
    return f"(a) has (c)'s last loss, {goal:.4f}, after {at_most}{minutes:.1f} min: {minutes / whole:.0%} of (c)'s time"
