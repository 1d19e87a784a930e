"""Parts of lab/gpu.py that are neither a command of the package nor a script of their own, each in a process.

    python lab/gpu_parts.py resume '{"store": "...", ...}'

prints what it found, a JSON object, as its last line. "problems" in it are what is not as it should be.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.cluster.doctor.facts import horovod_with
from bert_horovod.corpus.store import open_store
from bert_horovod.measuring.configuration import size_recipe
from bert_horovod.recipe_files.loading import recipe_to_toml
from bert_horovod.runtime.host import processor_name
from bert_horovod.runtime.quiet import import_tensorflow
from bert_horovod.storage.reading import hash_file
from lab.curve_recipes import CURVES, kept, key_of
from lab.kept import read_lines
from lab.made_store import make_store
from lab.rounds import PROJECT, printed, program

DOCUMENTS = 400  # of a made store: 2 million tokens
AVERAGED = 5  # checkpoints
COMPARED = ("model.safetensors", "training/optimizer.safetensors")


def device(work: dict[str, Any]) -> dict[str, Any]:
    """What the machine is. `gpu` in the work: whether there must be a GPU."""
    import tensorflow as tf

    from bert_horovod.model.gpu_kernels.choice import why_not
    from bert_horovod.recipe.sections import Model
    from bert_horovod.runtime.devices import gpu_details, use_devices

    use_devices(0, 1, 0)
    details = gpu_details()
    name = details.get("device_name", "a GPU without a name") if details else None
    capability = details.get("compute_capability") if details else None
    precision = step_precision(capability)
    lacking = "TensorFlow sees no GPU: install tensorflow[and-cuda] and see that nvidia-smi lists one; or --smoke"
    return {
        "gpu": name,
        "gpus": len(tf.config.list_physical_devices("GPU")),
        "compute_capability": capability,
        "nvidia_smi": _nvidia_smi(),
        "precision": precision,
        "without_kernels": why_not(capability, Model(), (128, 512), precision, "layers"),
        "processor": processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "python": sys.version.split()[0],
        "tensorflow": tf.__version__,
        "cuda": tf.sysconfig.get_build_info().get("cuda_version"),  # that TensorFlow was built with
        "xla_flags": os.environ.get("XLA_FLAGS"),
        "horovod_with": horovod_with(),
        "problems": [lacking] if work["gpu"] and not details else [],
    }


def step_precision(capability: tuple[int, int] | None) -> str:
    """The narrow precision that a GPU accelerates; float32 where it accelerates none. A CPU's is bfloat16."""
    if capability is None or capability >= (8, 0):
        return "bfloat16"
    return "float16" if capability >= (7, 0) else "float32"


def correctness(work: dict[str, Any]) -> dict[str, Any]:
    """As gpu_correctness says; `precision`, `modes`, `steps`, `layers`."""
    from bert_horovod.runtime.devices import use_devices
    from lab.gpu_correctness import correctness as compare_devices

    use_devices(0, 1, 0)
    return compare_devices(work["precision"], work["modes"], work["steps"], work["layers"])


def resume(work: dict[str, Any]) -> dict[str, Any]:
    """Whether a resumed run equals itself before, bit for bit.

    A copy of a finished run loses its last checkpoint, as if the run had been killed before it, and resumes from the
    one after the half of the steps. On a GPU it reads XLA's choices that the first start wrote; two runs that tune by
    themselves may choose otherwise. `found`: also the seconds of both starts, and how many choices XLA has made.

    `store`: a token store; `settings`: of a run of BERT-mini; `steps`: of the run.
    """
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        steps = ["phase.0.steps", "execution.checkpoint_steps"], [work["steps"], work["steps"] // 2]
        settings = [f"{name}={value}" for name, value in zip(*steps, strict=True)]
        settings += ["execution.keep_checkpoints=2", f"model.vocab_size={len(open_store(work['store']).vocabulary)}"]
        recipe = size_recipe("mini", [*settings, *work["settings"]])
        (directory / "recipe.toml").write_text(recipe_to_toml(recipe), encoding="utf-8")
        runs = {name: directory / name for name in ("whole", "resumed")}
        seconds = [_pretrain(directory, work["store"], runs["whole"])]
        shutil.copytree(runs["whole"], runs["resumed"], symlinks=True)
        shutil.rmtree(_newest(runs["resumed"]))
        seconds.append(_pretrain(directory, work["store"], runs["resumed"]))
        hashes = {name: [hash_file(_newest(run) / file) for file in COMPARED] for name, run in runs.items()}
        kept = runs["whole"] / "autotuning.json"
        choices = len(json.loads(kept.read_text(encoding="utf-8"))["choices"]) if kept.exists() else 0
    differ = [file for file, one, other in zip(COMPARED, *hashes.values(), strict=True) if one != other]
    problems = [f"{file} differs after a resume" for file in differ]
    found = {"steps": work["steps"], "hashes": hashes, "seconds": seconds, "choices": choices}
    return found | {"problems": problems}


def _pretrain(directory: Path, store: str, output_dir: Path) -> float:
    """Train; returns the seconds that it took."""
    words = ["--recipe", directory / "recipe.toml", "--data_dir", store, "--output_dir", output_dir]
    began = time.monotonic()
    program("pretrain", *words, "--index_dir", directory / "index", gpu=True)
    return time.monotonic() - began


def _newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("step-*"))


