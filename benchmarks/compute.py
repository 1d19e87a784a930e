#!/usr/bin/env python3
"""How fast the training step is on this machine, beside other programs' steps on the same shapes.

python benchmarks/compute.py                                             BERT-base, 16 x 128, bfloat16, all peers
python benchmarks/compute.py --shape mini --shape base-512 --precision float32 --precision bfloat16 --peer none

Peers are TensorFlow Model Garden and Hugging Face's model in compiled PyTorch, each in a virtual environment of its
own, made at first use. A contestant is a process that holds its model. It takes its description, a JSON object, as
its argument; for each number N on standard input it runs N steps and answers with their seconds, a JSON list on a
line. Contestants of a shape run in turn, in rounds, one at a time; a line's figures are medians over rounds, a ratio is
the median of each round's. All hold random rows without padding, one sequence each, with next-sentence pairs, dropout
and clipping; Hugging Face's optimizer is always AdamW. Every contestant of a shape is in memory at once: one that
dies is named on standard error and left out.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.batches.masks import full_row_slots
from bert_horovod.commands.shared.flags import add_overrides
from bert_horovod.errors import ReportedError, RunError
from bert_horovod.measuring.configuration import XLA_CHOICES, describe, size_recipe, step_flops
from bert_horovod.measuring.tables import ratio, table
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import recipe_to_table

PROJECT = Path(__file__).resolve().parents[1]
PEERS = {"model_garden": "Model Garden", "hugging_face": "Hugging Face"}
SHAPES = {  # model's size, rows, length
    "mini": ("mini", 64, 64),
    "base": ("base", 16, 128),
    "base-512": ("base", 4, 512),
    "large": ("large", 4, 128),
}
PRECISIONS = ("float32", "bfloat16", "float16")
WARM_UP = 3  # steps


class Contestant:
    """A process that holds its model and runs steps when asked.

    `environment`: its variables; None: this process's, without PYTHONPATH, because peers have packages of their own.
    """

    def __init__(self, name: str, command: list[str], environment: dict[str, str] | None = None) -> None:
        self.name = name
        self.rounds: list[float] = []  # median seconds of a step, each
        self.first_s = 0.0
        self.memory_bytes: int | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        if environment is None:
            environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment = environment | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            command,
            cwd=PROJECT,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    def ask(self, steps: int) -> list[float]:
        """Seconds of so many steps, now; raises RunError, with the process's last words, if it has died."""
        self.send(steps)
        return self.answer()

    def send(self, steps: int) -> None:
        """Let it run so many steps, without waiting for them."""
        with contextlib.suppress(BrokenPipeError):  # it has died: `answer` says so
            print(steps, file=self._process.stdin, flush=True)

    def answer(self) -> list[float]:
        """Wait for the seconds of the steps that `send` asked for; raises RunError as `ask`."""
        for line in self._process.stdout:  # libraries may print more
            if line.startswith("["):
                return json.loads(line)
        code = self._process.wait()
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip().splitlines()[-5:]
        raise RunError(f"{self.name} ended with {code}: " + ("\n  ".join(words) or "it said nothing (memory?)"))

    def note_memory(self) -> None:
        """Remember the process's peak memory, where the system tells it."""
        status = Path(f"/proc/{self._process.pid}/status")
        if status.exists():
            [peak] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")] or ["0 0"]
            self.memory_bytes = int(peak.split()[1]) * 1024 or None

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            try:
                stream.close()
            except BrokenPipeError:  # a number that it never read
                continue


def add_environments(parser: argparse.ArgumentParser) -> None:
    """Declare --environments, for `environment`."""
    parser.add_argument(
        "--environments",
        type=Path,
        default=PROJECT / "benchmarks" / ".environments",
        metavar="DIR",
        help="directory of peers' environments, made where this Python lacks what they need (default: %(default)s)",
    )


