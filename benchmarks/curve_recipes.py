"""The curves of benchmarks/curves.py by their names: what each trains, is compared with and is kept under."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from bert_horovod.recipe.sections import WHAT_SECTIONS, Recipe
from bert_horovod.recipe_files.loading import load_recipe, recipe_from_table, recipe_to_table

RECIPES = Path(__file__).resolve().parents[1] / "run" / "recipes"
RANKS = 2
STEPS, ROWS = 2000, 64  # of all ranks
BASELINE = "float32"  # whose last loss the others are to reach
# What all curves share. beta_2 as in the published methods, so that a frozen second moment is not noise.
COMMON = (
    "optimizer.beta_2=0.999",
    f"execution.micro_batch={ROWS // RANKS}",
    "execution.evaluate_steps=80",
    "execution.checkpoint_steps=400",
    "execution.consistency_steps=400",
    "execution.keep_checkpoints=1",
)
# Curves that begin with trained parameters: the beginning of their names, and their steps of ROWS rows. The shorter
# ones compute in float32, so that a machine without bfloat16 instructions trains them as well.
CONTINUED, SHORTER = "continued, ", "continued 400, "
STEPS_AFTERWARDS = {CONTINUED: 1200, SHORTER: 400}
LENGTH = (f"phase.0.global_batch={ROWS}", f"phase.0.steps={STEPS}")  # of curves of bert-mini.toml
# A dense stage for what freezes the second moment: the loss stands still until step 500 or so.
DENSE = ("numerics.wire=float16", "exchange.dense=0.3")
# Four times the rows in a quarter of the steps.
LARGE_ROWS = 4 * ROWS
LARGE = (
    f"phase.0.global_batch={LARGE_ROWS}",
    f"phase.0.steps={STEPS // 4}",
    "execution.evaluate_steps=20",
    "execution.checkpoint_steps=100",
    "execution.consistency_steps=100",
)
ONEBIT_ADAM = ("exchange.method=onebit_adam", *DENSE)
LONGER_STEPS = 1400  # of a continued curve that is to make up for what it loses in 1200; as many dense ones
LONGER = ("exchange.method=onebit_adam", "numerics.wire=float16", "exchange.dense=0.2572")
CHUNKS = ("exchange.method=largest_chunks", "exchange.fraction=0.1")
# Nothing is frozen, so that the dense stage need not be longer than the warm-up.
SOONER_CHUNKS = (*CHUNKS, "numerics.wire=float16", "exchange.dense=0.05")
LOCAL = ("exchange.method=parameters", "exchange.interval=8")
LAMB = ("optimizer.name=lamb", "phase.0.learning_rate=4e-3")
FASTER = "phase.0.learning_rate=2e-3"  # the recipe's is 1e-3
# Rules for large batches, at LARGE_ROWS rows. CAME corrects no bias: after 100 steps a step is 10 times too long with
# its own beta_3 of 0.9999, 3 times with 0.999, 1.25 times with 0.99.
RULES = {
    "ADAMW": ("optimizer.name=adamw",),
    "LAMB": ("optimizer.name=lamb",),
    "LANS": ("optimizer.name=lans",),
    "CAME": ("optimizer.name=came", "optimizer.beta_3=0.999"),
    "CAME, beta_3 0.99": ("optimizer.name=came", "optimizer.beta_3=0.99"),
    "MERIT": ("optimizer.name=merit",),
}
# The search of their rates, with trained parameters to begin with.
RATES = {
    "ADAMW": ("5e-4", "1e-3", "2e-3", "4e-3", "8e-3"),
    "LAMB": ("2e-3", "4e-3", "8e-3", "1.6e-2", "3.2e-2"),
    "LANS": ("2e-3", "4e-3", "8e-3", "1.6e-2", "3.2e-2"),
    "CAME": ("6e-5", "1.2e-4", "2.5e-4", "5e-4", "1e-3", "2e-3", "4e-3"),
    "CAME, beta_3 0.99": ("2.5e-4", "5e-4", "1e-3"),
    "MERIT": ("1e-3", "2e-3", "4e-3", "8e-3", "1.6e-2"),
}
# What this search found best is trained with other seeds too.
BEST_RATE = {"ADAMW": "1e-3", "LAMB": "8e-3", "LANS": "8e-3", "CAME": "6e-5", "MERIT": "4e-3"}
# From fresh parameters. The rules that learned so are trained with other seeds too.
LEARNED = ("ADAMW", "LAMB", "LANS")
FRESH_RATES = {
    **{rule: (BEST_RATE[rule],) for rule in LEARNED},
    "CAME": ("6e-5", "2.5e-4"),
    "MERIT": ("2e-3", "4e-3"),
}
FRESH = ("phase.0.steps=1000", "execution.evaluate_steps=50", "execution.checkpoint_steps=500")


def large_name(rule: str, rate: str, seed: str = "") -> str:
    """The name of a curve at LARGE_ROWS rows; `seed`: a key of SEEDS."""
    return f"{rule}, {LARGE_ROWS} rows, rate {rate}{seed}"


def at_large_batch(rule: str, rate: str) -> tuple[str, ...]:
    """What a curve at LARGE_ROWS rows changes."""
    return (*RULES[rule], f"phase.0.learning_rate={rate}", *LARGE)


SEEDS = {"": (), ", seed 2": ("data.seed=2",), ", seed 3": ("data.seed=3",)}
# Curves from fresh parameters, by name, in the order in which they are trained: what a curve changes.
CURVES: dict[str, tuple[str, ...]] = {
    **{f"{BASELINE}{of}": seed for of, seed in SEEDS.items()},
    "float16": ("numerics.wire=float16",),
    "int8": ("numerics.wire=int8",),
    **{f"ALBERT-mini{of}": seed for of, seed in SEEDS.items()},
}
ALBERT = "ALBERT-mini"
# Curves that begin with the parameters of --start, by the beginning of their names.
AFTERWARDS: dict[str, dict[str, tuple[str, ...]]] = {
    CONTINUED: {
        BASELINE: (),
        "float16": ("numerics.wire=float16",),
        "int8": ("numerics.wire=int8",),
        "1-bit Adam": ONEBIT_ADAM,
        "0/1 Adam, 16": ("exchange.method=zero_one_adam", "exchange.interval=16", *DENSE),
        "DreamDDP, 8": ("exchange.method=dreamddp", "exchange.interval=8", "exchange.full_interval=80"),
        "float16, K = 4": ("numerics.wire=float16", FASTER, *LARGE),
        f"{BASELINE}, seed 2": ("data.seed=2",),
        "1-bit Adam, longer": LONGER,
    },
    SHORTER: {
        BASELINE: (),
        "local AdamW, 8": LOCAL,
        "MT-DAO, 40": ("exchange.method=mt_dao", "exchange.interval=40", "optimizer.beta_2=0.9999"),
        "largest chunks, 0.1": (*CHUNKS, *DENSE),
        "largest chunks, 0.1, dense 0.05": SOONER_CHUNKS,
        "1-bit Adam": ONEBIT_ADAM,
        "LAMB": LAMB,
        "1-bit LAMB": (*LAMB, "exchange.method=onebit_lamb", *DENSE),
        f"{BASELINE}, rate 2e-3": (FASTER,),
        "1-bit Adam, rate 2e-3": (*ONEBIT_ADAM, FASTER),
        "local AdamW, 8, rate 2e-3": (*LOCAL, FASTER),
        f"{BASELINE}, seed 2": ("data.seed=2",),
        "1-bit Adam, seed 2": (*ONEBIT_ADAM, "data.seed=2"),
        "largest chunks, 0.1, dense 0.05, seed 2": (*SOONER_CHUNKS, "data.seed=2"),
        "int8, seed 2": ("numerics.wire=int8", "data.seed=2"),
        "bucket clipping": ("optimizer.clipping=bucket",),
        **{
            large_name(rule, rate, of): (*at_large_batch(rule, rate), *seed)
            for rule, rates in RATES.items()
            for rate in rates
            for of, seed in SEEDS.items()
            if not seed or BEST_RATE.get(rule) == rate
        },
    },
}
# Curves of other recipes, by the beginning of their names; each is compared with the curve of the first of these names.
# They train for the same number of operations: see the recipes.
OF_OPERATIONS = {
    "8 layers": "bert-mini8.toml",
    "stacking, 8 layers": "bert-mini8-stacking.toml",
    "MSLT, 8 layers": "bert-mini8-mslt.toml",
}
CURVES |= {f"{name}{of}": seed for of, seed in SEEDS.items() for name in OF_OPERATIONS}
CURVES |= {
    large_name(rule, rate, of): (*at_large_batch(rule, rate), *FRESH, *seed)
    for rule, rates in FRESH_RATES.items()
    for rate in rates
    for of, seed in SEEDS.items()
    if not seed or rule in LEARNED
}


def steps_afterwards(begin: str, changes: tuple[str, ...]) -> int:
    """Steps of a curve that begins with trained parameters."""
    if changes == LONGER:
        return LONGER_STEPS
    return STEPS_AFTERWARDS[begin] // (4 if set(LARGE) <= set(changes) else 1)


CURVES |= {
    f"{begin}{name}": (
        *changes,
        f"phase.0.steps={steps_afterwards(begin, changes)}",
        *(("numerics.precision=float32",) if begin == SHORTER else ()),
    )
    for begin, curves in AFTERWARDS.items()
    for name, changes in curves.items()
}


def continuation(name: str) -> str:
    """The beginning of the name of a curve that begins with trained parameters; "" of others."""
    return next((begin for begin in STEPS_AFTERWARDS if name.startswith(begin)), "")


def parts_of(name: str) -> tuple[Path, tuple[str, ...]]:
    """The file of a curve's recipe, and what is set in it."""
    file = next((file for begin, file in OF_OPERATIONS.items() if name.startswith(begin)), None)
    if file:
        return RECIPES / file, (*COMMON, *CURVES[name])
    file = "albert-mini.toml" if name.startswith(ALBERT) else "bert-mini.toml"
    return RECIPES / file, (*LENGTH, *COMMON, *CURVES[name])


