import numpy as np
import pytest

from bert_horovod.batches.index import open_index
from bert_horovod.batches.rows import Rows, masked_count, special_ids
from bert_horovod.batches.schedule import step_positions
from bert_horovod.config import Objective
from bert_horovod.errors import UserError

PAD, UNKNOWN, CLS, SEP, MASK = 0, 3, 4, 5, 6  # of the toy vocabulary
ORDINARY = 7  # the first ordinary id


def make_rows(
    store, length: int = 32, next_sentence: bool = True, seed: int = 1, split: str = "train", fraction: float = 0.15
) -> Rows:
    objective = Objective(next_sentence=next_sentence, masked_fraction=fraction)
    return Rows(
        store, open_index(store, length, next_sentence, split), special_ids(store.vocabulary), length, objective, seed
    )


def unmasked(batch) -> np.ndarray:
    """The rows' ids as they were before masking."""
    ids = batch["input_ids"].copy()
    row, slot = np.nonzero(batch["masked_weights"])
    ids[row, batch["masked_positions"][row, slot]] = batch["masked_ids"][row, slot]
    return ids


def segments(ids: np.ndarray, batch, row: int) -> list[list[int]]:
    """A row's segments, without [CLS] and [SEP]."""
    real = ids[row][batch["sequence_ids"][row] > 0].tolist()
    assert real[0] == CLS
    assert real[-1] == SEP
    parts, part = [], []
    for token in real[1:]:
        if token == SEP:
            parts.append(part)
            part = []
        else:
            part.append(token)
    return parts


def window_tokens(rows: Rows, window: int) -> list[int]:
    index = rows._index
    start = int(index.start[window])
    return rows._tokens[index.shard[window]][start : start + int(index.count[window])].tolist()


@pytest.mark.parametrize("next_sentence", [True, False])
def test_arrays_have_the_stated_shapes_and_types(make_store, next_sentence):
    rows = make_rows(make_store(), 32, next_sentence)
    masks = 4  # round(0.15 * 29) and round(0.15 * 30)
    expected = {
        "input_ids": (5, 32),
        "token_type_ids": (5, 32),
        "position_ids": (5, 32),
        "sequence_ids": (5, 32),
        "masked_positions": (5, masks),
        "masked_ids": (5, masks),
        "masked_weights": (5, masks),
        "sequence_starts": (5, 1),
        "next_sentence_labels": (5, 1),
        "sequence_weights": (5, 1),
    }
    for positions in (np.arange(5), np.array([0, -1, 10**12, -1, 3])):
        batch = rows.assemble(positions)
        assert {name: array.shape for name, array in batch.items()} == expected
        weights = {"masked_weights", "sequence_weights"}
        assert all(array.dtype == (np.float32 if name in weights else np.int32) for name, array in batch.items())
    assert rows.masked_slots == masks


@pytest.mark.parametrize("next_sentence", [True, False])
def test_a_row_is_its_window_between_special_tokens(make_store, next_sentence):
    rows = make_rows(make_store(), 32, next_sentence)
    positions = np.arange(rows.count)
    batch = rows.assemble(positions)
    ids = unmasked(batch)
    correct = 0
    for row, window in enumerate(rows.windows(positions)):
        parts = segments(ids, batch, row)
        real = 1 + sum(len(part) + 1 for part in parts)
        assert len(parts) == 2 if next_sentence else len(parts) == 1
        assert all(parts)
        assert np.all(ids[row, real:] == PAD)
        assert batch["sequence_ids"][row].tolist() == [1] * real + [0] * (32 - real)
        assert batch["position_ids"][row].tolist() == [*range(real), *[0] * (32 - real)]
        types = [0] * (len(parts[0]) + 2) + [1] * (len(parts[-1]) + 1) if next_sentence else [0] * real
        assert batch["token_type_ids"][row].tolist() == types + [0] * (32 - real)
        tokens = window_tokens(rows, window)
        if batch["next_sentence_labels"][row, 0]:
            assert tokens[: len(parts[0])] == parts[0]
        else:
            correct += 1
            assert [token for part in parts for token in part] == tokens
    assert correct == rows.count if not next_sentence else 0 < correct < rows.count
    assert np.all(batch["sequence_weights"] == 1)
    assert np.all(batch["sequence_starts"] == 0)


