import numpy as np
import pytest

from bert_horovod.batches.order import keyed_hash
from bert_horovod.batches.text.index import Classes
from bert_horovod.batches.text.pairs import PairExchange


def exchange(classes: list[list[int]], seed: int = 0) -> tuple[PairExchange, np.ndarray, np.ndarray]:
    """An exchange, the class and the document of each window; `classes` says how many windows each document has."""
    second = np.repeat(np.arange(len(classes)), [sum(runs) for runs in classes])
    document = np.concatenate([np.repeat(np.arange(len(runs)), runs) for runs in classes])
    largest = [max(runs, default=0) for runs in classes]
    ends = [sum(runs[: runs.index(max(runs)) + 1]) if runs else 0 for runs in classes]
    counts = (np.bincount(second, minlength=len(classes)), largest, ends)
    unused = np.zeros(len(classes), np.int64)
    exchanger = PairExchange(
        Classes(*(np.array(count, np.int64) for count in counts), unused, unused),
        lambda stream, index: keyed_hash(seed, stream, index=index.astype(np.uint64)),
    )
    return exchanger, second, document


def partners(exchanger: PairExchange, epoch: int, second: np.ndarray) -> np.ndarray:
    return exchanger.partners(np.full(len(second), epoch), np.arange(len(second)), second)


@pytest.mark.parametrize(
    "runs",
    [
        *([1] * 10, [1] * 11, [5, 1, 1, 1, 1, 1], [1, 1, 7, 1, 1], [3, 4, 3], [2, 2], [1, 3], [6, 1]),
        *([1, 2, 3, 4, 5, 6, 7], [100, 90, 110]),
    ],
)
def test_second_segments_of_equal_length_change_places_with_another_documents(runs):
    exchanger, second, document = exchange([[4, 2], [1, 1], runs, [], [2, 1, 2]])
    own = np.arange(len(second))
    seen = set()
    for epoch in range(60):
        other = partners(exchanger, epoch, second)
        assert np.array_equal(np.sort(other), own)  # each is used once
        assert np.array_equal(other[other], own)
        wrong = other != own
        assert np.all(second[other] == second)
        assert np.all(document[other[wrong]] != document[wrong])
        assert not wrong[second == 0].any()  # single segments
        seen |= set(zip(own[wrong], other[wrong], strict=True))
    # Every window that can be in a wrong pair is in one in some epoch, and not always with the same partner.
    class_windows = np.flatnonzero(second == 2)
    if max(runs) <= len(class_windows) // 2:
        assert {window for window, _ in seen} >= set(class_windows[: len(class_windows) // 2 * 2]) - {class_windows[-1]}
        if len(class_windows) > 4:
            assert len({pair for pair in seen if pair[0] in class_windows}) > len(class_windows)


def test_half_of_all_pairs_are_wrong_ones_each_epoch():
    random = np.random.default_rng(0)
    exchanger, second, _ = exchange([[5], *([1] * random.integers(0, 40) for _ in range(80))])
    pairs = np.count_nonzero(second)
    means = [np.mean(partners(exchanger, epoch, second)[second > 0] != np.arange(5, pairs + 5)) for epoch in range(5)]
    assert np.all(np.abs(np.array(means) - 0.5) < 2 / pairs + 1e-9)


def test_classes_that_cannot_exchange_are_made_up_for_by_others():
    # 20 windows without a partner, 30 couples: 20 of these exchange, so that 40 of 80 pairs are wrong.
    exchanger, second, _ = exchange([[], *[[1]] * 20, [1] * 60])
    for epoch in range(5):
        assert np.count_nonzero(partners(exchanger, epoch, second) != np.arange(80)) == 40


def test_one_document_with_nearly_everything_leaves_few_wrong_pairs():
    exchanger, second, _ = exchange([[], [1, 50, 1]])
    assert np.count_nonzero(partners(exchanger, 0, second) != np.arange(52)) == 4
    exchanger, second, _ = exchange([[], [50]])
    assert np.count_nonzero(partners(exchanger, 0, second) != np.arange(50)) == 0


def test_a_part_of_the_windows_has_the_partners_of_the_whole():
    exchanger, second, _ = exchange([[3], [1, 2, 3, 4], [1] * 21])
    all_partners = partners(exchanger, 7, second)
    some = np.array([25, 4, 11])
    assert np.array_equal(exchanger.partners(np.full(3, 7), some, second[some]), all_partners[some])
    none = np.zeros(0, np.int64)
    assert len(exchanger.partners(none, none, none)) == 0


def test_another_seed_draws_other_pairs():
    second = exchange([[], [1] * 50])[1]
    one, other = (partners(exchange([[], [1] * 50], seed)[0], 0, second) for seed in (0, 1))
    assert not np.array_equal(one, other)
