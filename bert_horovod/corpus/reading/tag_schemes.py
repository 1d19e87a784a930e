"""Tags of entities: which of IOB1, IOB2 and IOBES a file has, and the entities that a sentence's tags stand for.

The rules are those of seqeval 1.2.2 (its get_entities, and the patterns of its strict mode), so that scores are equal.
A tag is O, or a prefix of B, I, E and S with a type after a hyphen; without a type it is "_". L and U, as BILOU has
them, stand for E and S.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

OUTSIDE = "O"
SCHEMES = ("IOB2", "IOB1", "IOBES")
_TAG = re.compile(r"O|[BIESLU](-(?!_$).+)?")  # B-_ would be B
_BILOU = {"L": "E", "U": "S"}
_PREFIXES = {"IOB1": "BI", "IOB2": "BI", "IOBES": "BIES"}


class Entity(NamedTuple):
    """An entity of a sentence."""

    type: str
    begin: int  # its first word
    end: int  # one past its last word


def is_tag(text: str) -> bool:
    """Whether a text is a tag of an entity.

    >>> is_tag("B-PER"), is_tag("O"), is_tag("PER")
    (True, True, False)
    """
    return _TAG.fullmatch(text) is not None


def split_tag(tag: str) -> tuple[str, str]:
    """Prefix and type.

    >>> split_tag("B-PER"), split_tag("L-PER"), split_tag("O")
    (('B', 'PER'), ('E', 'PER'), ('O', '_'))
    """
    prefix, _, kind = tag.partition("-")
    return _BILOU.get(prefix, prefix), kind or "_"


def is_bilou(tag: str) -> bool:
    """Whether a tag has a prefix that BILOU alone has."""
    return tag[0] in _BILOU


def without_bilou(tag: str) -> str:
    """A tag with E for BILOU's L and S for its U.

    >>> without_bilou("U-PER"), without_bilou("I-PER")
    ('S-PER', 'I-PER')
    """
    return _BILOU.get(tag[0], tag[0]) + tag[1:]


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence by seqeval's default rules: an I- or E- that continues nothing begins one.

    >>> entities(["I-PER", "I-PER", "O", "B-LOC"])
    [Entity(type='PER', begin=0, end=2), Entity(type='LOC', begin=3, end=4)]
    """
    whole, begin = [], 0
    before, kind_before = OUTSIDE, "_"
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, kind = split_tag(tag)
        other = kind != kind_before
        if before in "ES" or (before in "BI" and prefix in "BSO") or (before != OUTSIDE and other):
            whole.append(Entity(kind_before, begin, place))
        if prefix in "BS" or (before in "ESO" and prefix in "EI") or (prefix != OUTSIDE and other):
            begin = place
        before, kind_before = prefix, kind
    return whole


def strict_entities(tags: Sequence[str], scheme: str) -> list[Entity]:
    """The entities of a sentence by seqeval's strict rules: only those that are written as the scheme wants them.

    Where seqeval refuses a prefix that the scheme does not have, here the tag is part of no entity.

    >>> strict_entities(["I-PER", "I-PER", "O", "B-LOC"], "IOB2")
    [Entity(type='LOC', begin=3, end=4)]
    """
    pairs = [*map(split_tag, tags), (OUTSIDE, "_")]
    whole, place = [], 0
    before = pairs[-1]
    while place < len(pairs):
        if _begins(before, pairs[place], scheme):
            end = place + 1
            while end < len(pairs) and _continues(pairs[end - 1], pairs[end], scheme):
                end += 1
            if _ends(pairs[end - 1], pairs[end], scheme):
                whole.append(Entity(pairs[place][1], place, end))
            place = end
        else:
            place += 1
        before = pairs[place - 1]
    return whole


def recognise(sentences: Iterable[Sequence[str]]) -> str:
    """The scheme of a file's tags: IOBES if there is an E or S, else IOB1 or IOB2, whichever has fewer odd tags.

    IOB2 if both have as many, as a file without an entity.

    >>> recognise([["I-PER", "I-PER", "B-PER", "O"]])
    'IOB1'
    """
    sentences = list(sentences)
    if any(split_tag(tag)[0] in "ES" for tags in sentences for tag in tags):
        return "IOBES"
    counts = {scheme: sum(len(odd_places(tags, scheme)) for tags in sentences) for scheme in ("IOB2", "IOB1")}
    return min(counts, key=lambda scheme: counts[scheme])


def odd_places(tags: Sequence[str], scheme: str) -> list[int]:
    """The words whose tag does not fit the tag before it; in IOBES also a last word that leaves an entity open.

    IOB2 has no I- that continues nothing, IOB1 no B- but between two entities of one type that touch.

    >>> odd_places(["O", "I-PER", "B-LOC"], "IOB2")
    [1]
    """
    places = []
    before = (OUTSIDE, "_")
    for place, pair in enumerate(map(split_tag, tags)):
        within = before[0] in "BI" and before[1] == pair[1]  # an entity of this type may go on here
        odd = {
            "IOB2": pair[0] == "I" and not within,
            "IOB1": pair[0] == "B" and not within,
            "IOBES": (pair[0] in "IE") != (before[0] in "BI") or (pair[0] in "IE" and not within),
        }[scheme]
        if odd or pair[0] not in f"{OUTSIDE}{_PREFIXES[scheme]}":
            places.append(place)
        before = pair
    if scheme == "IOBES" and before[0] in "BI" and tags and len(tags) - 1 not in places:
        places.append(len(tags) - 1)
    return places


def complete_labels(tags: Iterable[str], scheme: str) -> tuple[str, ...]:
    """The labels to learn: O, then for each type, sorted, every prefix of the scheme.

    >>> complete_labels(["O", "B-PER", "I-LOC"], "IOB2")
    ('O', 'B-LOC', 'I-LOC', 'B-PER', 'I-PER')
    """
    kinds = sorted({split_tag(tag)[1] for tag in tags if tag != OUTSIDE})
    return (OUTSIDE, *(p if kind == "_" else f"{p}-{kind}" for kind in kinds for p in _PREFIXES[scheme]))


Pair = tuple[str, str]  # prefix and type


def _begins(before: Pair, pair: Pair, scheme: str) -> bool:
    """Whether an entity begins at a word, by the pairs of the word before and of the word."""
    prefix, same = pair[0], before[1] == pair[1]
    if scheme != "IOB1":
        return prefix == "B" or (scheme == "IOBES" and prefix == "S")
    after_other = before[0] in "OB" or (before[0] == "I" and not same)
    return (prefix == "I" and after_other) or (prefix == "B" and before[0] in "BI" and same)


def _continues(before: Pair, pair: Pair, scheme: str) -> bool:
    """Whether the entity of the word before goes on."""
    return before[0] in "BI" and before[1] == pair[1] and pair[0] in ("IE" if scheme == "IOBES" else "I")


def _ends(before: Pair, pair: Pair, scheme: str) -> bool:
    """Whether the entity of the word before, which does not go on, is whole."""
    if scheme == "IOBES":
        return before[0] in "ES"
    return pair[0] in "IO" or (pair[0] == "B" and (scheme == "IOB2" or before[0] == "I" or before[1] == pair[1]))
