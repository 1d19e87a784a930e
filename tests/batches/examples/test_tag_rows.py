"""Tagged sentences as rows: layout, labels at first pieces, each word once, and changes that change the hash."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.batches.examples.base import LabelledDataset
from bert_horovod.batches.examples.tag_rows import TagRows
from bert_horovod.batches.special_tokens import SpecialIds
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
from bert_horovod.errors import UserError
from tests.batches.examples.test_tag_windows import drawn, tokens
from tests.toy_glue import WORDS
from tests.toys import toy_recipe

SPECIAL = SpecialIds(pad=0, unknown=1, cls=2, sep=3, mask=4)
RECIPE = toy_recipe(model={"vocab_size": len(WORDS)}, phase={"sequence_length": 8})


def test_a_row_is_cls_words_sep_with_labels_at_first_pieces():
    source = TagRows(tokens([2, 0, 1], [3]), SPECIAL, 8)
    row = {name: array[0].tolist() for name, array in source.assemble(np.array([0])).items()}
    a, b, c = source.tokens.ids.tolist()
    first, _, last = source.tokens.labels.tolist()
    assert row == {
        "input_ids": [2, a, b, c, 3, 0, 0, 0],
        "token_type_ids": [0] * 8,
        "position_ids": [0, 1, 2, 3, 4, 0, 0, 0],
        "sequence_ids": [1, 1, 1, 1, 1, 0, 0, 0],
        "labels": [0, first, 0, last, 0, 0, 0, 0],
        "weights": [0, 1, 0, 1, 0, 0, 0, 0],
    }


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_each_word_with_a_piece_counts_once_and_is_found_again(seed, packing):
    source = TagRows(drawn(seed), SPECIAL, 8 + seed, seed, packing)
    batch, places, fit = source.assemble(np.arange(source.count)), source.word_places(), source.tokens
    assert places.word.tolist() == np.flatnonzero(np.diff(fit.word_starts)).tolist()
    assert batch["weights"].sum() == len(places.word)
    assert batch["weights"][places.row, places.position].all()
    np.testing.assert_array_equal(
        batch["input_ids"][places.row, places.position], fit.ids[fit.word_starts[places.word]]
    )
    np.testing.assert_array_equal(batch["labels"][places.row, places.position], fit.labels[places.word])
    following = source.assemble(np.arange(source.count, 2 * source.count))
    assert following["weights"].sum() == len(places.word)


def test_packed_sentences_see_only_themselves_and_no_position_is_padding():
    source = TagRows(tokens([1] * 7, [3, 2, 2]), SPECIAL, 16)
    batch = source.assemble(np.array([0, 1, -1]))
    assert source.count == 2
    assert source.slots == {"sentences": 2}
    assert sorted(batch["sequence_ids"].max(1).tolist()) == [0, 1, 2]
    assert not batch["weights"][2].any()
    assert (batch["input_ids"][2] == 0).all()
    np.testing.assert_array_equal(batch["position_ids"] == 0, (batch["input_ids"] == 2) | (batch["input_ids"] == 0))


def dataset(**changed) -> LabelledDataset:
    splits = {"train": tokens([1, 2], [2]), "held_out": tokens([1], [1])}
    return replace(LabelledDataset(Path("data"), WORDS, UNCASED, RECIPE, splits, TagRows, {}, ("O", "B-X")), **changed)


def test_what_rows_depend_on_changes_the_hash():
    whole = dataset()
    others = [
        dataset(described=("O", "B-Y")),
        dataset(vocabulary=[*WORDS, "more"]),
        dataset(splits=whole.splits | {"held_out": tokens([2], [1])}),
        dataset(splits=whole.splits | {"train": whole.splits["train"]._replace(sentence_starts=np.array([0, 1, 2]))}),
    ]
    assert dataset().hash == whole.hash
    assert len({whole.hash, *(other.hash for other in others)}) == 5
    assert whole.tokens == 4


def test_train_and_dev_have_other_orders_and_a_vocabulary_without_special_tokens_is_refused():
    many = dataset(splits=dict.fromkeys(("train", "held_out"), tokens([1] * 40, [2] * 20)))
    orders = [many.open(0, split).members(np.arange(8)).tolist() for split in ("train", "held_out")]
    assert orders[0] != orders[1]
    with pytest.raises(UserError, match=r"has no \[MASK\]"):
        dataset(vocabulary=WORDS[:4])