def store(work: dict[str, Any]) -> dict[str, Any]:
    """Make a token store at `path`, of a `vocabulary` of so many words."""
    made = make_store(Path(work["path"]), work["vocabulary"], DOCUMENTS)
    return {"tokens": sum(len(shard.tokens) for shard in made.shards)}


def curve(work: dict[str, Any]) -> dict[str, Any]:
    """Train a curve of lab/curves.toml on the GPU, from where it was; `name`, `store`, and `work`, where runs are.

    `curve` is what lab/curves/ keeps of it, a line; `training_s` the seconds of all steps to each evaluation, without
    evaluations and checkpoints; `last` and `mean` what `evaluate` says of the run and of the mean of its last five
    checkpoints, where five are kept.
    """
    name, runs, data = work["name"], Path(work["work"]), ["--data_dir", work["store"]]
    recipe, ranks = CURVES[name].recipe, CURVES[name].ranks
    key = key_of(recipe, open_store(work["store"]).hash, None, ranks)
    words = [*data, "--work", runs, "--keep", "--gpu", "--curve", name]
    printed([sys.executable, PROJECT / "lab" / "curves.py", *words], gpu=True)
    run, found = runs / key, {"curve": kept()[key]}
    if not run.is_dir():  # it was kept before
        return found
    seconds, before, training_s = 0.0, 0, []
    for line in read_lines(run / "metrics.jsonl"):
        if "step_s" in line:
            seconds, before = seconds + line["step_s"] * (line["step"] - before), line["step"]
        if "held_out_mlm_loss" in line:
            training_s.append([line["step"], round(seconds, 2)])
    found |= {"training_s": training_s}
    if recipe.execution.keep_checkpoints >= AVERAGED:
        with tempfile.TemporaryDirectory() as scratch:
            mean, length = Path(scratch) / "mean", recipe.phase[-1].sequence_length
            program("average", run, "--last", AVERAGED, "--output", mean, gpu=True)
            for which, checkpoint in (("last", run), ("mean", mean)):
                words = [checkpoint, *data, "--sequence_length", length, "--json"]
                found |= {which: json.loads(program("evaluate", *words, gpu=True))}
    return found


def tests(_: dict[str, Any]) -> dict[str, Any]:
    """The tests that need a GPU: pytest's last line, and the lines of those that did not pass."""
    words = ["-m", "pytest", "-m", "gpu", "-q", "-n", "0", "-p", "no:cacheprovider", "tests/gpu"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=PROJECT, check=False)
    said = (done.stdout + done.stderr).strip().splitlines() or ["pytest said nothing"]
    told = [line for line in said if line.startswith(("FAILED", "ERROR", "SKIPPED"))]
    problems = [line for line in told if not line.startswith("SKIPPED")] or ([said[-1]] if done.returncode else [])
    return {"summary": said[-1], "told": told, "problems": problems}


def _nvidia_smi() -> list[str] | None:
    """A line for each GPU: name, driver, memory, highest clock, power limit; None without the program."""
    if shutil.which("nvidia-smi") is None:
        return None
    fields = "name,driver_version,memory.total,clocks.max.sm,power.limit"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout.splitlines()


PARTS = {each.__name__: each for each in (device, correctness, resume, store, curve, tests)}
OTHERS_COMPUTE = ("resume", "store", "curve", "tests")  # processes of their own use the GPU, this one must not


def main() -> None:
    """Do one piece of work."""
    part, work = sys.argv[1], json.loads(sys.argv[2])
    if part not in OTHERS_COMPUTE:
        import_tensorflow()
    print(json.dumps(PARTS[part](work)), flush=True)


if __name__ == "__main__":
    main()
