"""What every exchange is tested for by test_promises.py: a line gives an exchange its recipe and its transcription."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from bert_horovod.recipe.sections import Recipe
from tests.exchange import published, transcribed
from tests.exchange.exchange_jobs import MOMENTS, PLAIN, RANKS, Tensors, exchange_recipe
from tests.exchange.moments import BROKEN, STEPS, moments_recipe
from tests.exchange.transcribed import WORDS, States

SGD = {"name": "sgd", "max_grad_norm": 0.0, "weight_decay": 0.0}
ADAMW = {"beta_2": 0.99, "epsilon": 1e-6, "weight_decay": 0.1, "max_grad_norm": 30.0}
DILOCO_ADAMW = ADAMW | {"epsilon": 1e-3}
MUON_INSIDE = DILOCO_ADAMW | {"name": "muon", "adamw_rate": 0.5}
STREAMING = {"interval": 12, "fragments": 3, "delay": 2}


class Promise(NamedTuple):
    """An exchange under test."""

    recipe: Recipe
    steps: int
    bad: int  # the step that is not finite on rank 1
    stops: tuple[int, ...]  # steps after which it is resumed: in each stage one
    transcribed: Callable[[int, int], States] | None = None  # of steps and `bad`; None: it is rounded on the wire
    tensors: Tensors = PLAIN
    micro_batches: int = 1
    counted: bool = True  # it sends by all-reduces alone, whose bytes can be counted
    slow: bool = False
    fused: bool = False  # the optimizer's update is compiled
    told: tuple[int, ...] = ()  # steps after which the exchange says something
    close: tuple[float, float] = (1e-3, 2e-5)  # to the transcription: of each number, and of a tensor's largest


def of_published(rule: Callable[..., list[dict]], *arguments: Any) -> Callable[[int, int], States]:
    """A rule of published.py, which has the errors of all ranks in one array, by step and rank."""

    def by_rank(steps: int, bad: int) -> States:
        del bad  # it is in the gradients
        return [
            [
                {name: each[rank] if name.startswith("error.") else each for name, each in state.items()}
                for rank in (0, 1)
            ]
            for state in rule(arguments[0], steps, *arguments[1:])
        ]

    return by_rank


def chunks(wire: str = "float32", optimizer: dict[str, Any] = SGD, **exchange: Any) -> Recipe:
    exchange = {"method": "largest_chunks", **exchange}
    return exchange_recipe(20, exchange=exchange, optimizer=optimizer, numerics={"wire": wire})


def low_rank(steps: int = 50, wire: str = "float32", optimizer: dict[str, Any] = SGD, **exchange: Any) -> Recipe:
    """PowerSGD without warm-up, of which a tenth is dense."""
    exchange = {"method": "powersgd", "rank": 2, "dense": 0.1} | exchange
    return exchange_recipe(steps, exchange=exchange, optimizer=optimizer, numerics={"wire": wire})


def dream(optimizer: dict[str, Any] = SGD, **exchange: Any) -> Recipe:
    """Parts of parameters in turn, all of them every 12 steps."""
    exchange = {"method": "dreamddp", "interval": 3, "full_interval": 12, **exchange}
    return exchange_recipe(216, exchange=exchange, optimizer=optimizer, execution={"checkpoint_steps": 12})


def outer(settings: dict[str, Any], optimizer: dict[str, Any] = DILOCO_ADAMW, **sections: Any) -> Recipe:
    """DiLoCo, in a phase of 50 steps."""
    return exchange_recipe(50, exchange={"method": "diloco", **settings}, optimizer=optimizer, **sections)


def frozen(method: str, rule: Callable[..., list[dict]], *arguments: Any, **exchange: Any) -> Promise:
    """A method that freezes v after 12 of 28 steps."""
    recipe = moments_recipe(method, **exchange)
    steps_of = of_published(rule, recipe, *arguments)
    fused = method == "onebit_lamb"
    return Promise(recipe, STEPS, BROKEN, (8, 20), steps_of, MOMENTS, counted=False, fused=fused)


WORDS_IN_CHUNKS = low_rank(words="largest_chunks")
CHUNKS = partial(transcribed.largest_chunks, dense_steps=5)

PROMISES = {
    "gradients": Promise(exchange_recipe(optimizer=SGD), 8, 5, (4,), transcribed.gradients),
    "gradients, int8": Promise(
        exchange_recipe(optimizer=SGD, numerics={"wire": "int8"}), 8, 5, (4,), counted=False, slow=True
    ),
    "largest_chunks": Promise(chunks(dense=0.25), 20, 11, (3, 9), CHUNKS, WORDS, told=(5,)),
    "largest_chunks, float16": Promise(chunks("float16", dense=0.25), 14, 11, (3, 9), None, WORDS, slow=True),
    "powersgd": Promise(
        low_rank(), 20, 9, (3, 5, 6, 7), partial(transcribed.powersgd, low_rank()), WORDS, close=(1e-3, 3e-4)
    ),
    "powersgd, words in chunks": Promise(
        WORDS_IN_CHUNKS, 12, 9, (6,), partial(transcribed.powersgd, WORDS_IN_CHUNKS), WORDS, close=(1e-3, 3e-4)
    ),
    "powersgd, float16 and int8": Promise(
        low_rank(wire="float16", words="int8", dense_wire="int8"), 12, 9, (3, 6), None, WORDS, counted=False
    ),
    "powersgd, int8": Promise(low_rank(wire="int8"), 12, 9, (3, 7), None, WORDS, counted=False, slow=True),
    "onebit_adam": frozen("onebit_adam", published.onebit_adam, 12),
    "onebit_lamb": frozen("onebit_lamb", published.onebit_lamb, 12),
    "parameters": Promise(
        exchange_recipe(exchange={"method": "parameters", "interval": 4}, optimizer=ADAMW),
        12,
        6,
        (4,),
        partial(transcribed.local_adamw, interval=4),
    ),
    "dreamddp": Promise(dream(), 18, 7, (12,), partial(transcribed.dreamddp, interval=3, full=12), told=(13,)),
    "dreamddp, three micro-batches": Promise(
        dream(), 18, 7, (12,), partial(transcribed.dreamddp, interval=3, full=12), micro_batches=3, slow=True
    ),
    "diloco": Promise(outer({"interval": 4}), 50, 7, (6,), partial(transcribed.diloco, ranks=RANKS, interval=4)),
    "diloco, fragments": Promise(
        outer(STREAMING), 50, 7, (9,), partial(transcribed.diloco, ranks=RANKS, **STREAMING), micro_batches=3
    ),
    "diloco, muon inside": Promise(
        outer(STREAMING, MUON_INSIDE), 50, 7, (9,), partial(transcribed.diloco, ranks=RANKS, muon=True, **STREAMING)
    ),
    "diloco, always sending": Promise(
        outer({"interval": 12, "fragments": 2, "delay": 6}),
        50,
        7,
        (9,),
        partial(transcribed.diloco, ranks=RANKS, interval=12, fragments=2, delay=6),
        slow=True,
    ),
    "diloco, int8": Promise(outer(STREAMING, numerics={"wire": "int8"}), 20, 7, (9,), counted=False),
}
