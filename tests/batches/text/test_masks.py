import numpy as np
import pytest

from bert_horovod.batches.text.mask_rates import full_row_slots, masked_count
from bert_horovod.recipe_files.loading import recipe_from_table
from tests.batches.reading import MASK, ORDINARY, WITH_PIECES, make_rows, unmasked

BOTH = pytest.mark.parametrize("whole_words", [True, False])
SPANS = {"whole_word_masking": True, "ngram": 3}
KINDS = pytest.mark.parametrize("kind", [{}, {"whole_word_masking": True}, SPANS])
PACKING = pytest.mark.parametrize("packing", [True, False])


def masked_places(batch) -> np.ndarray:
    """Which places of the rows are to be predicted, bool [R, L]."""
    masked = np.zeros(batch["input_ids"].shape, bool)
    row, slot = np.nonzero(batch["masked_weights"])
    masked[row, batch["masked_positions"][row, slot]] = True
    return masked


def per_sequence(batch, values: np.ndarray) -> np.ndarray:
    """Sums of [R, L] values over the sequences of all rows, those of all rows one after another."""
    rows, slots = batch["sequence_weights"].shape
    numbers = np.arange(rows)[:, None] * (slots + 1) + batch["sequence_ids"]
    sums = np.bincount(numbers.ravel(), weights=values.ravel().astype(float), minlength=rows * (slots + 1))
    present = np.arange(1, slots + 1) <= batch["sequence_ids"].max(axis=1, keepdims=True)
    return sums.reshape(rows, slots + 1)[:, 1:][present].astype(int)


@KINDS
@PACKING
@pytest.mark.parametrize("pair", ["next_sentence", "none"])
def test_mask_statistics(make_store, pair, packing, kind):
    store = make_store(sentences=200, vocabulary=WITH_PIECES)
    rows = make_rows(store, 128, pair, packing, **kind)
    batch = rows.assemble(np.arange(12_000))
    used = batch["masked_weights"] > 0
    ids = unmasked(batch)
    tokens = per_sequence(batch, ids >= ORDINARY)
    masks = per_sequence(batch, masked_places(batch))
    assert np.all(masks <= masked_count(tokens, 0.15))
    assert np.all(masks >= 1)
    if not kind:
        assert np.array_equal(masks, masked_count(tokens, 0.15))
    long = tokens >= 32
    assert abs(masks[long].sum() / tokens[long].sum() - 0.15) < 0.002
    original = batch["masked_ids"][used]
    shown = np.take_along_axis(batch["input_ids"], batch["masked_positions"], axis=1)[used]
    assert np.all(original >= ORDINARY)  # never on a special token
    assert np.all((shown >= ORDINARY) | (shown == MASK))  # never a special or unused one instead
    same = np.mean(shown == original)
    assert abs(np.mean(shown == MASK) - 0.8) < 0.005
    assert abs(same - 0.1) < 0.005
    assert abs(np.mean((shown != MASK) & (shown != original)) - 0.1) < 0.005
    random_ids = np.bincount(shown[(shown != MASK) & (shown != original)], minlength=1000)[ORDINARY:]
    assert random_ids.min() > 0
    # Places that are not masked keep their ids.
    assert np.array_equal(np.where(masked_places(batch), ids, batch["input_ids"]), ids)


@BOTH
def test_masked_places_are_distinct_ascending_and_uniform(make_store, whole_words):
    store = make_store(sentences=200, vocabulary=WITH_PIECES)
    rows = make_rows(store, 64, "none", False, whole_word_masking=whole_words)
    batch = rows.assemble(np.arange(20_000))
    full = batch["sequence_ids"].all(axis=1)
    places = np.where(batch["masked_weights"] > 0, batch["masked_positions"], 64 + np.arange(rows.masked_slots))[full]
    assert np.all(np.diff(places, axis=1) > 0)
    seen = np.bincount(places[places < 64], minlength=64)
    assert seen[0] == seen[63] == 0
    expected = seen.sum() / 62
    # Places near the ends are in fewer words of several pieces, and pieces of a word are masked together: allow more.
    assert np.all(np.abs(seen[1:63] - expected) < (9 if whole_words else 6) * np.sqrt(expected))


@PACKING
@pytest.mark.parametrize("kind", [{"whole_word_masking": True}, SPANS])
def test_whole_words_are_masked_or_none_of_their_pieces(make_store, packing, kind):
    rows = make_rows(make_store(sentences=100, vocabulary=WITH_PIECES), 96, packing=packing, **kind)
    batch = rows.assemble(np.arange(2000))
    ids, masked = unmasked(batch), masked_places(batch)
    continues = np.array([token.startswith("##") for token in WITH_PIECES])[ids] & (ids >= ORDINARY)
    ordinary = ids >= ORDINARY
    begins = ordinary & ~continues
    begins[:, 1:] |= ordinary[:, 1:] & ~ordinary[:, :-1]  # a segment's first piece always begins a word
    word = np.cumsum(begins).reshape(begins.shape)[ordinary]
    pieces, hit = np.bincount(word)[1:], np.bincount(word, weights=masked[ordinary])[1:]
    broken = (hit > 0) & (hit < pieces)
    # A word is masked in part only in a short sequence where no word fits; it is then the only word with a mask.
    sequence = (np.arange(len(ids))[:, None] * 100 + batch["sequence_ids"])[begins]
    budget = per_sequence(batch, masked)
    budget = dict(zip(np.unique(sequence).tolist(), budget.tolist(), strict=True))
    for number in np.flatnonzero(broken):
        assert budget[int(sequence[number])] == hit[number]
        assert np.all(pieces[sequence == sequence[number]] > hit[number])
    assert np.mean(broken[pieces > 1]) < 0.01
    assert np.count_nonzero(hit[pieces > 2]) > 300


def test_whole_words_change_nothing_where_all_words_are_one_token(make_store):
    store = make_store()
    one, other = (make_rows(store, whole_word_masking=whole).assemble(np.arange(200)) for whole in (False, True))
    for name, array in one.items():
        assert np.array_equal(array, other[name]), name


@KINDS
def test_a_sequence_of_few_tokens_has_one_mask(make_store, kind):
    vocabulary = [token if token.startswith("[") else f"##{token}" for token in WITH_PIECES]  # no word fits
    store = make_store(sentences=1, longest=2, vocabulary=vocabulary)
    rows = make_rows(store, 32, "none", **kind)
    batch = rows.assemble(np.arange(40))
    assert np.all(per_sequence(batch, masked_places(batch)) == 1)
    unused = batch["masked_weights"] == 0
    assert not batch["masked_positions"][unused].any()
    assert not batch["masked_ids"][unused].any()


@pytest.mark.parametrize(("tokens", "expected"), [(1, 1), (3, 1), (29, 4), (30, 4), (32, 5), (509, 76), (510, 76)])
def test_the_count_is_rounded_and_at_least_one(tokens, expected):
    assert masked_count(tokens, 0.15) == expected


@pytest.mark.parametrize(("length", "expected"), [(128, 19), (512, 76), (23, 3), (8, 1)])
@pytest.mark.parametrize("pair", ["next_sentence", "none"])
def test_a_row_of_one_full_sequence_has_the_masked_positions_of_its_ordinary_tokens(pair, length, expected):
    recipe = recipe_from_table({"objective": {"pair": pair}, "phase": [{"sequence_length": length}]})
    assert full_row_slots(recipe, recipe.phase[0]) == (expected, expected)
