#!/usr/bin/env python3
"""How fast the training step is on this machine, beside other programs' steps on the same shapes.

python lab/compute.py                                             BERT-base, 16 x 128, bfloat16, all peers
python lab/compute.py --shape mini --shape base-512 --precision float32 --precision bfloat16 --peer none
python lab/compute.py --shape mini --peer hugging_face --set model.architecture=modernbert --set objective.pair=none

Peers are TensorFlow Model Garden and Hugging Face's model in compiled PyTorch, each in a virtual environment of its
own, made at first use, or in --peer_python. A contestant is a process that holds its model (lab/rounds.py); its
argument is its description, a JSON object. Contestants of a shape run in turn, in rounds, one at a time; a line's
figures are medians over rounds, a ratio is the median of each round's. All hold random rows without padding, one
sequence each, with next-sentence pairs, dropout and clipping; Hugging Face's optimizer is always AdamW, its model the
class that a checkpoint of the recipe has there. Every
contestant of a shape is in memory at once: one that dies is named on standard error and left out.

--device cuda lets ours and Hugging Face's compute on the GPU, its attention without a padding mask, so that PyTorch may
take its flash attention.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.batches.text.mask_rates import full_row_slots
from bert_horovod.commands.shared.flags import add_overrides, require_least
from bert_horovod.errors import RunError, UserError
from bert_horovod.measuring.configuration import describe_recipe, size_recipe, step_flops
from bert_horovod.model.architectures.families import family_of
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe.settings import Execution
from bert_horovod.recipe_files.loading import recipe_to_table
from bert_horovod.reporting.tables import ratio, table
from lab.rounds import PROJECT, in_turn, peak_bytes, printed, ratio_of, reported, say, started

PEERS = {"model_garden": "Model Garden", "hugging_face": "Hugging Face"}
SHAPES = {  # model's size, rows, length
    "mini": ("mini", 64, 64),
    "base": ("base", 16, 128),
    "base-512": ("base", 4, 512),
    "large": ("large", 4, 128),
}
PRECISIONS = ("float32", "bfloat16", "float16")
XLA_CHOICES = next(entry for entry in dataclasses.fields(Execution) if entry.name == "xla").metadata["choices"]
WARM_UP = 3  # steps
ENVIRONMENTS = PROJECT / "lab" / ".environments"
HAS_TORCH = "import torch, transformers, json; print(json.dumps([torch.__version__, torch.cuda.is_available()]))"
# What may lead to TensorFlow's packages and CUDA libraries: PyTorch brings its own.
OF_TENSORFLOW = ("PYTHONPATH", "LD_LIBRARY_PATH", "XLA_FLAGS")


def environment(name: str) -> Path:
    """The Python of a peer's virtual environment, which is made if there is none with these requirements."""
    requirements = PROJECT / "lab" / "peers" / f"{name}.txt"
    path = ENVIRONMENTS / f"{name}-{hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]}"
    python, complete = path / "bin" / "python", path / "complete"
    if not complete.is_file():
        say(f"making {path}: pip install -r {requirements} (minutes)")
        printed([sys.executable, "-m", "venv", "--clear", path])
        printed([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements])
        complete.touch()
    return python


def torch_environment(python: str | Path, device: str) -> dict[str, str]:
    """The variables with which a Python has torch (with CUDA, for "cuda") and transformers; raises UserError."""
    alone = {name: value for name, value in os.environ.items() if name not in OF_TENSORFLOW}
    for variables in (alone, dict(os.environ)):
        command = [str(python), "-c", HAS_TORCH]
        asked = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
        if asked.returncode == 0:
            version, cuda = json.loads(asked.stdout.splitlines()[-1])
            if device == "cuda" and not cuda:
                raise UserError(f"torch {version} of {python} has no CUDA; --peer_python names one that has")
            return variables
    raise UserError(f"{python} has no torch and transformers; --peer_python names one that has")


def commands(
    recipes: dict[str, Recipe], peers: dict[str, Path], device: str, torch: dict[str, str] | None
) -> Iterator[tuple[str, list[str], dict[str, str] | None]]:
    """Name, command and variables of each contestant: ours by XLA mode, their matrix products alone, peers.

    `peers`: a Python each; `torch`: Hugging Face's variables; None: as others'.
    """
    ours, recipe = [sys.executable, "-m", "bert_horovod.measuring.bench"], next(iter(recipes.values()))
    for xla, each in recipes.items():
        yield xla, [*ours, json.dumps({"recipe": recipe_to_table(each)})], dict(os.environ)
    yield "products", [*ours, json.dumps({"recipe": recipe_to_table(recipe), "products": True})], dict(os.environ)
    shape = {
        "model": dataclasses.asdict(recipe.model),
        "config": family_of(recipe.model).configuration(recipe.model)
        # A ModernBERT of transformers then computes the head at masked positions alone, as ours does.
        | {"pad_token_id": recipe.model.padding_id or 0, "sparse_prediction": True},
        "pairs": recipe.objective.pairs,
        "rows": recipe.execution.micro_batch,
        "length": recipe.phase[0].sequence_length,
        "slots": full_row_slots(recipe, recipe.phase[0]).mean,
        "vocabulary": recipe.model.vocab_size,
        "precision": recipe.numerics.precision,
        "optimizer": recipe.optimizer.name,
        "threads": len(os.sched_getaffinity(0)),
        "device": device,
    }
    for name, python in peers.items():
        program = str(PROJECT / "lab" / "peers" / f"{name}.py")
        yield name, [str(python), program, json.dumps(shape)], torch if name == "hugging_face" else None


