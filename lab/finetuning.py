#!/usr/bin/env python3
"""How fast a classifier is fine-tuned: packed rows, rows padded to the maximum, and transformers, side by side.

python lab/finetuning.py --data_dir GLUE/SST-2 --checkpoint C [--task sst2] [--threads 2]

A step has about 32 examples: forward, backward, clipping and AdamW, and the making of its batch. transformers groups
examples of similar length (its LengthGroupedSampler) and pads each batch to its longest example; each combination of
float32 and bfloat16, eager and compiled is a contestant of its own. All fine-tune the same checkpoint on the same token
ids, with dropout. Contestants are processes (see lab/compute.py) that run in turn, in rounds, one at a time; a
line's figure is the median over rounds of the mean over a round's steps, its ratio the median of each round's.
"""

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.errors import ReportedError, RunError
from bert_horovod.measuring.tables import lines
from bert_horovod.runtime.allocator import keep_freed_memory
from bert_horovod.runtime.quiet import import_tensorflow
from lab.compute import PROJECT, Contestant, add_environments, ask, environment, say

WARM_UP = 6  # steps, the first of which compile
EXAMPLES = 32  # of a step, about
PEER = PROJECT / "lab" / "peers" / "hugging_face_finetuning.py"
OURS = {"packed rows": {"packing": True}, "padded to the maximum": {"packing": False}}
PEERS = {  # precision of transformers' contestants, and whether they are compiled
    "all": [(precision, compiled) for precision in ("float32", "bfloat16") for compiled in (False, True)],
    "eager": [(precision, False) for precision in ("float32", "bfloat16")],
    "none": [],
}


def data_of(task: str, data_dir: Path, train_file: Path | None) -> Any:
    """The task's files."""
    from bert_horovod.finetuning.text_data import Files, glue_data

    return glue_data(task, Files(data_dir, train_file))


def run_ours(shape: dict[str, Any]) -> None:
    """Be one of our contestants: for each number on standard input run so many steps, answer seconds an example."""
    keep_freed_memory()  # as `bert-horovod` does
    import_tensorflow()
    from bert_horovod.batches.positions import step_positions
    from bert_horovod.collectives.world import World
    from bert_horovod.costs.buckets import by_size
    from bert_horovod.finetuning.classifier import TextFinetuning
    from bert_horovod.runtime.devices import use_devices
    from bert_horovod.training.inputs import step_inputs
    from bert_horovod.training.start import first_state
    from bert_horovod.training.step import as_tensors, build_step

    use_devices(0, 1, shape["threads"])
    overrides = [f"data.packing={str(shape['packing']).lower()}", f"numerics.precision={shape['precision']}"]
    data = data_of(shape["task"], Path(shape["data_dir"]), shape["train_file"] and Path(shape["train_file"]))
    finetuning = TextFinetuning(data, Path(shape["checkpoint"]))
    with tempfile.TemporaryDirectory() as nowhere:
        job = finetuning.job(Path(nowhere), overrides=overrides)
        state, _ = first_state(job, World())
    recipe, source = job.recipe, job.dataset.open(0, "train")
    plan = by_size(job.task.parameters(recipe.model), 1 << 30)
    step = build_step(recipe, job.task, state, World(), plan, 1)
    step.exchange.begin(1, recipe.phase[0].steps)
    batch, number = recipe.phase[0].global_batch, 0
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            started = time.perf_counter()
            ((positions, first_row),) = step_positions(number, batch, 0, 1, batch)
            rows = source.assemble(positions)
            counts = {name: float(count) for name, count in job.task.batch_counts(rows).items()}
            inputs = step_inputs(recipe, state.progress, counts, 2e-5, 1)
            result = step.run([as_tensors(rows)], [first_row], inputs, False)
            state.progress.count(result.finite, recipe.numerics)
            seconds.append((time.perf_counter() - started) / counts["examples"])
            number += 1
        print(json.dumps(seconds), flush=True)


def peer_python(environments: Path) -> str:
    """A Python with transformers: this one, or that of a virtual environment, which is made if it is not there."""
    if all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        return sys.executable
    return str(environment("hugging_face", environments))


def commands(arguments: argparse.Namespace, tokens: Path, labels: int) -> Iterator[tuple[str, list[str]]]:
    """Name and command of each contestant."""
    shape = {
        "task": arguments.task,
        "data_dir": str(arguments.data_dir.absolute()),
        "train_file": arguments.train_file and str(arguments.train_file.absolute()),
        "checkpoint": str(arguments.checkpoint.absolute()),
        "threads": arguments.threads,
        "precision": arguments.precision,
    }
    for name, own in OURS.items():
        yield name, [sys.executable, str(Path(__file__).resolve()), "--contestant", json.dumps(shape | own)]
    python = peer_python(arguments.environments) if arguments.peer != "none" else sys.executable
    for precision, compiled in PEERS[arguments.peer]:
        own = {"precision": precision, "compiled": compiled, "tokens": str(tokens), "labels": labels}
        own |= {"examples": EXAMPLES}
        name = f"transformers, {precision}, {'compiled' if compiled else 'eager'}"
        yield name, [python, str(PEER), json.dumps(shape | own)]


