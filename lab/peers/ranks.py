"""What peers of lab/scaling.py share: flags, words, and how a rank's steps are timed.

Each runs on every host, started by horovodrun, or alone; rank 0 prints one JSON object:

    {"step_s": an optimizer step, the median, "compute_s": the same without communication, in turn with it,
     "wire_bytes": what a rank sends of a step's gradients in a ring all-reduce}

A rank that is alone has nothing to communicate, and takes its steps as if it had never heard of other ranks.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # works from a checkout that is not installed

from bert_horovod.commands.shared.flags import add_overrides
from bert_horovod.errors import ReportedError
from bert_horovod.measuring.configuration import SIZES, size_recipe
from bert_horovod.recipe.sections import Recipe

WIRE_BYTES = {"float32": 4, "float16": 2, "powersgd": 4, "powersgd4": 4}  # of a number


def parse(description: str, wires: tuple[str, ...]) -> tuple[argparse.Namespace, Recipe]:
    """The flags, and the recipe that they describe."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(SIZES), default="small", help="(default: %(default)s)")
    parser.add_argument("--micro_batches", type=int, default=1, metavar="K", help="of a step (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="timed steps (default: %(default)s)")
    parser.add_argument("--wire", choices=wires, default=wires[0], help="wire of gradients (default: %(default)s)")
    parser.add_argument("--delay", type=Path, required=True, metavar="FILE", help="what lab/delayed.py measure printed")
    add_overrides(parser, "model.num_hidden_layers=2")
    arguments = parser.parse_args()
    try:
        return arguments, size_recipe(arguments.model, arguments.overrides)
    except ReportedError as error:
        parser.exit(error.exit_code, f"error: {error}\n")


def delays(arguments: argparse.Namespace) -> dict[str, float | list[float]]:
    """What --delay names."""
    return json.loads(arguments.delay.read_text())


def words(arguments: argparse.Namespace, recipe: Recipe, rank: int) -> list[np.ndarray]:
    """The ids of this rank's micro-batches, int64 [rows, length] each: as frequent as a text's, by Zipf's law."""
    random, size = np.random.default_rng(rank), recipe.model.vocab_size
    shape = arguments.micro_batches, recipe.execution.micro_batch, recipe.phase[0].sequence_length
    frequency = 1 / np.arange(1, size + 1)
    return list(random.choice(size, shape, p=frequency / frequency.sum()))


def report(
    arguments: argparse.Namespace,
    rank: int,
    size: int,
    numbers: int,
    step: Callable[[bool], None],
    barrier: Callable[[], None],
) -> None:
    """Time steps, and print the result on rank 0.

    `arguments`: of `parse`; `numbers`: how many are reduced; `step` does one, with communication or without.
    """
    seconds: dict[bool, list[float]] = {communicate: [] for communicate in ((False, True) if size > 1 else (False,))}
    for number in range(arguments.steps + 1):  # the first compiles, or settles buckets
        for communicate, taken in seconds.items():
            barrier()
            started = time.perf_counter()
            step(communicate)
            if number:
                taken.append(time.perf_counter() - started)
    barrier()
    if rank:
        return
    compute_s, step_s = (statistics.median(seconds.get(communicate, seconds[False])) for communicate in (False, True))
    payload = numbers * WIRE_BYTES[arguments.wire] if size > 1 else 0
    figures = {"step_s": step_s, "compute_s": compute_s, "wire_bytes": 2 * (size - 1) / size * payload}
    print(json.dumps(figures), flush=True)


def part_of(name: str, layers: int) -> int:
    """The place, in backward order, of the part to which a parameter of Hugging Face's name belongs.

    0 is the head, then come the layers from the last on, then, 1 + `layers`, the embeddings.
    """
    if name.startswith("bert.encoder.layer."):
        return layers - int(name.split(".")[3])
    return layers + 1 if name.startswith("bert.embeddings.") else 0


def backward_s(profile: dict[str, float | list[float]]) -> list[float]:
    """Seconds of backward's parts, in that order."""
    return [profile["head_s"], *profile["layers_s"], profile["embeddings_s"]]
