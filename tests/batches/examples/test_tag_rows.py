"""Tagged sentences as rows: layout, labels at first pieces, each word once, and changes that change the hash."""

import numpy as np
import pytest

from bert_horovod.batches.examples.tag_rows import TagRows
from bert_horovod.batches.special_tokens import SpecialIds
from tests.batches.examples.test_tag_windows import drawn, tokens

SPECIAL = SpecialIds(pad=0, unknown=1, cls=2, sep=3, mask=4)


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
