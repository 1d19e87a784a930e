"""Labelled examples as rows: layout, truncation, order, and what the hash tells apart."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.batches.labelled import LabelledDataset, LabelledRows, LabelledTexts, LabelledTokens, truncated
from bert_horovod.batches.special_tokens import SpecialIds
from bert_horovod.errors import UserError
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
    made = LabelledDataset(Path("data"), WORDS, True, RECIPE, train, held_out or train)
    return replace(made, **changed)


def row_of(source: LabelledRows, example: int) -> dict[str, np.ndarray]:
    position = int(np.flatnonzero(source.examples(np.arange(source.count)) == example)[0])
    return {name: values[0].tolist() for name, values in source.assemble(np.array([position])).items()}


def test_a_text_is_cls_text_sep_and_padding():
    row = row_of(LabelledRows(tokens(([7, 8, 9],), ([10],)), SPECIAL, 8, 1), 0)
    assert row == {
        "input_ids": [2, 7, 8, 9, 3, 0, 0, 0],
        "token_type_ids": [0] * 8,
        "position_ids": [0, 1, 2, 3, 4, 0, 0, 0],
        "sequence_ids": [1, 1, 1, 1, 1, 0, 0, 0],
        "labels": 1,
        "weights": 1.0,
    }


def test_a_pair_is_cls_a_sep_b_sep_with_types():
    row = row_of(LabelledRows(tokens(([7, 8], [9]), ([7], [10])), SPECIAL, 8, 1), 0)
    assert row["input_ids"] == [2, 7, 8, 3, 9, 3, 0, 0]
    assert row["token_type_ids"] == [0, 0, 0, 0, 1, 1, 0, 0]
    assert row["sequence_ids"] == [1, 1, 1, 1, 1, 1, 0, 0]


def test_empty_texts_leave_the_special_tokens():
    assert row_of(LabelledRows(tokens(([],), ([7],)), SPECIAL, 8, 1), 0)["input_ids"] == [2, 3, 0, 0, 0, 0, 0, 0]
    pairs = LabelledRows(tokens(([], []), ([7], [])), SPECIAL, 8, 1)
    assert row_of(pairs, 0)["input_ids"] == [2, 3, 3, 0, 0, 0, 0, 0]
    assert row_of(pairs, 1)["input_ids"] == [2, 7, 3, 3, 0, 0, 0, 0]


def test_a_long_text_loses_its_end():
    row = row_of(LabelledRows(tokens((list(range(5, 15)),)), SPECIAL, 8, 1), 0)
    assert row["input_ids"] == [2, 5, 6, 7, 8, 9, 10, 3]


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
    row = row_of(LabelledRows(tokens(([5, 6, 7, 8], [9, 10, 11, 12])), SPECIAL, 8, 1), 0)
    assert row["input_ids"] == [2, 5, 6, 7, 3, 9, 10, 3]


def test_each_epoch_has_each_example_once_in_an_order_of_its_own():
    source = LabelledRows(tokens(*(([number],) for number in range(5, 19))), SPECIAL, 8, 1)
    epochs = source.examples(np.arange(3 * source.count)).reshape(3, -1)
    assert all(sorted(epoch) == list(range(14)) for epoch in epochs.tolist())
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 3
    other = LabelledRows(tokens(*(([number],) for number in range(5, 19))), SPECIAL, 8, 2)
    assert other.examples(np.arange(14)).tolist() != epochs[0].tolist()


def test_a_row_is_a_function_of_its_position_and_minus_one_is_a_row_of_weight_zero():
    source = LabelledRows(tokens(*(([number],) for number in range(5, 19))), SPECIAL, 8, 1)
    together = source.assemble(np.array([3, 40, -1]))
    for row, position in enumerate((3, 40, -1)):
        alone = source.assemble(np.array([position]))
        for name, values in together.items():
            np.testing.assert_array_equal(values[row], alone[name][0])
    assert together["weights"].tolist() == [1, 1, 0]
    for name, values in together.items():
        assert not values[2].any(), name
        assert values.dtype == (np.float32 if name == "weights" else np.int32)


def test_a_dataset_tokenises_each_split_with_its_labels():
    made = dataset(LabelledTexts((["The film is good .", "bad heros"],), [1, 0]), LabelledTexts((["poor"],), [0]))
    source = made.open(0, "train")
    assert (source.count, made.open(0, "held_out").count) == (2, 1)
    words = [[WORDS[number] for number in row_of(source, example)["input_ids"]] for example in (0, 1)]
    assert words[0] == ["[CLS]", "the", "film", "is", "good", ".", "[SEP]", "[PAD]"]
    assert words[1][:5] == ["[CLS]", "bad", "hero", "##s", "[SEP]"]
    assert [row_of(source, example)["labels"] for example in (0, 1)] == [1, 0]
    assert made.tokens == 9


def test_the_hash_tells_content_and_vocabulary_apart():
    train = LabelledTexts((["good", "bad"],), [1, 0])
    made = dataset(train)
    assert made.hash == dataset(LabelledTexts((["good", "bad"],), [1, 0])).hash
    bytes.fromhex(made.hash)
    others = [
        dataset(LabelledTexts((["good", "fine"],), [1, 0])),
        dataset(LabelledTexts((["good", "bad"],), [1, 1])),
        dataset(train, LabelledTexts((["good"],), [1])),
        replace(made, vocabulary=[*WORDS[:-2], WORDS[-1], WORDS[-2]]),
        replace(made, lowercase=False),
    ]
    assert len({made.hash, *(other.hash for other in others)}) == 6


def test_a_vocabulary_without_special_tokens_is_refused():
    with pytest.raises(UserError, match=r"no \[SEP\]"):
        dataset(LabelledTexts((["good"],), [1]), vocabulary=[word for word in WORDS if word != "[SEP]"])
