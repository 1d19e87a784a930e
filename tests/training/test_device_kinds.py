"""Ranks with different devices: refused, or warned of with what it costs."""

import pytest

from bert_horovod.collectives.world import World
from bert_horovod.errors import UserError
from bert_horovod.training import agreement
from bert_horovod.training.agreement import check_kinds, device_kind
from bert_horovod.training.job import pretraining_job
from tests.toys import toy_recipe

A100, V100 = "NVIDIA A100-SXM4-40GB", "Tesla V100-SXM2-16GB"
HOSTS = ["node1", "node1", "node2", "node2"]


class Gathered(World):
    """A world of two whose other rank has another device."""

    def __init__(self, rank: int, kind: str | None) -> None:
        self.rank, self.size, self._kind = rank, 2, kind

    def gather(self, values: list, *_: object) -> list:
        [[_, work, mine]] = values
        return [["node1", work, mine], ["node2", work, self._kind]]


@pytest.mark.parametrize("kind", [A100, None])
def test_equal_devices_are_nothing_to_say(kind):
    assert check_kinds(HOSTS, [kind] * 4, "bfloat16") is None


def test_ranks_without_a_gpu_among_others_are_refused_by_number_and_host():
    with pytest.raises(UserError, match=r"rank\(s\) 1-2 on node1, node2 found no GPU, the other ranks have one"):
        check_kinds(HOSTS, [A100, None, None, A100], "bfloat16")


def test_several_kinds_are_named_with_what_waiting_costs():
    warning = check_kinds(HOSTS, [A100, A100, V100, A100], "float16")
    assert f"rank(s) 0-1, 3: {A100}; rank(s) 2: {V100}" in warning
    lost = 1 - 4 * 125 / (3 * 312 + 125)  # data sheets' TFLOP/s; all wait for the V100
    assert f"{lost:.0%} of their data sheets' rates are lost by waiting" in warning


def test_the_cost_is_left_out_where_a_data_sheet_is_unknown():
    assert check_kinds(HOSTS, [A100, A100, "Tesla P100", A100], "float16").endswith("the slowest sets the pace")


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_warns_of_several_kinds(store, monkeypatch, capsys, rank):
    monkeypatch.setattr(agreement, "device_kind", lambda: A100)
    world = Gathered(rank, V100)
    monkeypatch.setattr(agreement, "from_all_ranks", world.gather)
    agreement.require_agreement([pretraining_job(toy_recipe(), store, store.path / "run")], world)
    assert ("GPUs of several kinds" in capsys.readouterr().err) == (rank == 0)


def test_all_ranks_refuse_where_one_has_no_gpu(store, monkeypatch):
    monkeypatch.setattr(agreement, "device_kind", lambda: A100)
    world = Gathered(1, None)
    monkeypatch.setattr(agreement, "from_all_ranks", world.gather)
    with pytest.raises(UserError, match="found no GPU"):
        agreement.require_agreement([pretraining_job(toy_recipe(), store, store.path / "run")], world)


def test_a_rank_on_a_cpu_has_no_kind():
    assert device_kind() is None
