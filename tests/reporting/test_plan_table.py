"""Advice as people read it."""

import pytest

from bert_horovod.costs.choices import Choice
from bert_horovod.reporting.plan_table import PhaseAdvice


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
