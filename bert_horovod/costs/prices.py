"""Device hours, price and energy of a training."""

from dataclasses import dataclass
from typing import NamedTuple

from bert_horovod.recipe.fields import setting


@dataclass(frozen=True)
class Prices:
    """`[costs]`; without a price or a power, the plan does not compute it."""

    device_hour: float = setting(-1.0, minimum=-1)  # -1: not known
    currency: str = setting("")
    device_w: float = setting(-1.0, minimum=-1)  # power under load, with its share of the host's; -1: not known
    kwh: float = setting(-1.0, minimum=-1)  # price of a kWh; -1: it is in device_hour


class Bill(NamedTuple):
    """Device hours, price and energy of a training."""

    device_hours: float
    price: float | None  # in the cluster's currency
    kwh: float | None


def bill(prices: Prices | None, days: float, ranks: int) -> Bill:
    """The bill of `days` days on `ranks` ranks; without prices, only device hours."""
    hours = 24 * days * ranks
    if prices is None:
        return Bill(hours, None, None)
    kwh = hours * prices.device_w / 1000 if prices.device_w >= 0 else None
    price = None
    if prices.device_hour >= 0:
        price = hours * prices.device_hour + (kwh * prices.kwh if kwh is not None and prices.kwh >= 0 else 0.0)
    return Bill(hours, price, kwh)
