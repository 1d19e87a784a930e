"""Words that many messages need."""

import difflib
from collections.abc import Iterable


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


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question for a message, which names the known word nearest to this one; "" if none is near.

    >>> did_you_mean("learningrate", ["learning_rate", "weight_decay"])
    'did you mean learning_rate? '
    """
    by_letters = {name.lower().replace("_", "").replace("-", ""): name for name in known}
    near = difflib.get_close_matches(word[:100].lower().replace("_", "").replace("-", ""), by_letters, 1, 0.65)
    return f"did you mean {by_letters[near[0]]}? " if near else ""