def test_a_right_pair_is_split_at_a_sentence_end_where_there_is_one(make_store):
    rows = make_rows(make_store(longest=12), 32)
    index = rows._index
    positions = np.arange(4 * rows.count)
    batch = rows.assemble(positions)
    first = (batch["sequence_ids"] - batch["token_type_ids"]).sum(axis=1) - 2
    places = {}
    for window, tokens, label in zip(rows.windows(positions), first, batch["next_sentence_labels"][:, 0], strict=True):
        ends = index.ends[index.first_end[window] : index.first_end[window + 1]].tolist()
        if len(ends) > 1:
            assert tokens in ends[:-1]
        else:
            assert 1 <= tokens < max(ends[0], 2)
        if ends[0] == 1 and len(ends) == 1:
            assert label == 1  # one token has no continuation
        if len(ends) == 3:
            places[ends.index(tokens)] = places.get(ends.index(tokens), 0) + 1
    assert set(places) == {0, 1}


def test_a_wrong_second_segment_is_from_another_document_and_ends_as_windows_do(make_store):
    rows = make_rows(make_store(documents=10), 32)
    index = rows._index
    # A window of each document by its last tokens; random tokens make these unique enough to tell documents apart.
    batch = rows.assemble(np.arange(3 * rows.count))
    ids = unmasked(batch)
    own = index.document[rows.windows(np.arange(3 * rows.count))]
    endings = {}
    for window in range(index.windows):
        endings.setdefault(window_tokens(rows, window)[-1], []).append(window)
    wrong = np.flatnonzero(batch["next_sentence_labels"][:, 0])
    for row in wrong:
        second = segments(ids, batch, row)[1]
        sources = {
            int(index.document[window])
            for window in endings[second[-1]]
            if window_tokens(rows, window)[-len(second) :] == second
        }
        assert sources - {int(own[row])}
        if len(second) > 2:
            assert own[row] not in sources
    assert len(wrong) > 100