def results(
    recipes: dict[str, Recipe], seconds_of: dict[str, list[float]], told: dict[str, tuple[float, int | None]]
) -> list[dict[str, Any]]:
    """A line of the table for each contestant but the products, which are our lines' share.

    By contestant: `seconds_of` a step of each round; `told`, the seconds of its first step and its peak of memory.
    """
    lines = []
    recipe = next(iter(recipes.values()))
    rows, length = recipe.execution.micro_batch, recipe.phase[0].sequence_length
    products = seconds_of.get("products")
    for name, rounds in seconds_of.items():
        if name == "products":
            continue
        seconds, (first_s, peak) = statistics.median(rounds), told[name]
        line = {
            "step_s": seconds,
            "rows_per_s": rows / seconds,
            "tokens_per_s": rows * length / seconds,
            "memory_bytes": peak,
            "first_step_s": first_s,
        }
        if name in recipes:
            line["configuration"] = describe_recipe(recipes[name])
            line["flops_per_s"] = step_flops(recipe) / seconds
            line["share"] = ratio_of(products, rounds) if products else None
            line |= {peer: ratio_of(seconds_of[peer], rounds) for peer in PEERS if peer in seconds_of}
        else:
            rule = "adamw" if name == "hugging_face" else recipe.optimizer.name
            shape = describe_recipe(recipe).split(f", {recipe.optimizer.name}")[0]
            line["configuration"] = f"{PEERS[name]}: {shape}, {rule}"
        lines.append(line)
    return lines


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    repeatable = {"shape": (SHAPES, "base"), "precision": (PRECISIONS, "bfloat16"), "xla": (XLA_CHOICES, "auto")}
    for flag, (choices, usual) in repeatable.items():
        parser.add_argument(f"--{flag}", choices=tuple(choices), action="append", help=f"repeatable (default: {usual})")
    parser.add_argument("--peer", choices=("all", "none", *PEERS), default="all", help="(default: %(default)s)")
    parser.add_argument("--optimizer", choices=("adamw", "lamb"), default="adamw", help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="steps of a contestant's round (default: %(default)s)")
    parser.add_argument("--rows", type=int, help="rows of a micro-batch (default: the shape's)")
    parser.add_argument("--length", type=int, help="positions of a row (default: the shape's)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: %(default)s)")
    parser.add_argument("--peer_python", metavar="FILE", help="a Python with torch and transformers, for Hugging Face")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    add_overrides(parser, "model.num_hidden_layers=2")
    arguments = parser.parse_args(argv)
    for flag, (_, usual) in repeatable.items():
        setattr(arguments, flag, getattr(arguments, flag) or [usual])
    if arguments.device == "cuda" and arguments.peer != "hugging_face":
        parser.error("--device cuda: expected --peer hugging_face, the one that was written for GPUs too")
    for flag in ("rounds", "steps"):
        require_least(f"--{flag}", getattr(arguments, flag))
    return arguments


def groups(arguments: argparse.Namespace) -> Iterator[dict[str, Recipe]]:
    """What is compared with each other, one shape in one precision: recipes by execution.xla.

    Raises UserError for a setting that cannot be.
    """
    for shape in arguments.shape:
        size, rows, length = SHAPES[shape]
        rows, length = arguments.rows or rows, arguments.length or length
        for precision in arguments.precision:
            settings = [f"numerics.precision={precision}", f"optimizer.name={arguments.optimizer}"]
            yield {
                xla: size_recipe(size, [*settings, f"execution.xla={xla}", *arguments.overrides], rows, length)
                for xla in arguments.xla
            }


@reported
def main() -> int:
    """Measure and print the table."""
    arguments = parse()
    columns = {peer: (f"rows/s vs {name}", ratio) for peer, name in PEERS.items()}
    lines, torch = [], None
    asked = list(groups(arguments))  # before anything takes time
    names = {"all": list(PEERS), "none": []}.get(arguments.peer, [arguments.peer])
    other = {each.model.architecture for recipes in asked for each in recipes.values()} - {"bert"}
    if other and "model_garden" in names:
        raise UserError(f"model.architecture = {other.pop()!r}: Model Garden's is BERT; expected --peer hugging_face")
    given = {"hugging_face": Path(arguments.peer_python)} if arguments.peer_python else {}
    peers = {name: given.get(name) or environment(name) for name in names}
    if given:
        torch = torch_environment(arguments.peer_python, arguments.device)

    def step_s(name: str, _: int) -> float:
        return statistics.median(running[name].ask(1 if name == "products" else arguments.steps))

    for recipes in asked:
        say(describe_recipe(next(iter(recipes.values()))).rsplit(", XLA", 1)[0])
        contestants = commands(recipes, peers, arguments.device, torch)
        with started(contestants, lambda name: 1 if name == "products" else WARM_UP) as running:
            seconds = in_turn(running, arguments.rounds, step_s)
            told = {name: (running[name].first_s, peak_bytes(running[name].process.pid)) for name in seconds}
        lines += results(recipes, seconds, told)
        say(table(lines, columns))  # so far: the rest may fail
    print(json.dumps(lines) if arguments.json else table(lines, columns))
    return 0 if len(lines) == sum(len(recipes) + len(peers) for recipes in asked) else RunError.exit_code


if __name__ == "__main__":
    sys.exit(main())
