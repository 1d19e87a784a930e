"""What holds between the ranks of a real run."""

from collections import Counter

import pytest

from bert_horovod.batches.text.index import open_index
from tests.toys import toy_recipe
from tests.training.two_ranks import compare_unequal_states, observe_run, refuse_unequal_data_and_state


@pytest.fixture(scope="module")
def reports(store, two_ranks, tmp_path_factory) -> list[dict]:
    """What each of two ranks saw in exactly one epoch, in steps of 30 rows; the last crosses into the next."""
    rows = open_index(store, 32, "next_sentence", True).rows
    recipe = toy_recipe(
        phase={"global_batch": 30, "steps": -(-rows // 30)},
        execution={"micro_batch": 8, "log_steps": 100},
        numerics={"wire": "float16"},
    )
    answers = two_ranks.run(observe_run, store.path, tmp_path_factory.mktemp("run"), recipe)
    return [answer.value for answer in answers]


@pytest.mark.full
def test_ranks_with_other_parameters_are_noticed_and_mended_by_the_broadcast(two_ranks):
    for answer in two_ranks.run(compare_unequal_states, toy_recipe()):
        assert answer.value == {"before": [1], "after": []}


@pytest.mark.full
def test_all_ranks_hold_the_same_parameters_after_the_run(reports):
    assert reports[0]["hash"] == reports[1]["hash"]


@pytest.mark.full
def test_each_window_is_seen_once_an_epoch_over_all_ranks(reports):
    rows = reports[0]["rows_per_epoch"]
    # Ranks take contiguous runs of each step: put the steps back in order and cut at the epoch's end.
    steps = -(-rows // 30)
    shares = [[report["windows"][i * 15 : (i + 1) * 15] for i in range(steps)] for report in reports]
    together = [row for i in range(steps) for share in shares for row in share[i]]
    assert max(len(row) for row in together) > 1  # packed
    seen = Counter(window for row in together[:rows] for window in row)
    assert seen == Counter(range(reports[0]["windows_per_epoch"]))


@pytest.mark.full
def test_gradients_are_all_reduced_in_buckets_and_never_gathered(reports):
    for report in reports:
        # one more for the sums of the losses
        assert report["collectives"] == {"all_reduce": report["buckets"] + 1}
        assert report["buckets"] > 1


@pytest.mark.full
def test_ranks_with_other_data_or_another_state_are_refused_on_all_ranks_alike(two_ranks):
    for data, state in (answer.value for answer in two_ranks.run(refuse_unequal_data_and_state, toy_recipe())):
        assert data[0] == "UserError"
        assert data[1].startswith("the data of ranks [1] are not those of rank 0")
        assert state[0] == "RunError"
        assert state[1].startswith("the parameters of ranks [1] are not those of rank 0")
