"""Labelled examples as rows: layout, truncation, order, and changes that change the hash."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.batches.examples.base import LabelledDataset
from bert_horovod.batches.examples.labelled import (
    LabelledRows,
    LabelledTexts,
    LabelledTokens,
    tokenised,
    truncated,
)
from bert_horovod.batches.special_tokens import SpecialIds
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.corpus.reading.tokenizer_settings import CASED, UNCASED
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


def test_empty_texts_leave_the_special_tokens():
    assert row_of(rows(tokens(([],), ([7],))), 0)["input_ids"] == [2, 3, 0, 0, 0, 0, 0, 0]
    pairs = rows(tokens(([], []), ([7], [])))
    assert row_of(pairs, 0)["input_ids"] == [2, 3, 3, 0, 0, 0, 0, 0]
    assert row_of(pairs, 1)["input_ids"] == [2, 7, 3, 3, 0, 0, 0, 0]


def test_a_long_text_loses_its_end():
    row = row_of(rows(tokens((list(range(5, 15)),))), 0)
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
    row = row_of(rows(tokens(([5, 6, 7, 8], [9, 10, 11, 12]))), 0)
    assert row["input_ids"] == [2, 5, 6, 7, 3, 9, 10, 3]


def test_each_epoch_has_each_example_once_in_an_order_of_its_own():
    source = rows(tokens(*(([number],) for number in range(5, 19))))
    epochs = source.members(np.arange(3 * source.count)).reshape(3, -1)
    assert all(sorted(epoch) == list(range(14)) for epoch in epochs.tolist())
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 3
    other = rows(tokens(*(([number],) for number in range(5, 19))), seed=2)
    assert other.members(np.arange(14))[:, 0].tolist() != epochs[0].tolist()


def test_a_row_is_a_function_of_its_position_and_minus_one_is_a_row_of_weight_zero():
    source = rows(tokens(*(([number],) for number in range(5, 19))))
    together = source.assemble(np.array([3, 40, -1]))
    for row, position in enumerate((3, 40, -1)):
        alone = source.assemble(np.array([position]))
        for name, array in together.items():
            np.testing.assert_array_equal(array[row], alone[name][0])
    assert together["weights"].tolist() == [[1], [1], [0]]
    for name, array in together.items():
        assert not array[2].any(), name
        assert array.dtype == (np.float32 if name == "weights" else np.int32)


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


def test_the_hash_tells_content_and_vocabulary_apart():
    train = LabelledTexts((["good", "bad"],), [1, 0])
    labelled = dataset(train)
    assert labelled.hash == dataset(LabelledTexts((["good", "bad"],), [1, 0])).hash
    bytes.fromhex(labelled.hash)
    others = [
        dataset(LabelledTexts((["good", "fine"],), [1, 0])),
        dataset(LabelledTexts((["good", "bad"],), [1, 1])),
        dataset(train, LabelledTexts((["good"],), [1])),
        replace(labelled, vocabulary=[*WORDS[:-2], WORDS[-1], WORDS[-2]]),
        replace(labelled, tokenizer_settings=CASED),
    ]
    assert len({labelled.hash, *(other.hash for other in others)}) == 6


def test_a_vocabulary_without_special_tokens_is_refused():
    with pytest.raises(UserError, match=r"no \[SEP\]"):
        dataset(LabelledTexts((["good"],), [1]), vocabulary=[word for word in WORDS if word != "[SEP]"])


def some(examples: int = 50, seed: int = 4) -> LabelledTokens:
    """Pairs of random lengths; the first token of each tells its number."""
    random = np.random.default_rng(seed)
    pairs = [
        ([100 + i, *random.integers(5, 20, random.integers(0, 9))], [7] * random.integers(0, 7))
        for i in range(examples)
    ]
    return tokens(*pairs, labels=random.integers(0, 3, examples).tolist())


def test_packed_rows_hold_each_example_once_an_epoch_and_in_each_epoch_beside_others():
    source = LabelledRows(some(), SPECIAL, 32, 1)
    assert source.count < 25
    epochs = source.members(np.arange(3 * source.count)).reshape(3, -1)
    assert all(sorted(epoch[epoch >= 0].tolist()) == list(range(50)) for epoch in epochs)
    rows_of_epochs = [{frozenset(row) for row in epoch.reshape(source.count, -1).tolist()} for epoch in epochs]
    assert len(rows_of_epochs[0] & rows_of_epochs[1]) < source.count // 2


def test_an_example_in_a_packed_row_is_what_it_is_alone():
    packed, alone = LabelledRows(some(), SPECIAL, 32, 1), LabelledRows(some(), SPECIAL, 32, 1, packing=False)
    batch = packed.assemble(np.arange(packed.count))
    numbers = packed.members(np.arange(packed.count))
    assert numbers.shape == batch["labels"].shape == batch["weights"].shape == batch["cls_positions"].shape
    assert (batch["weights"] == (numbers >= 0)).all()
    for row, slot in zip(*np.nonzero(numbers >= 0), strict=True):
        single = row_of(alone, numbers[row, slot])
        length = sum(single["sequence_ids"])
        start = batch["cls_positions"][row, slot]
        assert (batch["sequence_ids"][row] == slot + 1).sum() == length
        for name in ("input_ids", "token_type_ids", "position_ids"):
            assert batch[name][row, start : start + length].tolist() == single[name][:length], name
        assert batch["labels"][row, slot] == single["labels"][0]


def test_a_packed_row_is_a_function_of_its_position():
    source = LabelledRows(some(), SPECIAL, 32, 1)
    together = source.assemble(np.array([3, 40, -1]))
    for row, position in enumerate((3, 40, -1)):
        for name, array in source.assemble(np.array([position])).items():
            np.testing.assert_array_equal(together[name][row], array[0])
    assert not any(array[2].any() for array in together.values())


def test_outputs_of_rows_come_back_in_the_order_of_examples():
    source = LabelledRows(some(), SPECIAL, 32, 1)
    batch = source.assemble(np.arange(source.count))
    first = np.take_along_axis(batch["input_ids"], batch["cls_positions"] + 1, axis=1)
    assert source.by_item(first[..., None])[:, 0].tolist() == [100 + i for i in range(50)]


def test_real_numbers_are_targets_in_float32():
    examples = tokenised(LabelledTexts((["good", "bad"],), [0.5, 2.0]), Tokenizer(WORDS, UNCASED))
    batch = rows(examples).assemble(np.array([0, 1, -1]))
    assert "labels" not in batch
    assert batch["targets"].dtype == np.float32
    assert sorted(batch["targets"][:, 0].tolist()) == [0, 0.5, 2.0]
