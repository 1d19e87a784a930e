"""What holds between the ranks of a real run."""

from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bert_horovod.batches.text.index import open_index
from bert_horovod.batches.text.rows import Rows
from bert_horovod.collectives.world import World
from bert_horovod.errors import ReportedError
from bert_horovod.model.parameters import initial_values
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runs.state import Progress, ranks_that_differ
from bert_horovod.training.agreement import require_same_data, require_same_state
from bert_horovod.training.hooks.base import Hook
from tests.toy_runs import new_state, train_rank
from tests.toys import toy_recipe


def compare_unequal_states(world: World, recipe: Recipe) -> dict[str, list[int]]:
    """The ranks that differ, before and after the broadcast, where each begins with parameters of its own."""
    parameters = initial_values(pretraining_shapes(recipe.model, True), 0.02, seed=world.rank)
    state = new_state(parameters, Progress(), rule="lamb")
    before = ranks_that_differ(world, state.hash(), "before")
    state.broadcast(world)
    return {"before": before, "after": ranks_that_differ(world, state.hash(), "after")}


def refuse_unequal_data_and_state(world: World, recipe: Recipe) -> list[tuple[str, str]]:
    """Class and text of the errors where each rank has data and parameters of its own."""
    parameters = initial_values(pretraining_shapes(recipe.model, True), 0.02, seed=world.rank)
    state = new_state(parameters, Progress())
    dataset = SimpleNamespace(hash=f"{world.rank:064x}")
    errors = []
    for check, subject in ((require_same_data, dataset), (require_same_state, state)):
        with pytest.raises(ReportedError) as caught:
            check(subject, world)
        errors.append((caught.type.__name__, str(caught.value)))
    return errors


class Observer(Hook):
    """Tells, when the run ends, what hash its state has."""

    def __init__(self, report: dict[str, Any], run) -> None:
        super().__init__(run)
        self._report = report

    def finish(self) -> None:
        self._report["hash"] = self.run.state.hash()


def observe_run(world: World, store: Path, output_dir: Path, recipe: Recipe) -> dict[str, Any]:
    """Train, and tell what this rank assembled, and what it had at the end."""
    report: dict[str, Any] = {"windows": []}  # of each row, in the order of assembling; held-out rows come last
    assemble = Rows.assemble

    def assemble_and_tell(self: Rows, positions: np.ndarray) -> dict[str, np.ndarray]:
        report["windows"].extend(row[row >= 0].tolist() for row in self.windows(positions[positions >= 0]))
        report.setdefault("rows_per_epoch", self.count)
        report.setdefault("windows_per_epoch", self._index.windows)
        return assemble(self, positions)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rows, "assemble", assemble_and_tell)
        train_rank(world, store, output_dir, recipe, hooks=(partial(Observer, report),))
    return report


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
def test_ranks_with_other_data_or_another_state_are_refused_on_all_ranks_alike(two_ranks):
    for data, state in (answer.value for answer in two_ranks.run(refuse_unequal_data_and_state, toy_recipe())):
        assert data[0] == "UserError"
        assert data[1].startswith("the data of ranks [1] are not those of rank 0")
        assert state[0] == "RunError"
        assert state[1].startswith("the parameters of ranks [1] are not those of rank 0")