def test_other_windows_are_drawn_uniformly_from_other_documents(make_store):
    rows = make_rows(make_store(shards=2, documents=2, sentences=6), 32)
    index = rows._index
    draws = 40_000
    for window in (0, index.windows // 2, index.windows - 1):
        others = rows._other_document(np.arange(draws), np.full(draws, window))
        outside = index.document != index.document[window]
        seen = np.bincount(others, minlength=index.windows)
        assert np.all(seen[~outside] == 0)
        expected = draws / outside.sum()
        assert np.all(np.abs(seen[outside] - expected) < 6 * np.sqrt(expected))


def test_lengths_do_not_give_the_labels_away(make_store):
    rows = make_rows(make_store(shards=2, documents=20, sections=2, sentences=200), 128)
    batch = rows.assemble(np.arange(20_000))
    total, label = batch["sequence_ids"].sum(axis=1), batch["next_sentence_labels"][:, 0]
    accuracy = [np.mean((total < length) == label) for length in range(130)]
    assert max(*accuracy, *(1 - np.array(accuracy))) < 0.56


@pytest.mark.parametrize("next_sentence", [True, False])
def test_mask_statistics(make_store, next_sentence):
    rows = make_rows(make_store(sentences=200), 128, next_sentence)
    batch = rows.assemble(np.arange(20_000))
    used = batch["masked_weights"] > 0
    ids = unmasked(batch)
    tokens = np.sum(ids >= ORDINARY, axis=1)
    assert np.array_equal(used.sum(axis=1), masked_count(tokens, 0.15))
    long = tokens >= 32
    assert abs(used[long].sum() / tokens[long].sum() - 0.15) < 0.002
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
    if next_sentence:
        assert abs(batch["next_sentence_labels"].mean() - 0.5) < 0.01
    else:
        assert not batch["next_sentence_labels"].any()


def test_masked_places_are_distinct_ascending_and_uniform(make_store):
    rows = make_rows(make_store(sentences=200), 32, False)
    batch = rows.assemble(np.arange(20_000))
    full = batch["sequence_ids"].all(axis=1)
    places = batch["masked_positions"][full]
    assert np.all(np.diff(places, axis=1) > 0)
    seen = np.bincount(places.ravel(), minlength=32)
    assert seen[0] == seen[31] == 0
    expected = places.size / 30
    assert np.all(np.abs(seen[1:31] - expected) < 6 * np.sqrt(expected))


def test_a_row_of_few_tokens_has_one_mask(make_store):
    batch = make_rows(make_store(sentences=1, longest=2), 32, False).assemble(np.arange(40))
    assert np.all(batch["masked_weights"].sum(axis=1) == 1)
    assert np.all(batch["masked_positions"][:, 1:] == 0)
    assert np.all(batch["masked_ids"][:, 1:] == 0)
    assert np.all(batch["input_ids"][:, 0] == CLS)


def test_position_minus_one_is_a_row_of_nothing(make_store):
    rows = make_rows(make_store())
    batch = rows.assemble(np.array([-1, 3, -1]))
    for name, array in batch.items():
        assert np.all(array[[0, 2]] == (PAD if name == "input_ids" else 0)), name
        assert np.array_equal(array[1], rows.assemble(np.array([3]))[name][0]), name
    assert rows.assemble(np.array([-1]))["input_ids"].shape == (1, 32)
    assert rows.assemble(np.array([], np.int64))["input_ids"].shape == (0, 32)


@pytest.mark.parametrize("next_sentence", [True, False])
def test_a_row_is_a_pure_function_of_its_position(make_store, next_sentence):
    store = make_store()
    positions = np.arange(5, 400)
    whole = make_rows(store, 32, next_sentence).assemble(positions)
    random = np.random.default_rng(0)
    for size in (1, 2, 50):
        chosen = random.choice(len(positions), size, replace=False)
        part = make_rows(store, 32, next_sentence).assemble(positions[chosen])
        for name, array in part.items():
            assert np.array_equal(array, whole[name][chosen]), name


def test_another_seed_and_another_epoch_give_other_orders_and_masks(make_store):
    store = make_store()
    rows, other = make_rows(store, seed=1), make_rows(store, seed=2)
    epochs = [rows.windows(np.arange(epoch * rows.count, (epoch + 1) * rows.count)) for epoch in range(2)]
    for windows in epochs:
        assert np.array_equal(np.sort(windows), np.arange(rows.count))
    assert np.mean(epochs[0] == epochs[1]) < 0.1
    assert np.mean(epochs[0] == other.windows(np.arange(rows.count))) < 0.1
    # The same windows, row by row: their masks differ between epochs.
    again = np.argsort(epochs[1])[epochs[0]] + rows.count
    first, second = rows.assemble(np.arange(rows.count)), rows.assemble(again)
    long = (first["masked_weights"].sum(axis=1) >= 3) & (second["masked_weights"].sum(axis=1) >= 3)
    assert long.sum() > 50
    assert np.mean(np.all(first["masked_positions"] == second["masked_positions"], axis=1)[long]) < 0.1


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
        assert np.array_equal(np.sort(windows), np.arange(rows.count))


def test_another_world_size_sees_the_same_rows_from_any_step_on(make_store):
    store = make_store()

    def step_rows(step: int, ranks: int, micro_batch: int) -> dict[str, np.ndarray]:
        rows, found = make_rows(store), {}
        for rank in range(ranks):
            for positions, first in step_positions(step, 12, rank, ranks, micro_batch):
                batch = rows.assemble(positions)
                for row in np.flatnonzero(positions >= 0):
                    found[first + row] = {name: array[row] for name, array in batch.items()}
        return {name: np.stack([found[place][name] for place in range(12)]) for name in found[0]}

    for step in (0, 5, 1000):
        expected = step_rows(step, 1, 12)
        for ranks, micro_batch in ((2, 3), (5, 2), (12, 1)):
            for name, array in step_rows(step, ranks, micro_batch).items():
                assert np.array_equal(array, expected[name]), name


def test_held_out_text_is_never_trained_on(make_store):
    store = make_store(held_out=0.3)
    spans = []
    for split in ("train", "held_out"):
        rows = make_rows(store, split=split)
        index, windows = rows._index, rows.windows(np.arange(rows.count))
        spans.append(
            {
                (shard, token)
                for window in windows
                for shard in [int(index.shard[window])]
                for token in range(index.start[window], int(index.start[window]) + int(index.count[window]))
            }
        )
    assert spans[0].isdisjoint(spans[1])
    assert len(spans[0]) + len(spans[1]) == sum(len(shard.tokens) for shard in store.shards)


def test_a_vocabulary_without_special_or_ordinary_tokens_is_refused(make_store):
    with pytest.raises(UserError, match=r"no \[CLS\], \[MASK\]"):
        special_ids(["[PAD]", "[UNK]", "[SEP]", "a"])
    store = make_store(vocabulary=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]"])
    with pytest.raises(UserError, match="no ordinary tokens"):
        make_rows(store)


def test_an_index_of_other_settings_is_refused(make_store):
    store = make_store()
    index, special = open_index(store, 16, True), special_ids(store.vocabulary)
    for length, next_sentence in ((17, True), (16, False)):
        with pytest.raises(ValueError, match="another sequence_length or next_sentence"):
            Rows(store, index, special, length, Objective(next_sentence=next_sentence), 0)


@pytest.mark.parametrize("length", [8, 9])
def test_the_shortest_rows_work(make_store, length):
    batch = make_rows(make_store(), length).assemble(np.arange(500))
    assert np.all(batch["masked_weights"].sum(axis=1) == 1)
    assert np.all(batch["sequence_ids"].sum(axis=1) >= 5)