def compete(arguments: argparse.Namespace, tokens: Path, labels: int) -> dict[str, list[float]]:
    """Seconds an example of each contestant's rounds; those that died are left out."""
    contestants: dict[str, Contestant] = {}
    rounds: dict[str, list[float]] = {}
    try:
        for name, command in commands(arguments, tokens, labels):
            contestants[name] = Contestant(name, command)
            ask(contestants, name, WARM_UP, "compiles")
        for number in range(arguments.rounds):
            for name in list(contestants):
                seconds = ask(contestants, name, arguments.steps, f"round {number + 1}/{arguments.rounds}")
                if seconds:
                    rounds.setdefault(name, []).append(statistics.fmean(seconds))
    finally:
        for contestant in contestants.values():
            contestant.close()
    return {name: rounds[name] for name in contestants if len(rounds.get(name, [])) == arguments.rounds}


def report(seconds_of: dict[str, list[float]]) -> str:
    """The table."""
    first = next(iter(seconds_of.values()))
    cells = [["contestant", "examples/s", "packed rows are so many times as fast"]]
    for name, seconds in seconds_of.items():
        times = statistics.median(their / our for their, our in zip(seconds, first, strict=True))
        cells.append([name, f"{1 / statistics.median(seconds):,.1f}", f"{times:.2f} x"])
    return lines(cells)


def padded(source: Any) -> dict[str, np.ndarray]:
    """The examples of rows of one each, in the examples' order, as a peer pads them: ids, types, counts and labels."""
    rows = source.assemble(np.arange(source.count))
    ids, types = (source.by_example(rows[name][:, None]) for name in ("input_ids", "token_type_ids"))
    counts = source.by_example(np.count_nonzero(rows["sequence_ids"], axis=1)[:, None])
    return {"ids": ids, "types": types, "counts": counts, "labels": source.labels}


def write_tokens(arguments: argparse.Namespace, path: Path) -> tuple[int, str]:
    """Write the examples' token ids for the peer; returns the number of labels and what the data are like."""
    import_tensorflow()
    from bert_horovod.finetuning.classifier import PHASE, TextFinetuning
    from bert_horovod.finetuning.initialisation import first_settings
    from bert_horovod.runtime.devices import use_devices

    data = data_of(arguments.task, arguments.data_dir, arguments.train_file)
    use_devices(0, 1, arguments.threads)
    finetuning = TextFinetuning(data, arguments.checkpoint)
    length = first_settings(finetuning.model, PHASE).phase[0].sequence_length
    source = finetuning.job(Path("unused"), overrides=["data.packing=false"]).dataset.open(0, "train")
    tokens = padded(source)
    counts = tokens["counts"]
    np.savez(path, **{f"train_{name}": values for name, values in tokens.items()})
    packed = finetuning.job(Path("unused"))
    described = (
        f"{arguments.task}, {len(counts):,} examples of {counts.mean():.1f} tokens in the mean, at most {length}; "
        f"packed {len(counts) / packed.dataset.open(0, 'train').count:.2f} a row of {length}; "
        f"{packed.recipe.model.num_hidden_layers} layers of {packed.recipe.model.hidden_size}, ours in "
        f"{arguments.precision}; {arguments.threads} threads"
    )
    return max(1, len(data.format.labels)), described


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="sst2", help="task of GLUE (default: %(default)s)")
    parser.add_argument("--data_dir", required=True, type=Path, help="GLUE's directory of the task")
    parser.add_argument("--train_file", type=Path, help="instead of data_dir's")
    parser.add_argument("--checkpoint", required=True, type=Path, help="Hugging Face BERT directory, or an output_dir")
    parser.add_argument("--threads", type=int, default=2, help="threads of each contestant (default: %(default)s)")
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"), help="ours")
    parser.add_argument("--peer", default="all", choices=tuple(PEERS), help="transformers (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="steps of a round (default: %(default)s)")
    add_environments(parser)
    arguments = parser.parse_args(argv)
    for name in ("threads", "rounds", "steps"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} {getattr(arguments, name)}: expected at least 1")
    return arguments


def main() -> int:
    """Measure and print the table."""
    if sys.argv[1:2] == ["--contestant"]:
        run_ours(json.loads(sys.argv[2]))
        return 0
    arguments = parse()
    try:
        with tempfile.TemporaryDirectory() as directory:
            tokens = Path(directory) / "tokens.npz"
            labels, described = write_tokens(arguments, tokens)
            measured = compete(arguments, tokens, labels)
    except ReportedError as error:
        say(f"error: {error}")
        return error.exit_code
    if not measured:
        return RunError.exit_code
    print(f"{described}\n{report(measured)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
