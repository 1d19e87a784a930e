"""A document's windows hold all its tokens, one after another; rows are pure functions of their positions."""

import numpy as np

from bert_horovod.batches.examples.labelled import DocumentRows, LabelledTokens
from bert_horovod.batches.layout import SpecialIds

SPECIAL = SpecialIds(pad=0, unknown=1, cls=2, sep=3, mask=4)
LENGTH, WINDOWS = 6, 3  # 4 tokens a window, 12 a document
COUNTS = np.array([0, 3, 4, 5, 12, 15])


def rows() -> DocumentRows:
    ids = np.arange(10, 10 + COUNTS.sum(), dtype=np.int32)
    starts = np.cumsum(COUNTS) - COUNTS
    labels = np.eye(6, dtype=np.uint8)
    return DocumentRows(
        LabelledTokens(ids, starts[:, None], COUNTS[:, None], labels), SPECIAL, LENGTH, 7, windows=WINDOWS
    )


def test_windows_hold_all_tokens_up_to_the_limit():
    source = rows()
    assert (source.count, source.slots) == (6, {"examples": 1, "windows": WINDOWS})
    positions = np.arange(6)
    batch = source.assemble(positions)
    number = source.members(positions)[:, 0]
    assert sorted(number) == list(range(6))
    ids = batch["input_ids"].reshape(6, WINDOWS, LENGTH)
    first = 10 + np.cumsum(COUNTS) - COUNTS
    for document, windows in zip(number, ids, strict=True):
        tokens = list(range(first[document], first[document] + min(COUNTS[document], 12)))
        expected = np.zeros((WINDOWS, LENGTH), int)
        for window in range(max(1, -(-len(tokens) // 4))):
            part = tokens[4 * window : 4 * window + 4]
            expected[window, : len(part) + 2] = [SPECIAL.cls, *part, SPECIAL.sep]
        np.testing.assert_array_equal(windows, expected)
    np.testing.assert_array_equal(batch["sequence_ids"] > 0, batch["input_ids"] > 0)
    np.testing.assert_array_equal(batch["position_ids"], np.arange(LENGTH) * (batch["input_ids"] > 0))
    np.testing.assert_array_equal(batch["targets"][:, 0], np.eye(6)[number])
    np.testing.assert_array_equal(source.by_item(np.eye(6)[number][:, None]), np.eye(6))
