"""Words that many messages need: things counted, names, times and bytes. A share is written as Python does: .0%."""

import difflib
from collections.abc import Iterable, Sequence


def counted(number: int, noun: str) -> str:
    """A number and the things that it counts, in the singular or with an s: "1 document", "2,000 documents".

    >>> counted(1, "document"), counted(2000, "document")
    ('1 document', '2,000 documents')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(names: Iterable[str], most: int = 200) -> str:
    """Names with commas between, of at most about `most` characters; with quotes if a name holds a comma or a blank.

    >>> listed(["yes", "no"]), listed(["no, never", "yes"])
    ('yes, no', "'no, never', 'yes'")
    """
    names = list(names)
    plain = not any(not name or "," in name or name != "".join(name.split()) for name in names)
    text = ", ".join(names if plain else map(repr, names))
    return text if len(text) <= most else f"{text[:most]}..."


def some(names: Sequence[object], most: int = 3) -> str:
    """The first of these names, and "..." for those after them."""
    return f"{', '.join(map(str, names[:most]))}{', ...' if len(names) > most else ''}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question for a message, which names the known word nearest to this one; "" if none is near.

    >>> did_you_mean("learningrate", ["learning_rate", "weight_decay"])
    'did you mean learning_rate? '
    """
    near = nearest(word, known)
    return f"did you mean {near}? " if near else ""


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word nearest to this one; "" if none is near."""
    by_letters = {name.lower().replace("_", "").replace("-", ""): name for name in known}
    near = difflib.get_close_matches(word[:100].lower().replace("_", "").replace("-", ""), by_letters, 1, 0.65)
    return by_letters[near[0]] if near else ""


def duration(seconds: float) -> str:
    """Seconds as people say them: 42 s, 3 min 05 s, 2 h 10 min, 3 d 04 h; 0 s by a clock that is behind another one.

    >>> [duration(seconds) for seconds in (-20, 42, 185, 7800, 273600)]
    ['0 s', '42 s', '3 min 05 s', '2 h 10 min', '3 d 04 h']
    """
    seconds = max(0, round(seconds))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    if seconds < 86400:
        return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
    return f"{seconds // 86400} d {seconds % 86400 // 3600:02d} h"


def about(days: float) -> str:
    """A time that is an estimate, in the largest unit that gives 1 or more, minutes at least.

    >>> [about(days) for days in (2.5, 0.5, 0.01, 0)]
    ['2.5 days', '12.0 hours', '14 minutes', 'under a minute']
    """
    if days >= 1:
        return f"{days:,.1f} days"
    hours = 24 * days
    if hours >= 1:
        return f"{hours:.1f} hours"
    return f"{60 * hours:.0f} minutes" if 60 * hours >= 1 else "under a minute"


def three_figures(number: float) -> str:
    """A number with three digits, or all that stand before the point: 0.349, 12.5, 1,234."""
    return f"{number:.3g}" if number < 100 else f"{number:,.0f}"


def gibibytes(size: float) -> str:
    """Bytes of memory: 15.50 GiB."""
    return f"{size / 2**30:,.2f} GiB"


def megabytes(size: float) -> str:
    """Bytes of files and of what is sent: 438.0 MB."""
    return f"{size / 1e6:,.1f} MB"


def gigabytes(size: float) -> str:
    """Bytes of disks: 12.5 GB."""
    return f"{size / 1e9:.3g} GB"
