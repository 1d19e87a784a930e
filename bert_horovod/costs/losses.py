"""How long a training takes on machines that are taken away, and how often it should save.

J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps (2006); J. W. Young, A first
order approximation to the optimum checkpoint interval (1974). Losses come at random, independently of each other, also
while a run saves or starts again. All times are in seconds.
"""

import math
from dataclasses import dataclass

from bert_horovod.costs.clusters import Prices, bill
from bert_horovod.costs.planner import PhasePlan
from bert_horovod.recipe.sections import Recipe


@dataclass(frozen=True)
class Losses:
    """What machines that are taken away do to a run."""

    mean_s: float  # between two losses, of any machine of the run
    save_s: float  # training waits so long for a save
    restart_s: float  # from a loss to the next step, with the wait for another machine

    def expected_s(self, work_s: float, interval_s: float) -> float:
        """Expected time of a training of `work_s` that saves after every `interval_s` of it (Daly); may be inf."""
        mean = self.mean_s
        try:
            grown = math.exp(self.restart_s / mean) * math.expm1((interval_s + self.save_s) / mean)
        except OverflowError:
            return math.inf
        return mean * grown * work_s / interval_s

    @property
    def young_s(self) -> float:
        """The best time between two saves, if saves are short beside `mean_s`."""
        return math.sqrt(2 * self.save_s * self.mean_s)

    @property
    def daly_s(self) -> float:
        """The same, to a higher order."""
        ratio = self.save_s / (2 * self.mean_s)
        if ratio >= 1:
            return self.mean_s
        return self.young_s * (1 + math.sqrt(ratio) / 3 + ratio / 9) - self.save_s


@dataclass(frozen=True)
class SpotPlan:
    """A phase on machines that are taken away, on a number of ranks."""

    phase: int
    world_size: int
    hosts: int
    losses: float  # expected
    days: float  # expected
    device_hours: float
    price: float | None  # in the cluster's currency
    usual_price: float | None  # of the phase on machines that stay
    interval_s: float  # between two saves, of execution.checkpoint_steps
    best_days: float  # with best_steps
    best_steps: int  # execution.checkpoint_steps by Daly's formula
    young_s: float
    daly_s: float


def spot_plan(
    recipe: Recipe, plan: PhasePlan, hosts: int, losses: Losses, prices: Prices | None, share: float
) -> SpotPlan:
    """A phase's plan on `hosts` hosts that are taken away, for a share of the price of hosts that stay."""
    work_s, phase_steps = 86400 * plan.days, recipe.phase[plan.phase].steps
    steps = min(recipe.execution.checkpoint_steps, phase_steps)
    best_steps = max(1, min(round(losses.daly_s / plan.step_s), phase_steps))
    days = losses.expected_s(work_s, steps * plan.step_s) / 86400
    costs, usual = bill(prices, days, plan.world_size), bill(prices, plan.days, plan.world_size)
    return SpotPlan(
        phase=plan.phase,
        world_size=plan.world_size,
        hosts=hosts,
        losses=86400 * days / losses.mean_s,
        days=days,
        device_hours=costs.device_hours,
        price=None if costs.price is None else share * costs.price,
        usual_price=usual.price,
        interval_s=steps * plan.step_s,
        best_days=losses.expected_s(work_s, best_steps * plan.step_s) / 86400,
        best_steps=best_steps,
        young_s=losses.young_s,
        daly_s=losses.daly_s,
    )
