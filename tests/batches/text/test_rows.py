import numpy as np
import pytest

from bert_horovod.batches.order import stream_seed
from bert_horovod.batches.positions import step_positions
from bert_horovod.batches.text.index import open_index
from bert_horovod.batches.text.mask_rates import MaskRate, masked_count
from bert_horovod.batches.text.rows import Rows, open_rows
from bert_horovod.batches.words import token_roles
from bert_horovod.recipe.settings import Data, Objective, Phase
from tests.batches.reading import (
    PAD,
    WITH_PIECES,
    index_windows,
    make_rows,
    segments,
    store_tokens,
    token_documents,
    unmasked,
)
from tests.toys import recipe_of

PAIRS = ("next_sentence", "sentence_order", "none")


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("pair", PAIRS)
def test_arrays_have_the_stated_shapes_and_types(make_store, pair, packing):
    rows = make_rows(make_store(), 32, pair, packing)
    masks, sequences = rows.masked_slots, rows.sequences
    expected = {
        "input_ids": (5, 32),
        "token_type_ids": (5, 32),
        "position_ids": (5, 32),
        "sequence_ids": (5, 32),
        "masked_positions": (5, masks),
        "masked_ids": (5, masks),
        "masked_weights": (5, masks),
        "sequence_starts": (5, sequences),
        "next_sentence_labels": (5, sequences),
        "sequence_weights": (5, sequences),
    }
    for positions in (np.arange(5), np.array([0, -1, 10**12, -1, 3])):
        batch = rows.assemble(positions)
        assert {name: array.shape for name, array in batch.items()} == expected
        weights = {"masked_weights", "sequence_weights"}
        assert all(array.dtype == (np.float32 if name in weights else np.int32) for name, array in batch.items())
    assert 2 <= sequences <= 4 if packing else sequences == 1
    assert 4 <= masks <= 5 if packing else masks == 4  # round(0.15 * 29) and round(0.15 * 30)


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("pair", PAIRS)
def test_slots_are_as_many_as_the_fullest_rows_need(make_store, pair, packing):
    rows = make_rows(make_store(sections=1, sentences=100), 64, pair, packing)
    batch = rows.assemble(np.arange(rows.count))
    assert batch["masked_weights"].sum(axis=1).max() == rows.masked_slots
    assert batch["sequence_ids"].max() == rows.sequences


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("pair", PAIRS)
def test_a_row_is_its_windows_between_special_tokens(make_store, pair, packing):
    store = make_store(longest=12, sentences=100)
    rows = make_rows(store, 40, pair, packing)
    windows, tokens = index_windows(rows._index, store), store_tokens(store)
    positions = np.arange(rows.count, 2 * rows.count)
    batch = rows.assemble(positions)
    ids = unmasked(batch)
    kinds = {"right": 0, "wrong": 0, "single": 0}
    several = 0
    for row, numbers in enumerate(rows.windows(positions)):
        at = 0
        several += np.count_nonzero(numbers >= 0) > 1
        for slot, number in enumerate(numbers[numbers >= 0]):
            start, first, second = windows[number]
            length = first + second + 2 + (second > 0)
            sequence = slice(at, at + length)
            own = [part.tolist() for part in np.split(tokens[start : start + first + second], [first])]
            own = own[: 1 + (second > 0)]
            label, weight = batch["next_sentence_labels"][row, slot], batch["sequence_weights"][row, slot]
            row_segments = segments(ids[row, sequence].tolist())
            assert batch["sequence_starts"][row, slot] == at
            assert batch["sequence_ids"][row, sequence].tolist() == [slot + 1] * length
            assert batch["position_ids"][row, sequence].tolist() == list(range(length))
            types = [0] * (len(row_segments[0]) + 2) + [1] * (length - len(row_segments[0]) - 2)
            assert batch["token_type_ids"][row, sequence].tolist() == types
            assert weight == (pair == "none" or second > 0)
            if second == 0:
                assert label == 0
                assert row_segments == own
                kinds["single"] += 1
            elif label == 0:
                assert row_segments == own
                kinds["right"] += 1
            else:
                assert row_segments[0] == own[0] if pair == "next_sentence" else row_segments == own[::-1]
                lengths = [len(part) for part in own]
                assert [len(part) for part in row_segments] == lengths[:: 1 if pair == "next_sentence" else -1]
                kinds["wrong"] += 1
            at += length
        assert np.all(ids[row, at:] == PAD)
        for name in ("sequence_ids", "position_ids", "token_type_ids"):
            assert not batch[name][row, at:].any()
        for name in ("sequence_starts", "sequence_weights", "next_sentence_labels"):
            assert not batch[name][row, slot + 1 :].any()
    assert several > 50 if packing else several == 0
    assert kinds["single"] > 0
    if pair == "none":
        assert kinds["right"] == kinds["wrong"] == 0
    else:
        assert min(kinds["right"], kinds["wrong"]) > 0.4 * (kinds["right"] + kinds["wrong"])


