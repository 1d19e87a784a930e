"""Tables of measurements and of plans, and the picture of a plan."""

import dataclasses
from xml.etree import ElementTree

import pytest

from bert_horovod.costs.choices import Choice
from bert_horovod.costs.planner import plan_phase
from bert_horovod.reporting.plan_table import PARTS, PhaseAdvice, plan_svg
from bert_horovod.reporting.tables import ratio, table
from tests.costs.test_planner import DEVICE, HOP, recipe


def test_columns_without_a_value_are_left_out_and_missing_values_shown():
    rows = [
        {"configuration": "ours", "step_s": 0.5, "flops_per_s": 3e9, "share": 0.25, "peer": 2.0},
        {"configuration": "theirs", "step_s": 1.0, "memory_bytes": 3 << 29},
    ]
    heading, ours, theirs = table(rows, {"peer": ("rows/s vs theirs", ratio)}).splitlines()
    assert heading.split("  ")[0] == "configuration"
    assert "first step s" not in heading
    assert ours.split() == ["ours", "0.5", "3.0", "25.0%", "-", "2.00", "x"]
    assert theirs.split() == ["theirs", "1", "-", "-", "1.50", "-"]
    assert len(heading) == len(ours) == len(theirs)


@pytest.fixture
def advice():
    choices = [Choice("as it is", 0.5, 2.0), Choice("a", 0.7, 1.5, "rounds"), Choice("b", 0.9, 120.0, "learns less")]
    micro_batches = {"none": 4, "attention": 6, "layer": 0}
    return PhaseAdvice(0, 2, 2, 1, micro_batches, 0.6, choices, {"a": 1.0}, None)


def test_the_first_choice_that_reaches_the_efficiency_is_the_cheapest(advice):
    assert advice.describe(8) == [
        "the largest micro-batch that fits by execution.recompute: "
        "4 with 'none', 6 with 'attention', 0 with 'layer' (estimates; now 8)",
        "efficiency x speed-up is largest on 2 rank(s); until 1 rank(s) each one added "
        "brings at least 50% of the rows/s of a rank alone",
        "for an efficiency of 60% on 2 ranks, cheapest: a",
        "   50.0%  2 days  as it is",
        "   70.0%  1.5 days  a (rounds)",
        "   90.0%  120 days  b (learns less)",
        "a step on 2 ranks: 1 s with a; int8 pays over float16 at no rate of the link",
    ]


SVG = "{http://www.w3.org/2000/svg}"


def test_bars_are_shares_of_a_step_and_stay_inside():
    device = dataclasses.replace(DEVICE, spread=0.1, memory_bytes_per_s=1e10)
    plans = [plan_phase(recipe(), 0, ranks, device, HOP) for ranks in (1, 2, 4)]
    root = ElementTree.fromstring(plan_svg("a < b", plans))
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert "a < b" in texts
    assert all(str(plan.world_size) in texts and f"{plan.efficiency:.0%}" in texts for plan in plans)
    bars = [each.attrib for each in root.iter(f"{SVG}rect") if each.get("width") == "44"]
    assert len(bars) == 3 * len(PARTS)
    for i, plan in enumerate(plans):
        mine = bars[i * len(PARTS) : (i + 1) * len(PARTS)]
        heights = [float(each["height"]) for each in mine]
        assert sum(heights) == pytest.approx(180, abs=0.05)
        expected = [getattr(plan, name) / plan.step_s for name in PARTS]
        assert [height / 180 for height in heights] == pytest.approx(expected, abs=1e-3)
        assert max(float(each["y"]) + float(each["height"]) for each in mine) < float(root.get("height"))
