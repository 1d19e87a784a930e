"""Labelled examples as rows: layout, truncation, order; a document's windows hold all its tokens."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.batches.examples.base import LabelledDataset
from bert_horovod.batches.examples.labelled import (
    DocumentRows,
    LabelledRows,
    LabelledTexts,
    LabelledTokens,
    tokenised,
    truncated,
    truncated_longest_first,
)
from bert_horovod.batches.layout import SpecialIds
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
from tests.toy_glue import WORDS
from tests.toys import toy_recipe

SPECIAL = SpecialIds(pad=0, unknown=1, cls=2, sep=3, mask=4)
RECIPE = toy_recipe(model={"vocab_size": len(WORDS)}, phase={"sequence_length": 8})


def tokens(*examples: tuple[list[int], ...], labels: list[int] | None = None) -> LabelledTokens:
    """Examples of one or two texts, given as ids."""
    sides = list(zip(*examples, strict=True))
    counts = np.array([[len(text) for text in side] for side in sides], np.int64)
    ids = np.array([number for side in sides for text in side for number in text], np.int32)
    ends = np.cumsum(counts.ravel()).reshape(counts.shape)
    return LabelledTokens(ids, (ends - counts).T, counts.T, np.array(labels or [1] * len(examples), np.int32))


def dataset(train: LabelledTexts, held_out: LabelledTexts | None = None, **changed) -> LabelledDataset:
    tokenizer = Tokenizer(WORDS, UNCASED)
    splits = {"train": tokenised(train, tokenizer), "held_out": tokenised(held_out or train, tokenizer)}
    return replace(LabelledDataset(Path("data"), WORDS, UNCASED, RECIPE, splits, LabelledRows), **changed)


def rows(examples: LabelledTokens, seed: int = 1) -> LabelledRows:
    """Rows of one example each."""
    return LabelledRows(examples, SPECIAL, 8, seed, packing=False)


def row_of(source: LabelledRows, example: int) -> dict[str, np.ndarray]:
    position = int(np.flatnonzero(source.members(np.arange(source.count))[:, 0] == example)[0])
    return {name: array[0].tolist() for name, array in source.assemble(np.array([position])).items()}


def test_a_text_is_cls_text_sep_and_padding():
    row = row_of(rows(tokens(([7, 8, 9],), ([10],))), 0)
    assert row == {
        "input_ids": [2, 7, 8, 9, 3, 0, 0, 0],
        "token_type_ids": [0] * 8,
        "position_ids": [0, 1, 2, 3, 4, 0, 0, 0],
        "sequence_ids": [1, 1, 1, 1, 1, 0, 0, 0],
        "cls_positions": [0],
        "labels": [1],
        "weights": [1.0],
    }


def test_a_pair_is_cls_a_sep_b_sep_with_types():
    row = row_of(rows(tokens(([7, 8], [9]), ([7], [10]))), 0)
    assert row["input_ids"] == [2, 7, 8, 3, 9, 3, 0, 0]
    assert row["token_type_ids"] == [0, 0, 0, 0, 1, 1, 0, 0]
    assert row["sequence_ids"] == [1, 1, 1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("example", "ids"),
    [
        (([],), [2, 3, 0, 0, 0, 0, 0, 0]),
        (([], []), [2, 3, 3, 0, 0, 0, 0, 0]),
        (([7], []), [2, 7, 3, 3, 0, 0, 0, 0]),
        ((range(5, 15),), [2, 5, 6, 7, 8, 9, 10, 3]),
        (([5, 6, 7, 8], [9, 10, 11, 12]), [2, 5, 6, 7, 3, 9, 10, 3]),
    ],
)
def test_empty_texts_leave_the_special_tokens_and_long_ones_lose_their_end(example, ids):
    assert row_of(rows(tokens(example, example)), 1)["input_ids"] == ids


def test_a_long_pair_loses_tokens_as_google_takes_them():
    def google(first: int, second: int, room: int) -> tuple[int, int]:
        while first + second > room:  # _truncate_seq_pair of run_classifier.py
            if first > second:
                first -= 1
            else:
                second -= 1
        return first, second

    for room in (5, 6):
        counts = np.array([(first, second) for first in range(9) for second in range(9)])
        expected = [google(first, second, room) for first, second in counts.tolist()]
        assert truncated(counts, room).tolist() == [list(pair) for pair in expected]


def test_the_longest_first_is_cut_as_transformers_fast_tokenizers_do():
    tokenizers = pytest.importorskip("tokenizers")
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    counts = np.array([(first, second) for first in range(9) for second in range(9)])
    for room in (5, 6):
        library.enable_truncation(room, strategy="longest_first")
        pairs = [library.encode("a " * first, "a " * second).sequence_ids for first, second in counts.tolist()]
        expected = [[ids.count(0), ids.count(1)] for ids in pairs]
        assert truncated_longest_first(counts, room).tolist() == expected


def test_a_dataset_tokenises_each_split_with_its_labels():
    labelled = dataset(LabelledTexts((["The film is good .", "bad heros"],), [1, 0]), LabelledTexts((["poor"],), [0]))
    labelled = replace(labelled, recipe=toy_recipe(phase={"sequence_length": 8}, data={"packing": False}))
    source = labelled.open(0, "train")
    assert (source.count, labelled.open(0, "held_out").count) == (2, 1)
    words = [[WORDS[number] for number in row_of(source, example)["input_ids"]] for example in (0, 1)]
    assert words[0] == ["[CLS]", "the", "film", "is", "good", ".", "[SEP]", "[PAD]"]
    assert words[1][:5] == ["[CLS]", "bad", "hero", "##s", "[SEP]"]
    assert [row_of(source, example)["labels"] for example in (0, 1)] == [[1], [0]]
    assert labelled.tokens == 9


def test_real_numbers_are_targets_in_float32():
    examples = tokenised(LabelledTexts((["good", "bad"],), [0.5, 2.0]), Tokenizer(WORDS, UNCASED))
    batch = rows(examples).assemble(np.array([0, 1, -1]))
    assert "labels" not in batch
    assert batch["targets"].dtype == np.float32
    assert sorted(batch["targets"][:, 0].tolist()) == [0, 0.5, 2.0]


def test_windows_of_a_document_hold_all_its_tokens_up_to_the_limit():
    counts = np.array([0, 3, 4, 5, 12, 15])
    starts, ids = np.cumsum(counts) - counts, np.arange(10, 10 + counts.sum(), dtype=np.int32)
    documents = LabelledTokens(ids, starts[:, None], counts[:, None], np.eye(6, dtype=np.uint8))
    source = DocumentRows(documents, SPECIAL, 6, 7, windows=3)  # 4 tokens a window, 12 a document
    assert (source.count, source.slots) == (6, {"examples": 1, "windows": 3})
    batch = source.assemble(np.arange(6))
    number = source.members(np.arange(6))[:, 0]
    assert sorted(number) == list(range(6))
    for document, windows in zip(number, batch["input_ids"].reshape(6, 3, 6), strict=True):
        shown = ids[starts[document] :][: min(counts[document], 12)].tolist()
        expected = np.zeros((3, 6), int)
        for window in range(max(1, -(-len(shown) // 4))):
            part = shown[4 * window : 4 * window + 4]
            expected[window, : len(part) + 2] = [SPECIAL.cls, *part, SPECIAL.sep]
        np.testing.assert_array_equal(windows, expected)
    np.testing.assert_array_equal(batch["sequence_ids"] > 0, batch["input_ids"] > 0)
    np.testing.assert_array_equal(batch["position_ids"], np.arange(6) * (batch["input_ids"] > 0))
    np.testing.assert_array_equal(batch["targets"][:, 0], np.eye(6)[number])
    np.testing.assert_array_equal(source.by_item(np.eye(6)[number][:, None]), np.eye(6))
