"""Chrome traces of steps: what they hold, and when they are written. Horovod's part: tests/measuring/.

Traces of steps: written whole, whatever ends them.
"""

import contextlib
import json
from pathlib import Path

import pytest

from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.errors import UserError
from bert_horovod.training.hooks.base import Hook
from bert_horovod.training.hooks.timeline import OURS, events
from bert_horovod.training.step_results import StepTimes
from tests.toy_runs import train, train_recipe
from tests.toys import toy_recipe

TIMES = StepTimes([(1.0, 2.0), (2.0, 4.0)], [(3.0, 3.5), (4.0, 4.25)], 4.5, 5.0)


def spans(found: list[dict]) -> dict[str, tuple[str, float, float]]:
    return {event["name"]: (event["tid"], event["ts"], event["dur"]) for event in found if event["ph"] == "X"}


def test_a_step_is_its_micro_batches_its_all_reduces_the_wait_and_the_update_in_microseconds():
    assert spans(events(7, TIMES, BucketPlan([["a", "b", "c"]], "table"))) == {
        "step 7, micro-batch 0": ("compute", 1e6, 1e6),
        "step 7, micro-batch 1": ("compute", 2e6, 2e6),
        "a and 2 more": ("all-reduces", 3e6, 0.5e6),
        "looked-up rows of table": ("all-reduces", 4e6, 0.25e6),
        "for all-reduces": ("waiting", 4e6, 0.5e6),
        "update": ("compute", 4.5e6, 0.5e6),
    }


def test_a_run_of_one_process_has_no_all_reduces():
    assert "a" not in spans(events(1, TIMES._replace(all_reduces=[]), BucketPlan([["a"], ["b"]])))


@pytest.mark.full
@pytest.mark.parametrize(
    ("max_steps", "steps", "name"), [(5, [2, 3], "steps-2-3.json"), (4, [3, 9], "steps-3-4.json"), (2, [], None)]
)
def test_the_steps_of_the_range_that_were_run_are_written(store, tmp_path, capsys, max_steps, steps, name):
    train(store, tmp_path, max_steps, execution={"timeline": steps})
    files = sorted((tmp_path / "timeline").glob("*"))
    assert [path.name for path in files] == ([name] if name else [])
    for path in files:
        trace = json.loads(path.read_text())["traceEvents"]
        updates = [event for event in trace if event["name"] == "update"]
        assert len(updates) == 2
        assert all(event["pid"] == OURS for event in trace)
        assert f"timeline of steps {name[6]} to {name[8]}: {path}" in capsys.readouterr().out


def traced(output_dir: Path) -> list[Path]:
    """The traces, each with the mark of a step in it."""
    traces = sorted((output_dir / "tensorboard").glob("plugins/profile/*/*.xplane.pb"))
    assert all(b"train" in path.read_bytes() for path in traces)
    return traces


@pytest.mark.full
def test_a_range_of_steps_is_traced_and_the_place_is_said(store, tmp_path, capsys):
    train(store, tmp_path, 5, execution={"profile_steps": [2, 3]})
    assert len(traced(tmp_path)) == 1
    said = f"trace of steps 2 to 3: tensorboard --logdir {tmp_path / 'tensorboard'}"
    assert capsys.readouterr().out.count(said) == 1


@pytest.mark.slow
def test_a_run_that_ends_inside_the_range_writes_the_trace_and_a_resumed_one_the_rest(store, tmp_path, capsys):
    for last, steps in ((3, "2 to 3"), (5, "4 to 5"), (8, "6 to 6")):
        train(store, tmp_path, last, execution={"profile_steps": [2, 6]})
        assert f"trace of steps {steps}: " in capsys.readouterr().out
    assert len(traced(tmp_path)) == 3


@pytest.mark.full
@pytest.mark.parametrize(("fails", "last"), [(False, 1), (True, 2)])
def test_a_run_that_is_asked_to_stop_or_fails_inside_the_range_writes_the_trace(store, tmp_path, capsys, fails, last):
    class Stopping(Hook):
        def begin(self, step: int) -> None:
            (tmp_path / "stop").touch()

    overflow = {"precision": "float16", "initial_loss_scale": 2.0**40, "max_skipped_steps": 2} if fails else {}
    recipe = toy_recipe(execution={"profile_steps": [1, 8]}, numerics=overflow)
    with pytest.raises(UserError, match="2 updates in a row") if fails else contextlib.nullcontext():
        train_recipe(recipe, store, tmp_path, max_steps=8, hooks=() if fails else (Stopping,))
    assert f"trace of steps 1 to {last}: " in capsys.readouterr().out
    assert len(traced(tmp_path)) == 1
