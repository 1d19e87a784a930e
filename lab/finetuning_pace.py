#!/usr/bin/env python3
"""How fast a task is fine-tuned: packed rows, rows padded to the maximum, and transformers, side by side.

python lab/finetuning_pace.py --data_dir GLUE/SST-2 --checkpoint C [--task sst2] [--threads 2]
python lab/finetuning_pace.py --data_dir SQUAD --checkpoint C --task squad            windows of questions and contexts
python lab/finetuning_pace.py --data_dir NER --checkpoint C --task ner                sentences whose words are tagged

A step has about 32 examples (windows): forward, backward, clipping and AdamW, and the making of its batch.
transformers, not for squad, groups examples of similar length (its LengthGroupedSampler) and pads each batch to its
longest example; each combination of float32 and bfloat16, eager and compiled is a contestant of its own. All fine-tune
the same checkpoint on the same token ids, with dropout. Contestants are processes (lab/rounds.py) that run in turn, in
rounds, one at a time; a line's figure is the median over rounds of the mean over a round's steps, its ratio the median
of each round's.
"""

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from itertools import count, product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.commands.shared.flags import add_overrides, require_least
from bert_horovod.errors import RunError
from bert_horovod.reporting.tables import lines
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.runtime.host import keep_freed_memory
from bert_horovod.runtime.quiet import import_tensorflow
from lab.compute import environment
from lab.peers.answering import answer
from lab.rounds import PROJECT, in_turn, ratio_of, reported, started

WARM_UP = 6  # steps, the first of which compile
EXAMPLES = 32  # of a step, about
PEER = PROJECT / "lab" / "peers" / "hugging_face_finetuning.py"
OURS = {"packed rows": {"packing": True}, "padded to the maximum": {"packing": False}}
SQUAD, NER = "squad", "ner"
COUNTED = {SQUAD: "windows", NER: "words"}  # of a step; of other tasks examples


def finetuning_of(shape: dict[str, Any]) -> Any:
    """What is fine-tuned, by a contestant's description or the flags."""
    from bert_horovod.finetuning.examples import Files
    from bert_horovod.finetuning.initialisation import Finetuning
    from bert_horovod.finetuning.kinds.kinds import kind_of_task

    data = kind_of_task(shape["task"]).read(shape["task"], Files(Path(shape["data_dir"])), {})
    return Finetuning(data, find_checkpoint(Path(shape["checkpoint"])))


def run_ours(shape: dict[str, Any]) -> None:
    """Be one of our contestants: for each number on standard input run so many steps, answer seconds an example."""
    keep_freed_memory()  # as `bert-horovod` does
    import_tensorflow()
    from bert_horovod.batches.positions import step_positions
    from bert_horovod.collectives.world import World
    from bert_horovod.costs.buckets import by_size
    from bert_horovod.model.forward import as_arrays
    from bert_horovod.runtime.devices import use_devices
    from bert_horovod.training.building import build_step
    from bert_horovod.training.inputs import step_inputs
    from bert_horovod.training.opening_state import first_state

    use_devices(0, 1, shape["threads"])
    overrides = [f"data.packing={str(shape['packing']).lower()}", f"numerics.precision={shape['precision']}"]
    overrides += shape["overrides"]
    with tempfile.TemporaryDirectory() as nowhere:
        job = finetuning_of(shape).job(Path(nowhere), overrides=overrides)
        state, _ = first_state(job, World())
    recipe, source = job.recipe, job.dataset.open(0, "train")
    plan = by_size(job.task.parameters(recipe.model), 1 << 30)
    step = build_step(recipe, job.task, state, World(), plan, 1)
    step.exchange.begin(1, recipe.phase[0].steps)
    batch, numbers, counted = recipe.phase[0].global_batch, count(), COUNTED.get(shape["task"], "examples")

    def one() -> float:
        ((positions, first_row),) = step_positions(next(numbers), batch, 0, 1, batch)
        rows = source.assemble(positions)
        counts = {name: float(number) for name, number in job.task.batch_counts(rows).items()}
        inputs = step_inputs(recipe, state.progress.step, {}, counts, 2e-5)
        result = step.start([as_arrays(rows)], [first_row], inputs).result()
        state.progress.count(result.finite, recipe.numerics)
        return counts[counted]

    answer(one)


def peer_python() -> str:
    """A Python with transformers: this one, or that of a virtual environment, which is made if it is not there."""
    if all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        return sys.executable
    return str(environment("hugging_face"))


def commands(
    shape: dict[str, Any], arguments: argparse.Namespace, tokens: Path, labels: int
) -> Iterator[tuple[str, list[str], None]]:
    """Name, command and variables (None: as a peer's) of each contestant."""
    for name, own in OURS.items():
        command = [sys.executable, str(Path(__file__).resolve()), "--contestant", json.dumps(shape | own)]
        yield name, command, None
    if arguments.task == SQUAD:
        return
    python = peer_python()
    for precision, compiled in product(("float32", "bfloat16"), (False, True)):
        own = {"precision": precision, "compiled": compiled, "tokens": str(tokens), "labels": labels}
        name = f"transformers, {precision}, {'compiled' if compiled else 'eager'}"
        yield name, [python, str(PEER), json.dumps(shape | own | {"examples": EXAMPLES})], None


