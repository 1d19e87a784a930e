"""Layouts of a cluster, their order, and what follows from their measurements."""

import pytest

from bert_horovod.errors import UserError
from bert_horovod.measuring.configuration import size_recipe
from bert_horovod.measuring.weak_scaling import RankLayout, parse_layout, results, usual_layouts


def answer(rows_per_s: float, exposed_s: float = 0.0, ranks: int = 1) -> dict:
    """As `bench step --json` prints it, as far as it is read."""
    figures = {"configuration": "a model", "world_size": ranks, "rows_per_s": rows_per_s, "step_s": 0.5 + exposed_s}
    if ranks == 1:
        return figures | {"forward_backward_s": 0.2, "flops_per_s": 1e9}
    return figures | {"exposed_s": exposed_s, "link": {"bytes_per_s": 1e8, "latency_s": 1e-4}, "reduction": "ring"}


def test_layouts_double_machines_and_devices():
    hosts = {"a": 4, "b": 4, "c": 4}
    names = [str(layout) for layout in usual_layouts(hosts)]
    assert names == ["1M1G", "1M2G", "1M4G", "2M1G", "2M4G", "3M1G", "3M4G"]
    assert [str(layout) for layout in usual_layouts({"a": 1, "b": 1})] == ["1M1G", "2M1G"]


def test_a_layout_takes_the_first_hosts_that_have_enough_slots():
    assert parse_layout("2M8G") == RankLayout(2, 8)
    assert RankLayout(2, 4).hosts({"a": 1, "b": 4, "c": 8, "d": 8}) == {"b": 4, "c": 4}
    with pytest.raises(UserError, match=r"--layout 2M8G: of 2 host\(s\) 1 have 8 slot\(s\) or more; expected 2"):
        RankLayout(2, 8).hosts({"a": 8, "b": 4})


@pytest.mark.parametrize("text", ["2M", "0M1G", "1M0G", "1m2g", "2x8", ""])
def test_what_is_no_layout_is_refused(text):
    with pytest.raises(UserError, match=f"--layout {text}: expected machines and devices of each, as in 2M8G"):
        parse_layout(text)


def test_speed_up_efficiency_and_price_follow():
    recipe = size_recipe("mini", [], rows=4, length=32)
    measured = {
        RankLayout(1, 1): [answer(8.0), answer(10.0), answer(11.0)],
        RankLayout(2, 1): [answer(16.0, 0.125, ranks=2)],
    }
    table = results(measured, recipe, micro_batches=2, price=1.5, currency="USD")
    alone, two = table["lines"]
    assert (alone["speed_up"], alone["efficiency"], alone["exposed_s"]) == (1.0, 1.0, 0.0)
    assert (two["speed_up"], two["efficiency"], two["exposed_s"], two["step_s"]) == (1.6, 0.8, 0.125, 0.625)
    seconds = 1e9 / (16.0 * 32)
    assert two["price_per_billion_tokens"] == pytest.approx(2 * 1.5 * seconds / 3600)
    expected = {"configuration": "a model", "micro_batches": 2}
    assert table["compute"] == expected | {"step_s": 0.5, "forward_backward_s": 0.2, "flops_per_s": 1e9}
    assert (table["world_size"], table["link"]["bytes_per_s"], table["reduction"]) == (2, 1e8, "ring")


def test_without_a_rank_alone_there_is_no_speed_up_and_without_machines_no_link():
    table = results({RankLayout(1, 2): [answer(16.0, 0.1, ranks=2)]}, size_recipe("mini", []), 1, None, "")
    assert table["lines"][0]["speed_up"] is None
    assert table["lines"][0]["price_per_billion_tokens"] is None
    assert "link" not in table
    assert "compute" not in table
