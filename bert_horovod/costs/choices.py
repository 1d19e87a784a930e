"""Recommendations made from plans."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from bert_horovod.costs.derived import derive
from bert_horovod.costs.exchange_warnings import LEAST_GAIN
from bert_horovod.costs.exchanges import NUMBER_BYTES
from bert_horovod.costs.planner import Device, Network, PhasePlan, plan_phase
from bert_horovod.model.architectures.families import FAMILIES
from bert_horovod.recipe.sections import ExchangeMethod, Recipe

Methods = Mapping[str, type[ExchangeMethod]]  # by name; the first is the exchange of gradients

RECOMPUTE = ("none", "attention", "layer")  # execution.recompute, from the fastest
LEAST_WORTH = 0.5  # share of a single rank's rows/s that each added rank must bring
WORTH = 0.05  # share of a step: if more communication than that is exposed, a narrower wire pays
_NARROW = ("float16", "int8")
_RATES = (1e3, 1e13)  # bytes a second: the range in which a threshold is searched
_MOST_TIMES = 64  # largest factor of the global batch, and most steps between averages


@dataclasses.dataclass(frozen=True)
class Choice:
    """A change of the recipe, with its efficiency and time on the same ranks."""

    setting: str  # for people
    efficiency: float
    days: float  # for the same number of rows
    price: str = ""  # its disadvantage for learning, for people


def doubling(most: int) -> list[int]:
    """Numbers of ranks to look at: 1, 2, 4, ... and the most."""
    return [*(1 << i for i in range(most.bit_length()) if 1 << i < most), most]


def knee(plans: Sequence[PhasePlan]) -> int:
    """The world size, among the plans, at which efficiency times speed-up is largest."""
    return max(plans, key=lambda plan: plan.efficiency**2 * plan.world_size).world_size


def worth_until(plans: Sequence[PhasePlan]) -> int:
    """The largest world size up to which added ranks are worth their cost; 1 if none of the plans is.

    Up to it each added rank brings at least LEAST_WORTH of a single rank's rows/s. `plans`: in order of world size.
    """
    alone = plans[0].rows_per_s / plans[0].efficiency / plans[0].world_size
    planned = [(1, alone), *((plan.world_size, plan.rows_per_s) for plan in plans)]
    for (fewer, slower), (more, faster) in itertools.pairwise(planned):
        if faster - slower < LEAST_WORTH * alone * (more - fewer):
            return fewer
    return plans[-1].world_size


def largest_micro_batches(recipe: Recipe, phase: int, world_size: int, device: Device) -> dict[str, int] | None:
    """Rows of the largest micro-batch whose estimated memory fits, by execution.recompute; 0: none fits.

    None if the device's memory is not known.
    """
    memory_bytes, settings = device.allocatable_bytes, recipe.phase[phase]
    if memory_bytes is None:
        return None

    def fits(rows: int, recompute: str) -> bool:
        execution = dataclasses.replace(recipe.execution, micro_batch=rows, recompute=recompute)
        tried = dataclasses.replace(recipe, execution=execution)
        return derive(tried, settings, world_size, capability=device.capability).memory_bytes <= memory_bytes

    largest = {}
    for recompute in RECOMPUTE:
        low, high = 0, -(-settings.global_batch // world_size)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(middle, recompute) else (low, middle - 1)
        largest[recompute] = low
    return largest


def priced_choices(
    recipe: Recipe, phase: int, world_size: int, device: Device, network: Network, efficiency: float, methods: Methods
) -> list[Choice]:
    """The recipe, then changes of it, in order of their disadvantage for learning.

    First come rounded gradients, without and then with error feedback; then a larger global batch; then methods that
    change the updates, in the order of `methods`; last another model, whose layers share parameters. The factor of the
    batch, and the steps between averages, are the least power of two that reaches the wished efficiency, at most
    _MOST_TIMES.
    """

    def planned(setting: str, changed: Recipe, price: str, times: int = 1) -> Choice:
        plan = plan_phase(changed, phase, world_size, device, network)
        return Choice(setting, plan.efficiency, plan.days / times, price)

    def larger(times: int) -> Choice:
        price = f"{times} times as many rows a step, in {times} times fewer steps: learning rates must be found again"
        batch = times * recipe.phase[phase].global_batch
        return planned(f"phase.{phase}.global_batch = {batch}", _with_batch(recipe, phase, times), price, times)

    def rarer(method: type[ExchangeMethod], steps: int) -> Choice:
        changed = _offered(method, recipe, steps) or recipe
        return planned(_described(changed.exchange), changed, method.price)

    def least(choice: Callable[[int], Choice]) -> Choice:
        number = 2
        while (candidate := choice(number)).efficiency < efficiency and number < _MOST_TIMES:
            number *= 2
        return candidate

    offered = [planned("the recipe as it is", recipe, "")]
    gradients, width = isinstance(recipe.exchange, _gradients(methods)), NUMBER_BYTES[recipe.numerics.wire]
    for wire in [wire for wire in _NARROW if gradients and NUMBER_BYTES[wire] < width]:
        price = "rounds gradients more, and owes what rounding loses" if wire == "int8" else "rounds gradients"
        price = f"{price}; BERT-mini: as float32, to 0.0005 nats"
        offered.append(planned(*_narrow(recipe, wire, methods), price))
    offered.append(least(larger))
    for method in methods.values() if gradients else ():
        changed = _offered(method, recipe, 2)
        if changed is not None and _each_step(method, recipe):
            offered.append(planned(f'exchange.method = "{method.method}"', changed, method.price))
        elif changed is not None:
            offered.append(least(partial(rarer, method)))
    for family in FAMILIES.values() if recipe.whole else ():
        if (model := family.smaller(recipe.model)) is not None:
            setting = ", ".join(f"model.{name} = {getattr(model, name)}" for name in family.chosen_by)
            offered.append(planned(setting, dataclasses.replace(recipe, model=model), family.price))
    return offered


def _with_batch(recipe: Recipe, phase: int, times: int) -> Recipe:
    phases = list(recipe.phase)
    phases[phase] = dataclasses.replace(phases[phase], global_batch=times * phases[phase].global_batch)
    return dataclasses.replace(recipe, phase=tuple(phases))


def alternatives(recipe: Recipe, methods: Methods) -> dict[str, Recipe]:
    """Recipes that send less than float32 gradients, by the settings that a user would change.

    float16 and int8 gradients; further the recipe's own exchange.method if it is not the exchange of gradients, or else
    those methods that fit the recipe and make ranks equal after each step.
    """
    recipes = dict(_narrow(recipe, wire, methods) for wire in _NARROW)
    if not isinstance(recipe.exchange, _gradients(methods)):
        return recipes | {f'exchange.method = "{recipe.exchange.method}"': recipe}
    for method in methods.values():
        changed = _offered(method, recipe, 2)
        if changed is not None and _each_step(method, recipe):
            recipes[f'exchange.method = "{method.method}"'] = changed
    return recipes


def _described(exchange: ExchangeMethod) -> str:
    """The settings of [exchange] that a user would change: the method, and those that are not its defaults."""
    defaults, settings = dataclasses.asdict(type(exchange)()), dataclasses.asdict(exchange)
    changed = [f"exchange.{name} = {value}" for name, value in settings.items() if value != defaults[name]]
    return ", ".join([f'exchange.method = "{exchange.method}"', *changed])


def _gradients(methods: Methods) -> type[ExchangeMethod]:
    return next(iter(methods.values()))


def _narrow(recipe: Recipe, wire: str, methods: Methods) -> tuple[str, Recipe]:
    """The setting of a narrow wire, and the recipe with it and the exchange of gradients."""
    gradients = dataclasses.replace(recipe, exchange=_gradients(methods)())
    return f'numerics.wire = "{wire}"', _with_wire(gradients, wire)


def _each_step(method: type[ExchangeMethod], recipe: Recipe) -> bool:
    """Whether the method has no interval, in which ranks train alone, that a user would choose."""
    return method.offered(recipe, 2) == method.offered(recipe, 4)


def _offered(method: type[ExchangeMethod], recipe: Recipe, steps: int) -> Recipe | None:
    """The recipe with this method, as ExchangeMethod.offered; None too if it cannot train the model in parts."""
    changed = method.offered(recipe, steps) if method.price and (recipe.whole or method.grows) else None
    return None if changed is None else _with_wire(changed, changed.numerics.wire)


def int8_pays_below(
    recipe: Recipe, phase: int, world_size: int, device: Device, network: Network, methods: Methods
) -> float | None:
    """The link's rate, in bytes a second, below which int8 gradients pay in place of float16; None: they never pay.

    They pay if float16's exposed communication is more than WORTH of its step, and int8's step is shorter by
    LEAST_GAIN. The second condition is there because fewer bytes gain nothing if only latency is exposed. Share and
    latency of the link are those of `network`.
    """
    float16, int8 = (_narrow(recipe, wire, methods)[1] for wire in _NARROW)

    def pays(bytes_per_s: float) -> bool:
        link = dataclasses.replace(network, bytes_per_s=bytes_per_s)
        wide, narrow = (plan_phase(recipe, phase, world_size, device, link) for recipe in (float16, int8))
        return wide.exposed_s > WORTH * wide.step_s and narrow.step_s < (1 - LEAST_GAIN) * wide.step_s

    low, high = _RATES
    if world_size == 1 or not pays(low):
        return None
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if pays(middle) else (low, middle)
    return low


def _with_wire(recipe: Recipe, wire: str) -> Recipe:
    return dataclasses.replace(
        recipe,
        numerics=dataclasses.replace(recipe.numerics, wire=wire),
        execution=dataclasses.replace(recipe.execution, reduction="auto"),
    )
