"""The golden runs: twenty steps of toy models, whose losses and gradient norms lie beside this file.

    python -m tests.golden.runs one_rank accumulated ...                     prints what the runs give now
    horovodrun -np 2 python -m tests.golden.runs two_ranks ...               likewise, for runs of two ranks
    python -m tests.golden.runs --renew                                      writes all files anew; see README.md

Whatever a run would choose by measurement is fixed: buckets go by size, one thread adds, XLA is named.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from bert_horovod.collectives.world import World

HERE = Path(__file__).parent
STEPS = 20


class GoldenRun(NamedTuple):
    """One run, and how far its numbers may be from the file's where processor or libraries are others."""

    ranks: int
    band: float  # relative, of each loss and gradient norm
    sections: dict[str, dict[str, Any]]  # as of toy_recipe


def _run(ranks: int, micro_batch: int, band: float = 1e-5, xla: str = "off", **sections: dict[str, Any]) -> GoldenRun:
    execution = {"micro_batch": micro_batch, "xla": xla, "log_steps": 1, "threads": 1}
    return GoldenRun(ranks, band, {"execution": execution, **sections})


RUNS = {
    "one_rank": _run(1, 32),
    "two_ranks": _run(2, 16),
    "accumulated": _run(1, 8),  # K = 4
    "lamb": _run(1, 16, optimizer={"name": "lamb"}),
    "lans": _run(1, 16, optimizer={"name": "lans"}),
    "muon": _run(2, 16, optimizer={"name": "muon", "adamw_rate": 0.5}),
    "float16": _run(2, 8, 2e-3, numerics={"precision": "float16", "wire": "float16"}),
    "packed_pairs": _run(1, 32, objective={"pair": "sentence_order"}, phase={"sequence_length": 32}),
    "single_segments": _run(1, 32, objective={"pair": "none", "whole_word_masking": True}, data={"packing": False}),
    "modernbert": _run(
        1,
        16,
        model={"architecture": "modernbert", "num_hidden_layers": 4, "local_attention": 8},
        objective={"pair": "none", "masked_fraction": 0.3},
        phase={"hold": 0.4, "decay": "one_minus_sqrt"},
    ),
    "xla_elementwise": _run(1, 16, xla="elementwise"),
    "xla_layers": _run(2, 8, xla="layers"),
}


def surroundings() -> dict[str, str]:
    """What the last digits depend on: where all of it is equal, numbers must be equal too."""
    import tensorflow as tf

    return {
        "tensorflow": tf.__version__,
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "default"),
        "onednn_isa": os.environ.get("ONEDNN_MAX_CPU_ISA", "default"),
        "processor": _processor(),
    }


def golden_file(name: str) -> Path:
    """Where a run's numbers lie."""
    return HERE / f"{name}.txt"


def write_golden(name: str, lines: list[tuple[int, float, float]], surrounding: dict[str, str]) -> None:
    """Write the numbers of a run with as many digits as bring the same float64 back."""
    head = [f"# {key}: {value}" for key, value in surrounding.items()]
    rows = [f"{step} {loss!r} {norm!r}" for step, loss, norm in lines]
    golden_file(name).write_text("\n".join([*head, "# step loss gradient_norm", *rows]) + "\n", encoding="utf-8")


def read_golden(name: str) -> tuple[list[tuple[int, float, float]], dict[str, str]]:
    """The numbers of a run, and the surroundings that they were made in."""
    rows, surrounding = [], {}
    for line in golden_file(name).read_text(encoding="utf-8").splitlines():
        if line.startswith("# ") and ": " in line:
            key, value = line[2:].split(": ", 1)
            surrounding[key] = value
        elif not line.startswith("#"):
            step, loss, norm = line.split()
            rows.append((int(step), float(loss), float(norm)))
    return rows, surrounding


def train_all(world: "World", names: list[str], replay_steps: int = 0) -> list[dict[str, Any]]:
    """Train the runs of these names, all of as many ranks as there are: on rank 0 the numbers of each."""
    from bert_horovod.collectives.world import from_rank_0
    from bert_horovod.corpus.store import open_store
    from tests.toy_runs import metrics, train_recipe
    from tests.toys import SMALL_VOCABULARY, toy_recipe, write_toy_store

    runs = []
    with tempfile.TemporaryDirectory() as mine:
        directory = Path(from_rank_0(mine, world, "golden.directory"))
        if world.rank == 0:
            write_toy_store(directory / "store", held_out=0.1, vocabulary=SMALL_VOCABULARY)
        world.barrier()
        store = open_store(directory / "store")
        for name in names:
            run = RUNS[name]
            assert run.ranks == world.size, f"{name} is a run of {run.ranks} ranks, here are {world.size}"
            execution = run.sections["execution"] | {"replay_steps": replay_steps}
            recipe = toy_recipe(**run.sections | {"execution": execution})
            output_dir = train_recipe(recipe, store, directory / name, world)
            if world.rank == 0:
                rows = [(line["step"], line["loss"], line["gradient_norm"]) for line in metrics(output_dir)]
                runs.append({"name": name, "rows": rows, "surroundings": surroundings()})
        world.barrier()
    return runs


def main(names: list[str]) -> None:
    """train_all in this process; rank 0 prints a JSON object a run."""
    from bert_horovod.collectives.launched import launch
    from bert_horovod.collectives.starting import connect
    from bert_horovod.runtime.devices import use_devices

    world = connect(launch())
    use_devices(world.local_rank, world.local_size, 1)
    for run in train_all(world, names):
        print("GOLDEN " + json.dumps(run), flush=True)
    world.shutdown()


def run_now(names: list[str]) -> dict[str, tuple[list[tuple[int, float, float]], dict[str, str]]]:
    """Start the runs of these names, all of as many ranks, in processes of their own; as read_golden for each."""
    from tests.horovod_runs import run_script

    (ranks,) = {RUNS[name].ranks for name in names}
    done = run_script(ranks, "-m", "tests.golden.runs", *names)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = [json.loads(line.partition("GOLDEN ")[2]) for line in done.stdout.splitlines() if "GOLDEN " in line]
    assert [run["name"] for run in runs] == names, done.stdout + done.stderr
    return by_name(runs)


def by_name(found: list[dict[str, Any]]) -> dict[str, tuple[list[tuple[int, float, float]], dict[str, str]]]:
    """What train_all found, as read_golden for each run."""
    return {run["name"]: ([tuple(row) for row in run["rows"]], run["surroundings"]) for run in found}


def names_of(ranks: int) -> list[str]:
    """The runs of so many ranks."""
    return [name for name, run in RUNS.items() if run.ranks == ranks]


def _processor() -> str:
    """The processor's instruction sets that TensorFlow and oneDNN choose code by."""
    wanted = ("avx", "avx2", "fma", "f16c", "avx512", "amx", "asimd", "sve", "bf16")
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        flags = next((line.split(":", 1)[1].split() for line in file if line.startswith(("flags", "Features"))), [])
    return " ".join(sorted(flag for flag in flags if flag.startswith(wanted)))


if __name__ == "__main__":
    if sys.argv[1:] == ["--renew"]:
        for count in (1, 2):
            for name, (rows, surrounding) in run_now(names_of(count)).items():
                write_golden(name, rows, surrounding)
                print(f"wrote {golden_file(name)}")
    else:
        main(sys.argv[1:])