@pytest.mark.parametrize("packing", [True, False])
def test_each_second_segment_is_used_once_and_a_wrong_one_is_from_another_document(make_store, packing):
    store = make_store(longest=12, sentences=100)
    rows = make_rows(store, 40, "next_sentence", packing)
    windows, tokens, document = index_windows(rows._index, store), store_tokens(store), token_documents(store)
    starts = {}
    for window in windows:
        if window.second:
            at = window.start + window.first
            starts.setdefault(tuple(tokens[at : at + window.second].tolist()), []).append(at)
    for epoch in range(2):
        positions = np.arange(epoch * rows.count, (epoch + 1) * rows.count)
        batch = rows.assemble(positions)
        ids = unmasked(batch)
        used = []
        for row, slot in zip(*np.nonzero(batch["sequence_weights"]), strict=True):
            second = segments(ids[row][batch["sequence_ids"][row] == slot + 1].tolist())[1]
            used.append(tuple(second))
            if batch["next_sentence_labels"][row, slot] and len(second) > 2:  # long enough to be found again
                own = document[windows[rows.windows(positions[row : row + 1])[0, slot]].start]
                assert own not in document[starts[tuple(second)]]
        assert sorted(used) == sorted(second for second, at in starts.items() for _ in at)


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("pair", ["next_sentence", "sentence_order"])
def test_half_of_the_pairs_are_wrong_and_lengths_do_not_tell_which(make_store, pair, packing):
    store = make_store(documents=200, sections=1, sentences=200)
    rows = make_rows(store, 128, pair, packing)
    batch = rows.assemble(np.arange(2 * rows.count))
    pairs = batch["sequence_weights"] > 0
    labels = batch["next_sentence_labels"]
    assert pairs.sum() > 10_000
    assert abs(labels[pairs].mean() - 0.5) < 0.01
    assert not labels[~pairs].any()
    row, slot = np.nonzero(pairs)
    inside = batch["sequence_ids"][row] == slot[:, None] + 1
    total, label = inside.sum(axis=1), labels[row, slot]
    accuracy = [np.mean((total < length) == label) for length in range(130)]
    assert max(*accuracy, *(1 - np.array(accuracy))) < 0.53
    second = (inside & (batch["token_type_ids"][row] == 1)).sum(axis=1)
    if pair == "sentence_order":
        # Swapped segments swap their lengths. Learn from the first half of the pairs which label each length suggests.
        both = np.stack([total - second - 3, second], axis=1)
        half, odds = len(label) // 2, np.ones((2, 128, 2))
        for side in range(2):
            np.add.at(odds[side], (both[:half, side], label[:half]), 1)
        evidence = np.log(odds[..., 1] / odds[..., 0])
        guess = evidence[0, both[half:, 0]] + evidence[1, both[half:, 1]] > 0
        assert np.mean(guess == label[half:]) < 0.56
    else:
        for length in np.flatnonzero(np.bincount(second) > 1000):
            assert abs(label[second == length].mean() - 0.5) < 0.06


@pytest.mark.parametrize("pair", PAIRS)
def test_two_epochs_share_rows_out_anew_with_other_labels_and_masks(make_store, pair):
    rows = make_rows(make_store(sentences=200), 48, pair)
    places, labels, masks = [], [], []
    for epoch in range(2):
        positions = np.arange(epoch * rows.count, (epoch + 1) * rows.count)
        windows, batch = rows.windows(positions), rows.assemble(positions)
        row, slot = np.nonzero(windows >= 0)
        order = np.argsort(windows[row, slot])
        row, slot = row[order], slot[order]
        places.append(row)
        labels.append(batch["next_sentence_labels"][row, slot][batch["sequence_weights"][row, slot] > 0])
        changed = np.zeros(batch["input_ids"].shape, bool)
        rows_of, slots_of = np.nonzero(batch["masked_weights"])
        changed[rows_of, batch["masked_positions"][rows_of, slots_of]] = True
        masks.append(
            [
                np.flatnonzero(changed[r][batch["sequence_ids"][r] == s + 1]).tolist()
                for r, s in zip(row, slot, strict=True)
            ]
        )
    assert np.mean(places[0] == places[1]) < 0.05
    long = [i for i, mask in enumerate(masks[0]) if len(mask) >= 3]
    assert len(long) > 100
    assert np.mean([masks[0][i] == masks[1][i] for i in long]) < 0.1
    if pair != "none":
        assert 0.4 < np.mean(labels[0] == labels[1]) < 0.6


def test_position_minus_one_is_a_row_of_nothing(make_store):
    rows = make_rows(make_store())
    batch = rows.assemble(np.array([-1, 3, -1]))
    for name, array in batch.items():
        assert np.all(array[[0, 2]] == (PAD if name == "input_ids" else 0)), name
        assert np.array_equal(array[1], rows.assemble(np.array([3]))[name][0]), name
    assert np.all(rows.windows(np.array([-1, -1])) == -1)
    assert rows.assemble(np.array([-1]))["input_ids"].shape == (1, 32)
    assert rows.assemble(np.array([], np.int64))["input_ids"].shape == (0, 32)


