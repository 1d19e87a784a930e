"""Chrome traces of steps: what they hold, and when they are written. Horovod's part: tests/measuring/."""

import json

import pytest

from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.training.hooks.timeline import OURS, events
from bert_horovod.training.step_results import StepTimes
from tests.toy_runs import train

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
