"""Layouts of a cluster, their order, and what follows from their measurements."""

import pytest

from bert_horovod.errors import RunError, UserError
from bert_horovod.measuring.configuration import size_recipe, step_flops
from bert_horovod.measuring.weak_scaling import Layout, measure, parse_layout, results, usual_layouts

DELAYS = {"forward_s": 0.1, "head_s": 0.05, "layers_s": [0.1, 0.1], "embeddings_s": 0.05, "update_s": 0.1}


def answer(rows_per_s: float, exposed_s: float = 0.0, ranks: int = 1) -> dict:
    """As `bench comm --json` prints it, as far as it is read."""
    figures = {"configuration": "a model", "world_size": ranks, "rows_per_s": rows_per_s, "delays": DELAYS}
    figures["step_s"] = {"off": 0.5}
    if ranks > 1:
        figures["step_s"]["overlapped"] = 0.5 + exposed_s
        figures |= {"exposed_s": exposed_s, "link": {"bytes_per_s": 1e8, "latency_s": 1e-4}, "reduction": "ring"}
    return figures


def test_layouts_double_machines_and_devices():
    hosts = {"a": 4, "b": 4, "c": 4}
    names = [str(layout) for layout in usual_layouts(hosts)]
    assert names == ["1M1G", "1M2G", "1M4G", "2M1G", "2M4G", "3M1G", "3M4G"]
    assert [str(layout) for layout in usual_layouts({"a": 1, "b": 1})] == ["1M1G", "2M1G"]


def test_a_layout_takes_the_first_hosts_that_have_enough_slots():
    assert parse_layout("2M8G") == Layout(2, 8)
    assert Layout(2, 4).hosts({"a": 1, "b": 4, "c": 8, "d": 8}) == {"b": 4, "c": 4}
    with pytest.raises(UserError, match=r"--layout 2M8G: of 2 host\(s\) 1 have 8 slot\(s\) or more; expected 2"):
        Layout(2, 8).hosts({"a": 8, "b": 4})


@pytest.mark.parametrize("text", ["2M", "0M1G", "1M0G", "1m2g", "2x8", ""])
def test_what_is_no_layout_is_refused(text):
    with pytest.raises(UserError, match=f"--layout {text}: expected machines and devices of each, as in 2M8G"):
        parse_layout(text)


def test_layouts_run_in_turn_and_one_that_fails_is_left_out():
    ran, heard = [], []

    def run(layout: Layout) -> dict:
        ran.append(str(layout))
        if layout.ranks == 2:
            raise RunError("a cable was pulled")
        return answer(10.0 * len(ran))

    layouts = [Layout(1, 1), Layout(1, 2), Layout(1, 4)]
    measured = list(measure(layouts, 3, run, lambda *heard_of: heard.append(heard_of)))
    assert ran == ["1M1G", "1M2G", "1M4G"] * 3
    assert [(str(each.layout), each.median(lambda one: one["rows_per_s"])) for each in measured] == [
        ("1M1G", 40.0),  # of 10, 40 and 70
        ("1M4G", 60.0),
    ]
    assert [done for done, *_ in heard] == list(range(1, 10))
    assert isinstance(heard[1][2], RunError)


def test_speed_up_efficiency_and_price_follow():
    recipe = size_recipe("mini", [], rows=4, length=32)
    answers = {Layout(1, 1): answer(10.0), Layout(2, 1): answer(16.0, 0.125, ranks=2)}
    measured = measure(list(answers), 1, answers.__getitem__, lambda *_: None)
    table = results(list(measured), recipe, micro_batches=2, device_hour=1.5, currency="USD")
    alone, two = table["lines"]
    assert (alone["speed_up"], alone["efficiency"]) == (1.0, 1.0)
    assert (two["speed_up"], two["efficiency"], two["exposed_s"], two["step_s"]) == (1.6, 0.8, 0.125, 0.625)
    seconds = 1e9 / (16.0 * 32)
    assert two["price_per_billion_tokens"] == pytest.approx(2 * 1.5 * seconds / 3600)
    assert table["compute"]["forward_backward_s"] == pytest.approx(0.4)
    assert table["compute"]["flops_per_s"] == pytest.approx(step_flops(recipe) / 0.5)
    assert (table["world_size"], table["link"]["bytes_per_s"], table["reduction"]) == (2, 1e8, "ring")


def test_without_a_rank_alone_there_is_no_speed_up_and_without_machines_no_link():
    recipe = size_recipe("mini", [])
    measured = measure([Layout(1, 2)], 1, lambda _: answer(16.0, 0.1, ranks=2), lambda *_: None)
    table = results(list(measured), recipe, 1, None, "")
    assert table["lines"][0]["speed_up"] is None
    assert table["lines"][0]["price_per_billion_tokens"] is None
    assert "link" not in table
    assert "compute" not in table