def recipe_of(name: str) -> Recipe:
    """The recipe of a curve."""
    return load_recipe(*parts_of(name))


def baseline_of(name: str) -> str:
    """The curve whose last loss a curve is to reach: it begins with the same parameters and has the same seed."""
    seed = next(seed for seed in reversed(SEEDS) if name.endswith(seed))
    if f", {LARGE_ROWS} rows" in name:
        return continuation(name) + large_name("ADAMW", BEST_RATE["ADAMW"], seed)
    grown = any(name.startswith(begin) for begin in OF_OPERATIONS)
    return f"{continuation(name)}{next(iter(OF_OPERATIONS)) if grown else BASELINE}{seed}"


def key_of(recipe: Recipe, store_hash: str, start_hash: str | None = None) -> str:
    """What a curve is kept under: settings that are defaults do not count, so that new ones change no key.

    `start_hash` is of the parameters that a continued curve begins with.
    """
    settings, defaults = (
        recipe_to_table(each) for each in (recipe, recipe_from_table({"phase": [{}] * len(recipe.phase)}))
    )
    for section, methods in (("optimizer", recipe.optimizer), ("exchange", recipe.exchange)):  # its own settings too
        defaults[section] = dataclasses.asdict(type(methods)()) | defaults[section]
    changed: dict[str, Any] = {}
    for section in WHAT_SECTIONS:
        pairs = zip(settings[section], defaults[section], strict=True) if section == "phase" else None
        pairs = pairs or [(settings[section], defaults[section])]
        changed[section] = [{key: a[key] for key in sorted(a) if a[key] != b[key]} for a, b in pairs]
    decided_by = [changed, store_hash, RANKS, recipe.execution.evaluate_rows, *([start_hash] if start_hash else [])]
    text = json.dumps(decided_by, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def timed_name(name: str) -> str:
    """The name under which a curve's step is timed: neither what it begins with, nor its seed, rate or stages count.

    At LARGE_ROWS rows the rule does not count either: it changes such a step by at most 2 % (docs/results.md).
    """
    if (rows := f"{LARGE_ROWS} rows") in name:
        return rows
    name = name.removeprefix(continuation(name))
    for begin in (", seed", ", rate", ", longer", ", dense"):
        name = name.partition(begin)[0]
    return name
