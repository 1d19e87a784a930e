"""What a Chrome trace of a step holds; test_bench.py has Horovod's part."""

from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.measuring.timeline import events
from bert_horovod.training.step_results import StepTimes

TIMES = StepTimes([(1.0, 2.0), (2.0, 4.0)], [(3.0, 3.5), (4.0, 4.25)], 4.5, 5.0)


def spans(found: list[dict]) -> dict[str, tuple[str, float, float]]:
    return {event["name"]: (event["tid"], event["ts"], event["dur"]) for event in found if event["ph"] == "X"}


def test_a_step_is_its_micro_batches_its_all_reduces_the_wait_and_the_update_in_microseconds():
    assert spans(events(TIMES, BucketPlan([["a", "b", "c"]], "table"))) == {
        "micro-batch 0": ("compute", 1e6, 1e6),
        "micro-batch 1": ("compute", 2e6, 2e6),
        "a and 2 more": ("all-reduces", 3e6, 0.5e6),
        "looked-up rows of table": ("all-reduces", 4e6, 0.25e6),
        "for all-reduces": ("waiting", 4e6, 0.5e6),
        "update": ("compute", 4.5e6, 0.5e6),
    }


def test_a_step_without_sums_has_no_all_reduces():
    assert "a" not in spans(events(TIMES._replace(all_reduces=[]), BucketPlan([["a"], ["b"]])))
