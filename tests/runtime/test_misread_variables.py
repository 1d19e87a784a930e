"""Numbers in the environment that libraries would misread."""

import pytest

from bert_horovod.runtime.misread_variables import misread_numbers


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OMP_NUM_THREADS", "fuor"),
        ("OMP_NUM_THREADS", "4x"),
        ("HOROVOD_FUSION_THRESHOLD", "64MB"),
        ("HOROVOD_CYCLE_TIME", "-1"),
        ("TF_NUM_INTRAOP_THREADS", "0x8"),
    ],
)
def test_a_number_that_is_none_is_named(name, value):
    assert misread_numbers({name: value, "HOME": "/root"}) == [f"{name}={value}"]


def test_numbers_lists_of_them_and_what_is_empty_are_fine():
    environment = {"OMP_NUM_THREADS": "4,2", "HOROVOD_CYCLE_TIME": "3.5", "TF_CPP_MIN_LOG_LEVEL": "", "OMP_X": "x"}
    assert misread_numbers(environment) == []
