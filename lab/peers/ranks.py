"""What peers of lab/scaling.py share: flags, rows, and how a rank's steps are timed.

Each runs on every host, started by horovodrun, or alone; rank 0 prints one JSON object:

    {"step_s": an optimizer step, the median, "compute_s": the same without communication, in turn with it,
     "exposed_s": their difference, "rows_per_s": of all ranks, "bytes_reduced": payload of a step's gradients,
     "wire_bytes": what a rank sends of it in a ring all-reduce}

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

from bert_horovod.batches.text.mask_rates import full_row_slots
from bert_horovod.batches.text.rows import open_rows
from bert_horovod.commands.shared.flags import add_overrides
from bert_horovod.corpus.store import open_store
from bert_horovod.errors import ReportedError
from bert_horovod.measuring.configuration import SIZES, size_recipe
from bert_horovod.recipe.sections import Recipe

WIRE_BYTES = {"float32": 4, "float16": 2, "powersgd": 4, "powersgd4": 4}  # of a number
_LEAST = {"micro_batches": 1, "steps": 1}


def parse(description: str, wires: tuple[str, ...]) -> tuple[argparse.Namespace, Recipe]:
    """The flags, and the recipe that they describe."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(SIZES), default="small", help="(default: %(default)s)")
    parser.add_argument("--rows", type=int, metavar="N", help="rows of a micro-batch (default: the model's usual)")
    parser.add_argument("--length", type=int, metavar="N", help="positions of a row (default: the model's usual)")
    parser.add_argument(
        "--micro_batches", type=int, default=1, metavar="K", help="micro-batches of a step (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="timed steps (default: %(default)s)")
    parser.add_argument("--wire", choices=wires, default=wires[0], help="wire of gradients (default: %(default)s)")
    parser.add_argument(
        "--delay", type=Path, metavar="FILE", help="what lab/delayed.py measure printed: sleep, do not compute"
    )
    parser.add_argument("--data_dir", type=Path, metavar="STORE", help="token store of the rows (default: random ones)")
    add_overrides(parser, "model.num_hidden_layers=2")
    arguments = parser.parse_args()
    for flag, least in _LEAST.items():
        if getattr(arguments, flag) < least:
            parser.error(f"--{flag} {getattr(arguments, flag)}: expected at least {least}")
    try:
        overrides = ["data.packing=false", *arguments.overrides]
        return arguments, size_recipe(arguments.model, overrides, arguments.rows, arguments.length)
    except ReportedError as error:
        parser.exit(error.exit_code, f"error: {error}\n")


def delays(arguments: argparse.Namespace) -> dict[str, float | list[float]] | None:
    """What --delay names."""
    return json.loads(arguments.delay.read_text()) if arguments.delay else None


def micro_batches(arguments: argparse.Namespace, recipe: Recipe, rank: int) -> list[dict[str, np.ndarray]]:
    """This rank's micro-batches of a step, in the format of batches.text.rows.Rows.assemble; one sequence a row."""
    count, rows = arguments.micro_batches, recipe.execution.micro_batch
    if arguments.data_dir is None:
        return [random_batch(recipe, rank * count + k) for k in range(count)]
    store = open_rows(open_store(arguments.data_dir), recipe, 0, "train")
    first = rank * count * rows
    return [store.assemble(np.arange(first + k * rows, first + (k + 1) * rows) % store.count) for k in range(count)]


def random_batch(recipe: Recipe, seed: int) -> dict[str, np.ndarray]:
    """Full rows of one sequence each, whose words are as frequent as those of a text: by Zipf's law."""
    random = np.random.default_rng(seed)
    rows, length = recipe.execution.micro_batch, recipe.phase[0].sequence_length
    slots = full_row_slots(recipe, recipe.phase[0]).mean
    frequency = 1 / np.arange(1, recipe.model.vocab_size + 1)

    def repeated(row: np.ndarray) -> np.ndarray:
        return np.tile(row.astype(np.int32), (rows, 1))

    words = random.choice(recipe.model.vocab_size, (rows, length), p=frequency / frequency.sum()).astype(np.int32)
    positions = np.arange(slots) * length // slots
    return {
        "input_ids": words,
        "token_type_ids": repeated((np.arange(length) > length // 2) & (recipe.model.type_vocab_size > 1)),
        "position_ids": repeated(np.arange(length)),
        "sequence_ids": repeated(np.ones(length)),
        "masked_positions": repeated(positions),
        "masked_ids": words[:, positions],
        "masked_weights": np.ones((rows, slots), np.float32),
        "sequence_starts": repeated(np.zeros(1)),
        "next_sentence_labels": random.integers(0, 2, (rows, 1), np.int32),
        "sequence_weights": np.ones((rows, 1), np.float32),
    }


def report(
    arguments: argparse.Namespace,
    recipe: Recipe,
    rank: int,
    size: int,
    numbers: int,
    step: Callable[[bool], None],
    barrier: Callable[[], None],
) -> None:
    """Time steps, and print the result on rank 0.

    `arguments`, `recipe`: of `parse`; `numbers`: how many are reduced; `step` does one, with communication or without.
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
    figures = {
        "step_s": step_s,
        "compute_s": compute_s,
        "exposed_s": step_s - compute_s,
        "rows_per_s": recipe.execution.micro_batch * arguments.micro_batches * size / step_s,
        "bytes_reduced": payload,
        "wire_bytes": 2 * (size - 1) / size * payload,
    }
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
