"""The picture of a plan: an XML document whose bars are parts of a step."""

import dataclasses
from xml.etree import ElementTree

import pytest

from bert_horovod.costs.planner import plan_phase
from bert_horovod.reporting.plan_plot import PARTS, plan_svg
from tests.costs.test_planner import DEVICE, HOP, recipe

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
