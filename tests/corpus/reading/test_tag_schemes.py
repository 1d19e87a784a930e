"""Tags: schemes are recognised, odd tags are found, and entities are those of seqeval."""

import pytest

from bert_horovod.corpus.reading.tag_schemes import (
    complete_labels,
    entities,
    is_tag,
    odd_places,
    recognise,
    strict_entities,
)

IOB1 = ["I-PER", "I-PER", "B-PER", "O", "I-LOC", "I-PER"]
IOB2 = ["B-PER", "I-PER", "B-PER", "O", "B-LOC", "B-PER"]
IOBES = ["B-PER", "E-PER", "S-PER", "O", "S-LOC", "S-PER"]
SPANS = [("PER", 0, 2), ("PER", 2, 3), ("LOC", 4, 5), ("PER", 5, 6)]


@pytest.mark.parametrize(("tags", "scheme"), [(IOB1, "IOB1"), (IOB2, "IOB2"), (IOBES, "IOBES")])
def test_each_scheme_is_recognised_and_stands_for_the_same_entities(tags, scheme):
    assert recognise([["O"], tags]) == scheme
    assert odd_places(tags, scheme) == []
    assert entities(tags) == strict_entities(tags, scheme) == SPANS


def test_a_few_odd_tags_do_not_hide_the_scheme():
    assert recognise([IOB2, ["O", "I-PER"]]) == "IOB2"
    assert recognise([IOB1, ["O", "B-PER"]]) == "IOB1"
    assert recognise([["O", "O"]]) == recognise([]) == "IOB2"


@pytest.mark.parametrize(
    ("tags", "scheme", "places"),
    [
        (["I-A", "B-A", "I-B", "O", "I-A"], "IOB2", [0, 2, 4]),
        (["B-A", "I-A", "B-B", "B-B"], "IOB1", [0, 2]),
        (["B-A", "O", "E-A", "I-A", "S-A", "B-A"], "IOBES", [1, 2, 3, 4, 5]),
        (["B-A", "I-B", "E-B"], "IOBES", [1]),
        (["B-A", "S-A"], "IOB2", [1]),
        ([], "IOBES", []),
    ],
)
def test_odd_tags_are_found(tags, scheme, places):
    assert odd_places(tags, scheme) == places


@pytest.mark.parametrize(
    ("tags", "scheme", "spans"),
    [
        (["I-A", "B-A", "I-B"], "IOB2", [("A", 1, 2)]),
        (["B-A", "I-A", "O"], "IOBES", []),
        (["B-A", "E-A", "I-A", "E-A"], "IOBES", [("A", 0, 2)]),
        (["B-A", "I-A", "I-A"], "IOB1", [("A", 1, 3)]),  # B- begins nothing after O, I- after B- does
        (["I-A", "B-B"], "IOB1", [("A", 0, 1)]),
        (["S-A", "B-A"], "IOB2", [("A", 1, 2)]),
    ],
)
def test_strict_rules_take_only_what_the_scheme_writes(tags, scheme, spans):
    assert strict_entities(tags, scheme) == spans


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        (["E-A", "E-A", "I-A", "S-A", "I-A"], [("A", 0, 1), ("A", 1, 2), ("A", 2, 3), ("A", 3, 4), ("A", 4, 5)]),
        (["B-A", "I-B"], [("A", 0, 1), ("B", 1, 2)]),
        (["B", "I", "O", "I"], [("_", 0, 2), ("_", 3, 4)]),
        (["B-A-B", "I-A-B"], [("A-B", 0, 2)]),
    ],
)
def test_default_rules_let_a_stray_tag_begin_an_entity(tags, spans):
    assert entities(tags) == spans


def test_labels_are_complete_by_type():
    assert complete_labels(["O", "B-B", "I-A"], "IOB2") == ("O", "B-A", "I-A", "B-B", "I-B")
    assert complete_labels(["S-A"], "IOBES") == ("O", "B-A", "I-A", "E-A", "S-A")
    assert complete_labels(["B"], "IOB1") == ("O", "B", "I")


@pytest.mark.parametrize("text", ["", "PER", "B_PER", "X-PER", "B-", "B-_", "OO", "b-PER", "O-PER"])
def test_what_is_no_tag_is_told(text):
    assert not is_tag(text)
