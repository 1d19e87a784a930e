"""Plans for machines that are taken away, as tables on a terminal."""

import math
import shutil
from collections.abc import Sequence

from bert_horovod.costs.clusters import Prices
from bert_horovod.costs.losses import SpotPlan
from bert_horovod.reporting.plan_table import days
from bert_horovod.reporting.tables import lines

_HEADS = ("ranks", "hosts", "losses", "days", "device-hours", "save every", "best every", "best steps", "best days")


def spot_text(plans: Sequence[SpotPlan], share: float, hours_between_losses: float, prices: Prices | None) -> str:
    """A table for each phase: what is expected with the recipe's time between two saves, and with the best one.

    Args:
        plans: of each phase, by rising number of ranks.
        share: of the usual price.
        hours_between_losses: mean hours that a host stays.
        prices: the cluster's; None: not known.
    """
    priced = prices is not None and prices.device_hour >= 0
    currency = prices.currency if prices else ""
    parts = [
        f"\non hosts that are taken away after {hours_between_losses:g} h in the mean, for {share:.0%} of the price "
        "(expected values, Daly's formulas):"
    ]
    for phase in dict.fromkeys(plan.phase for plan in plans):
        rows = [(*_HEADS, *([f"cost {currency}".strip(), "usual cost"] if priced else []))]
        for plan in plans:
            if plan.phase == phase:
                cells = [str(plan.world_size), str(plan.hosts), _number(plan.losses), _days(plan.days)]
                cells += [_number(plan.device_hours), _minutes(plan.interval_s), _minutes(plan.daly_s)]
                cells += [str(plan.best_steps), _days(plan.best_days)]
                costs = [plan.price, plan.usual_price] if priced else []
                rows.append((*cells, *(_number(cost or 0.0) for cost in costs)))
        parts += [f"phase {phase}:", lines(rows, shutil.get_terminal_size().columns)]
    best = plans[-1]
    parts.append(
        f"for {best.world_size} rank(s): --set execution.checkpoint_steps={best.best_steps} "
        f"({_minutes(best.daly_s)} by Daly, {_minutes(best.young_s)} by Young)"
    )
    return "\n".join(parts)


def _days(number: float) -> str:
    return days(number) if math.isfinite(number) else "never"


def _number(number: float) -> str:
    return f"{number:,.4g}" if number < 1e4 else f"{number:,.0f}" if math.isfinite(number) else "-"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:,.3g} min" if seconds < 3600 else f"{seconds / 3600:,.3g} h"