def environment(name: str, directory: Path) -> Path:
    """The Python of a peer's virtual environment, which is made if it is not there, or not with these requirements."""
    requirements = PROJECT / "benchmarks" / "peers" / f"{name}.txt"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    path, marker = directory / name, directory / f"{name}.complete"
    python = path / "bin" / "python"
    if not (marker.exists() and marker.read_text().strip() == digest and python.exists()):
        say(f"making {path}: pip install -r {requirements} (minutes)")
        marker.unlink(missing_ok=True)
        if path.is_symlink():
            path.unlink()
        elif path.exists():
            shutil.rmtree(path)
        directory.mkdir(parents=True, exist_ok=True)
        for command in (
            [sys.executable, "-m", "venv", str(path)],
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(requirements)],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                last = (done.stderr or done.stdout).strip().splitlines()[-1:]
                raise RunError(f"{' '.join(command)} failed: {''.join(last)}; mend that, or leave out with --peer")
        marker.write_text(digest + "\n")
    return python


def commands(recipes: dict[str, Recipe], peers: dict[str, Path], threads: int) -> Iterator[tuple[str, list[str]]]:
    """Name and command of each contestant: ours by XLA, their matrix products alone, peers by their Python."""
    ours = [sys.executable, "-m", "bert_horovod.measuring.step_time"]
    for xla, recipe in recipes.items():
        yield xla, [*ours, json.dumps({"recipe": recipe_to_table(recipe)})]
    yield "products", [*ours, json.dumps({"recipe": recipe_to_table(recipe), "products": True})]
    shape = {
        "model": dataclasses.asdict(recipe.model),
        "rows": recipe.execution.micro_batch,
        "length": recipe.phase[0].sequence_length,
        "slots": full_row_slots(recipe.objective, recipe.phase[0].sequence_length),
        "vocabulary": recipe.model.vocab_size,
        "precision": recipe.numerics.precision,
        "optimizer": recipe.optimizer.name,
        "threads": threads,
    }
    for name, python in peers.items():
        yield name, [str(python), str(PROJECT / "benchmarks" / "peers" / f"{name}.py"), json.dumps(shape)]


def compete(
    recipes: dict[str, Recipe], peers: dict[str, Path], threads: int, rounds: int, steps: int
) -> dict[str, Contestant]:
    """Run all contestants in turn; those that died are not in what is returned."""
    contestants: dict[str, Contestant] = {}
    try:
        for name, command in commands(recipes, peers, threads):
            contestants[name] = Contestant(name, command)
            seconds = ask(contestants, name, 1 if name == "products" else WARM_UP, "compiles")
            if seconds:
                contestants[name].first_s = seconds[0]
        for number in range(rounds):
            for name in list(contestants):
                seconds = ask(contestants, name, 1 if name == "products" else steps, f"round {number + 1}/{rounds}")
                if seconds:
                    contestants[name].rounds.append(statistics.median(seconds))
        for contestant in contestants.values():
            contestant.note_memory()
    finally:
        for contestant in contestants.values():
            contestant.close()
    return contestants


def ask(contestants: dict[str, Contestant], name: str, steps: int, what: str) -> list[float] | None:
    """A contestant's seconds of so many steps; None if it died, and then it is removed. `what`: said of it before."""
    say(f"{name}: {what}")
    with _Ticking(name):
        try:
            return contestants[name].ask(steps)
        except RunError as error:
            say(f"left out: {error}")
            contestants.pop(name).close()
            return None


