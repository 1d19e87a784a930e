"""Seconds of a whole step from those of two of its micro-batches."""

import pytest

from bert_horovod.measuring.real_step import whole_step
from bert_horovod.training.step_results import StepTimes


def test_micro_batches_that_are_left_out_take_as_long_as_the_first_one():
    times = StepTimes([(10.0, 11.0), (11.5, 12.5)], [(12.0, 13.0)], reduced=13.0, updated=13.9)
    step = whole_step(times, begin=9.5, end=14.0, waited_s=0.25, made=2, micro_batches=5)
    assert step.micro_batch_s == 1.5  # from begin to begin: what lies between two counts
    assert step.input_wait_s == pytest.approx(0.25 * 5 / 2)
    assert step.step_s == pytest.approx(4.25 + 3 * 1.5 + 0.625)
    assert (step.update_s, step.reduce_wait_s) == (1.0, 0.5)


def test_a_step_that_is_done_as_a_whole_takes_what_it_took():
    times = StepTimes([(10.0, 12.0)], [], reduced=12.0, updated=12.5)
    step = whole_step(times, begin=9.0, end=13.0, waited_s=0.5, made=1, micro_batches=1)
    assert (step.step_s, step.micro_batch_s, step.update_s, step.input_wait_s) == (4.0, 2.0, 1.0, 0.5)