@pytest.mark.parametrize("words", [{}, {"whole_word_masking": True}, {"whole_word_masking": True, "ngram": 3}])
@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("pair", PAIRS)
def test_a_row_is_a_pure_function_of_its_position(make_store, pair, packing, words):
    store = make_store(vocabulary=WITH_PIECES)

    def again() -> Rows:
        return make_rows(store, 32, pair, packing, **words)

    positions = np.arange(5, 400)
    batch = again().assemble(positions)
    random = np.random.default_rng(0)
    for size in (1, 2, 50):
        chosen = random.choice(len(positions), size, replace=False)
        part = again().assemble(positions[chosen])
        for name, array in part.items():
            assert np.array_equal(array, batch[name][chosen]), name


def test_another_seed_gives_other_rows(make_store):
    store = make_store()
    one, other = (make_rows(store, seed=seed) for seed in (1, 2))
    assert np.mean(one.windows(np.arange(one.count)) == other.windows(np.arange(one.count))) < 0.6  # -1 in both


@pytest.mark.parametrize(("batch", "ranks", "micro_batch"), [(7, 1, 3), (8, 2, 4), (13, 3, 2), (16, 4, 1)])
def test_each_window_is_seen_once_an_epoch_over_all_ranks(make_store, batch, ranks, micro_batch):
    rows = make_rows(make_store(shards=2, documents=6))
    seen = []
    for step in range(-(-3 * rows.count // batch)):
        for rank in range(ranks):
            for positions, _ in step_positions(step, batch, rank, ranks, micro_batch):
                seen.append(positions[positions >= 0])
    seen = np.sort(np.concatenate(seen))
    assert np.array_equal(seen, np.arange(len(seen)))
    for epoch in range(3):
        windows = rows.windows(seen[epoch * rows.count : (epoch + 1) * rows.count])
        assert np.array_equal(np.sort(windows[windows >= 0]), np.arange(rows._index.windows))


def test_an_index_of_other_pairs_is_refused(make_store):
    store = make_store(sentences=100, longest=5)
    index, roles = open_index(store, 16, "next_sentence", True), token_roles(store, Objective())
    for pair in ("none", "sentence_order"):
        with pytest.raises(ValueError, match="another pair"):
            Rows(store, index, roles, Objective(pair=pair), MaskRate(0.15, 0.15), 0)


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(
    ("length", "sizes"),
    [
        (8, {"longest": 2}),  # rows of 5 tokens
        (9, {"longest": 2}),
        (32, {"shards": 1, "documents": 2, "sections": 1, "sentences": 8, "longest": 3}),
        (32, {"shards": 2, "documents": 400, "sections": 3, "sentences": 2, "longest": 1}),  # sections of 1 or 2 tokens
        (64, {"shards": 1, "documents": 3, "sections": 1, "sentences": 40, "longest": 2}),  # a row or two
    ],
)
def test_the_shortest_rows_and_the_smallest_corpora_work(make_store, length, sizes, pair, packing):
    rows = make_rows(make_store(**sizes), length, pair, packing)
    batch = rows.assemble(np.arange(500))
    sequences = batch["sequence_ids"].max(axis=1)
    assert np.all(sequences >= 1)
    assert np.all(batch["masked_weights"].sum(axis=1) >= sequences)
    pairs = batch["sequence_weights"] > 0
    assert np.all(pairs.sum(axis=1) <= sequences)
    assert pairs.any()


@pytest.mark.parametrize("packing", [True, False])
def test_a_corpus_of_one_window_has_one_row(make_store, packing):
    store = make_store(shards=1, documents=1, sections=1, sentences=1, longest=5)
    rows = make_rows(store, 32, "none", packing)
    assert rows.count == rows.sequences == 1
    ids = unmasked(rows.assemble(np.arange(3)))
    assert np.all(ids == ids[0])
    tokens = store_tokens(store)
    assert segments(ids[0, : len(tokens) + 2].tolist()) == [tokens.tolist()]
    assert rows.masked_slots == masked_count(len(tokens), 0.15) == 1


@pytest.mark.parametrize(
    ("phase", "split", "stream"), [(0, "train", 102), (1, "train", 103), (0, "held_out", 103), (1, "held_out", 103)]
)
def test_a_recipes_rows_stay_the_same_so_that_runs_can_be_resumed(make_store, phase, split, stream):
    store = make_store(held_out=0.3)
    recipe = recipe_of(
        data=Data(seed=5, packing=False),
        objective=Objective(pair="sentence_order", masked_fraction=0.3),
        phase=(Phase(sequence_length=16), Phase(sequence_length=24)),
    )
    seed = stream_seed(5, stream)
    expected = make_rows(store, (16, 24)[phase], "sentence_order", False, seed, split, masked_fraction=0.3)
    batches = [rows.assemble(np.arange(4)) for rows in (open_rows(store, recipe, phase, split), expected)]
    for name, array in batches[0].items():
        assert np.array_equal(array, batches[1][name]), name