def report(seconds_of: dict[str, list[float]], counted: str = "examples") -> str:
    """The table."""
    first = next(iter(seconds_of.values()))
    cells = [["contestant", f"{counted}/s", "packed rows are so many times as fast"]]
    for name, seconds in seconds_of.items():
        cells.append([name, f"{1 / statistics.median(seconds):,.1f}", f"{ratio_of(seconds, first):.2f} x"])
    return lines(cells)


def padded(source: Any) -> dict[str, np.ndarray]:
    """The examples of rows of one each, in the examples' order, as a peer pads them: ids, types, counts and labels.

    The labels of words are padded too, and -100 where there is none, which transformers' loss leaves out.
    """
    rows = source.assemble(np.arange(source.count))
    if "cls_positions" not in rows:  # tagged words
        rows = {name: array[np.argsort(source.members(np.arange(source.count))[:, 0])] for name, array in rows.items()}
        counts, labels = (
            np.count_nonzero(rows["sequence_ids"], axis=1),
            np.where(rows["weights"] > 0, rows["labels"], -100),
        )
        return {"ids": rows["input_ids"], "types": rows["token_type_ids"], "counts": counts, "labels": labels}
    ids, types = (source.by_item(rows[name][:, None]) for name in ("input_ids", "token_type_ids"))
    counts = source.by_item(np.count_nonzero(rows["sequence_ids"], axis=1)[:, None])
    return {"ids": ids, "types": types, "counts": counts, "labels": source.labels}


def describe(shape: dict[str, Any], path: Path) -> tuple[int, str]:
    """The number of labels and what the data are like; texts' token ids are written to `path` for the peer."""
    import_tensorflow()
    from bert_horovod.runtime.devices import use_devices

    use_devices(0, 1, shape["threads"])
    finetuning = finetuning_of(shape)
    packed = finetuning.job(Path("unused"), overrides=shape["overrides"])
    recipe, rows = packed.recipe, packed.dataset.open(0, "train")
    length = recipe.phase[0].sequence_length
    ours = f"{recipe.model.num_hidden_layers} layers of {recipe.model.hidden_size}, ours in {shape['precision']}"
    ours += f"; {shape['threads']} threads"
    if shape["task"] == SQUAD:
        windows = len(rows.windows.question)
        return 0, f"{SQUAD}, {windows:,} windows; packed {windows / rows.count:.2f} a row of {length}; {ours}"
    source = finetuning.job(Path("unused"), overrides=["data.packing=false"]).dataset.open(0, "train")
    tokens = padded(source)
    counts = tokens["counts"]
    np.savez(path, **{f"train_{name}": values for name, values in tokens.items()})
    examples = f"{len(counts):,} examples of {counts.mean():.1f} tokens in the mean, at most {length}"
    told = f"{shape['task']}, {examples}; packed {len(counts) / rows.count:.2f} a row of {length}; {ours}"
    return packed.task.configuration(recipe.model)["num_labels"], told


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="sst2", help="task of GLUE, squad or ner (default: %(default)s)")
    parser.add_argument("--data_dir", required=True, type=Path, help="the task's, as for bert-horovod finetune")
    parser.add_argument("--checkpoint", required=True, type=Path, help="Hugging Face BERT directory, or an output_dir")
    parser.add_argument("--threads", type=int, default=2, help="threads of each contestant (default: %(default)s)")
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"), help="ours")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="steps of a round (default: %(default)s)")
    add_overrides(parser, "execution.xla=off")
    arguments = parser.parse_args(argv)
    for flag in ("threads", "rounds", "steps"):
        require_least(f"--{flag}", getattr(arguments, flag))
    return arguments


@reported
def main() -> int:
    """Measure and print the table."""
    if sys.argv[1:2] == ["--contestant"]:
        run_ours(json.loads(sys.argv[2]))
        return 0
    arguments = parse()
    shape = {name: str(getattr(arguments, name).absolute()) for name in ("checkpoint", "data_dir")}
    shape |= {name: getattr(arguments, name) for name in ("task", "threads", "precision", "overrides")}
    with tempfile.TemporaryDirectory() as directory:
        tokens = Path(directory) / "tokens.npz"
        labels, described = describe(shape, tokens)
        with started(commands(shape, arguments, tokens, labels), lambda _: WARM_UP) as running:
            seconds = in_turn(running, arguments.rounds, lambda name, _: fmean(running[name].ask(arguments.steps)))
    if not seconds:
        return RunError.exit_code
    print(f"{described}\n{report(seconds, COUNTED.get(arguments.task, 'examples'))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
