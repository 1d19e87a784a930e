"""The report on a token store: where each warning begins, and how histograms look."""

import numpy as np
import pytest

from bert_horovod.corpus.description import histogram, warnings
from bert_horovod.corpus.statistics import Lengths, LongDocument


def counts(**powers: int) -> np.ndarray:
    """A histogram by powers of two, as p5=10."""
    bins = np.zeros(33, np.int64)
    for power, count in powers.items():
        bins[int(power[1:])] = count
    return bins


def found(unknown=5, of_source=5, most=50, documents=None, held_out=1, duplicates=10) -> list[str]:
    """Warnings for a store of 100 tokens and 100 documents, by default one at each limit."""
    manifest = {
        "totals": {
            "tokens": 100,
            "unknown_tokens": unknown,
            "documents": 100,
            "held_out_sections": held_out,
            "held_out_tokens": 10000 * held_out,
        },
        "duplicates": {"documents": duplicates},
    }
    sources = [{"name": "a", "bytes": 9, "tokens": 100, "unknown_tokens": of_source}]
    documents = counts(p4=5, p5=5) if documents is None else documents
    return warnings(
        manifest, sources, Lengths(documents, counts(p3=1), 100, [LongDocument(most, "shard-00000", 3, "")])
    )


def test_at_the_limits_nothing_looks_wrong():
    assert found() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unknown": 6}, "6.0% of all tokens are [UNK]"),
        ({"of_source": 6}, "1 of 1 sources have over 5% [UNK]: a:"),
        ({"most": 51}, "one document has 51.0% of all tokens (document 3 of shard-00000)"),
        ({"documents": counts(p4=6, p5=5)}, "6 of 11 documents have fewer than 32 tokens"),
        ({"held_out": 0}, "nothing is held out"),
        ({"duplicates": 11}, "11 of 100 documents repeat others"),
    ],
)
def test_beyond_a_limit_there_is_one_warning(change, message):
    (warning,) = found(**change)
    assert warning.startswith(message)


def test_a_histogram_shows_all_that_occurs_and_what_lies_between():
    lines = histogram(counts(p0=1, p2=1000, p3=500))
    assert [line.split() for line in lines] == [
        ["1", "to", "1", "1", "#"],
        ["2", "to", "3", "0"],
        ["4", "to", "7", "1,000", "#" * 40],
        ["8", "to", "15", "500", "#" * 20],
    ]
    assert histogram(counts()) == ["  none"]