class _Ticking:
    """Says each minute that something still runs."""

    def __init__(self, name: str) -> None:
        self._name, self._done = name, threading.Event()

    def __enter__(self) -> None:
        threading.Thread(target=self._tick, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._done.set()

    def _tick(self) -> None:
        minutes = 0
        while not self._done.wait(60):
            minutes += 1
            say(f"{self._name}: {minutes} min so far")


def results(recipes: dict[str, Recipe], contestants: dict[str, Contestant]) -> list[dict[str, Any]]:
    """A line of the table for each contestant but the products, which are our lines' share."""
    lines = []
    recipe = next(iter(recipes.values()))
    rows, length = recipe.execution.micro_batch, recipe.phase[0].sequence_length
    products = contestants.get("products")
    for name, contestant in contestants.items():
        if name == "products":
            continue
        seconds = statistics.median(contestant.rounds)
        line = {
            "step_s": seconds,
            "rows_per_s": rows / seconds,
            "tokens_per_s": rows * length / seconds,
            "memory_bytes": contestant.memory_bytes,
            "first_step_s": contestant.first_s,
        }
        if name in recipes:
            line["configuration"] = describe(recipes[name])
            line["flops_per_s"] = step_flops(recipe) / seconds
            line["share"] = _median_ratio(products, contestant) if products else None
            line |= {peer: _median_ratio(contestants[peer], contestant) for peer in PEERS if peer in contestants}
        else:
            rule = "adamw" if name == "hugging_face" else recipe.optimizer.name
            shape = describe(recipe).split(f", {recipe.optimizer.name}")[0]
            line["configuration"] = f"{PEERS[name]}: {shape}, {rule}"
        lines.append(line)
    return lines


def _median_ratio(one: Contestant, other: Contestant) -> float:
    """Seconds of one over seconds of the other, round by round."""
    return statistics.median(a / b for a, b in zip(one.rounds, other.rounds, strict=True))


def say(text: str) -> None:
    """Tell on standard error what goes on."""
    print(text, file=sys.stderr, flush=True)


class _Append(argparse.Action):
    """Collects a flag's values; the first replaces the default."""

    def __call__(self, parser: object, namespace: argparse.Namespace, value: str, option: str | None = None) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [value] if before is self.default else [*before, value])


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, choices, default in (
        ("shape", tuple(SHAPES), ["base"]),
        ("precision", PRECISIONS, ["bfloat16"]),
        ("xla", XLA_CHOICES, ["auto"]),
    ):
        parser.add_argument(
            f"--{flag}",
            choices=choices,
            action=_Append,
            default=default,
            help=f"repeatable (default: {' '.join(default)})",
        )
    parser.add_argument("--peer", choices=("all", "none", *PEERS), default="all", help="(default: %(default)s)")
    parser.add_argument("--optimizer", choices=("adamw", "lamb"), default="adamw", help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="steps of a contestant's round (default: %(default)s)")
    add_environments(parser)
    add_overrides(parser, "model.num_hidden_layers=2")
    arguments = parser.parse_args(argv)
    for flag in ("rounds", "steps"):
        if getattr(arguments, flag) < 1:
            parser.error(f"--{flag} {getattr(arguments, flag)}: expected at least 1")
    return arguments


def groups(arguments: argparse.Namespace) -> Iterator[dict[str, Recipe]]:
    """What is compared with each other, one shape in one precision: recipes by execution.xla.

    Raises UserError for a setting that cannot be.
    """
    for shape in arguments.shape:
        size, rows, length = SHAPES[shape]
        for precision in arguments.precision:
            settings = [f"numerics.precision={precision}", f"optimizer.name={arguments.optimizer}"]
            yield {
                xla: size_recipe(size, [*settings, f"execution.xla={xla}", *arguments.overrides], rows, length)
                for xla in arguments.xla
            }


def main() -> int:
    """Measure and print the table."""
    arguments = parse()
    threads = len(os.sched_getaffinity(0))
    columns = {peer: (f"rows/s vs {name}", ratio) for peer, name in PEERS.items()}
    lines = []
    try:
        asked = list(groups(arguments))  # before anything takes time
        names = {"all": list(PEERS), "none": []}.get(arguments.peer, [arguments.peer])
        peers = {name: environment(name, arguments.environments.absolute()) for name in names}
        for recipes in asked:
            say(describe(next(iter(recipes.values()))).rsplit(", XLA", 1)[0])
            measured = compete(recipes, peers, threads, arguments.rounds, arguments.steps)
            lines += results(recipes, measured)
            say(table(lines, columns))  # so far: the rest may fail
    except ReportedError as error:
        say(f"error: {error}")
        return error.exit_code
    print(table(lines, columns))
    return 0


if __name__ == "__main__":
    sys.exit(main())
