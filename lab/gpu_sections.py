"""What lab/gpu.py measures, each piece in a process of its own:

    python lab/gpu_sections.py '{"section": "step", "size": "base", ...}'

prints what it found, a JSON object, as its last line. "problems" in it are what is not as it should be.
"""

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.batches.masks import full_row_slots
from bert_horovod.cluster.doctor.facts import horovod_with
from bert_horovod.costs.derived import derive
from bert_horovod.costs.gpus import gpu_memory, gpu_peak
from bert_horovod.errors import RunError
from bert_horovod.measuring.configuration import describe, step_products
from bert_horovod.runtime.quiet import import_tensorflow
from lab.gpu_work import data_sheet_peak, rates, work_recipe

PRECISIONS = ("float32", "bfloat16", "float16")
KERNELS = 10
SAMPLES = 5  # of a matrix product
NOT_MEASURED = ("last layer", "head: pooler", "head: pairs")  # products of no weight in a step


def device(work: dict[str, Any]) -> dict[str, Any]:
    """What the machine is. `gpu` in the work: whether there must be a GPU."""
    import tensorflow as tf

    from bert_horovod.runtime.devices import gpu_details
    from bert_horovod.training.peak import precision_advice

    details = gpu_details()
    count = len(tf.config.list_physical_devices("GPU"))
    build = tf.sysconfig.get_build_info()
    name = details.get("device_name", "a GPU without a name") if details else None
    capability = details.get("compute_capability") if details else None
    sheet = gpu_memory(name) if name else None
    problems = []
    if work["gpu"] and not details:
        problems = [
            "TensorFlow sees no GPU: install tensorflow[and-cuda] and see that nvidia-smi lists one; or --smoke"
        ]
    return {
        "gpu": name,
        "gpus": count,
        "compute_capability": capability,
        "nvidia_smi": _nvidia_smi(),
        "data_sheet_memory_gib": sheet.gib if sheet else None,
        "data_sheet_flops_per_s": {
            f"{precision}{', TF32' if tf32 else ''}": gpu_peak(name, precision, tf32)
            for precision, tf32 in [("float32", True), *((precision, False) for precision in PRECISIONS)]
        }
        if name
        else None,
        "precision": step_precision(capability),
        "advice": {precision: precision_advice(precision) for precision in PRECISIONS},
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": sys.version.split()[0],
        "tensorflow": tf.__version__,
        "cuda": build.get("cuda_version"),  # that TensorFlow was built with
        "cudnn": build.get("cudnn_version"),
        "xla_flags": os.environ.get("XLA_FLAGS"),
        "horovod_with": horovod_with(),
        "problems": problems,
    }


def step_precision(capability: tuple[int, int] | None) -> str:
    """The narrow precision that a GPU accelerates; float32 where it accelerates none. A CPU's is bfloat16."""
    if capability is None or capability >= (8, 0):
        return "bfloat16"
    return "float16" if capability >= (7, 0) else "float32"


def correctness(work: dict[str, Any]) -> dict[str, Any]:
    """As gpu_correctness says; `precision`, `xla`: modes, `steps`, `layers`."""
    from lab.gpu_correctness import correctness as compare_devices

    return compare_devices(work["precision"], work["xla"], work["steps"], work["layers"])


def matrix(work: dict[str, Any]) -> dict[str, Any]:
    """Rates of a model's matrix products alone, forward and both gradients, by product; `shapes`, `precision`."""
    from bert_horovod.measuring.matrix import matrix_seconds, total_seconds

    shapes = {}
    for shape in work["shapes"]:
        recipe = work_recipe(shape | {"precision": work["precision"]})
        products = [product for product in step_products(recipe) if not product.name.startswith(NOT_MEASURED)]
        timed = matrix_seconds(products, work["precision"], SAMPLES)
        peak = data_sheet_peak(work["precision"])
        rate = 3 * sum(product.flops for product in products) / total_seconds(timed)
        shapes[f"{shape['size']} {shape['length']}"] = {
            "rows": shape["rows"],
            "flops_per_s": rate,
            "share": rate / peak if peak else None,
            "products": [
                {
                    "name": entry.product.name,
                    "m_n_k": [entry.product.m, entry.product.n, entry.product.k],
                    "batch": entry.product.batch,
                    **{
                        f"{kind}_flops_per_s": entry.product.flops / entry.product.count / getattr(entry, f"{kind}_s")
                        for kind in ("forward", "left", "right")
                    },
                }
                for entry in timed
            ],
        }
    return {"data_sheet_flops_per_s": data_sheet_peak(work["precision"]), "shapes": shapes}


def step(work: dict[str, Any]) -> dict[str, Any]:
    """Optimizer steps of one configuration, `steps` of them; that it does not fit into memory is a finding."""
    import tensorflow as tf

    from bert_horovod.measuring.step_time import TimedStep
    from bert_horovod.runtime.devices import has_gpu, peak_memory_bytes

    recipe = work_recipe(work)
    phase = recipe.phase[0]
    slots = full_row_slots(recipe.objective, phase.sequence_length)
    facts = {
        "configuration": f"{describe(recipe)}, recompute {recipe.execution.recompute}",
        "estimated_memory_bytes": derive(recipe, phase, 1, slots, 1, has_gpu()).memory_bytes,
    }
    try:
        timed = TimedStep(recipe)
        first = timed.warm_up()
        seconds = [timed.run() for _ in range(work["steps"])]
    except tf.errors.ResourceExhaustedError:
        return facts | {"out_of_memory": True}
    return facts | rates(recipe, seconds) | {"first_step_s": first, "memory_bytes": peak_memory_bytes()}


def kernels(work: dict[str, Any]) -> dict[str, Any]:
    """The kernels of one configuration's step that take longest; without a GPU, TensorFlow's operations."""
    from bert_horovod.measuring import operations
    from bert_horovod.measuring.step_time import TimedStep
    from bert_horovod.runtime.devices import has_gpu

    recipe = work_recipe(work)
    timed = TimedStep(recipe)
    timed.warm_up()
    seconds = [timed.run() for _ in range(work["steps"])]
    with tempfile.TemporaryDirectory() as directory:
        path = operations.trace(timed.run, Path(directory))
        listed = gpu_kernels(path) if has_gpu() else operations.operations(path)
    if not listed:
        raise RunError("the trace holds no kernels: is CUPTI installed, and may this user profile the GPU?")
    return {
        "configuration": describe(recipe),
        "step_s": statistics.median(seconds),
        "all_ms_per_step": sum(entry.ms_per_step for entry in listed),
        "kernels": [entry._asdict() for entry in listed[:KERNELS]],
    }


def peer(work: dict[str, Any]) -> dict[str, Any]:
    """As gpu_peer says; a step, `device`, `python`, `rounds`, `steps`."""
    from lab.gpu_peer import peer as compete

    return compete(work)


def ranks(work: dict[str, Any]) -> dict[str, Any]:
    """As gpu_ranks says; a step, `ranks`, `steps`."""
    from lab.gpu_ranks import scaling

    return scaling(work)


def keeping_up(work: dict[str, Any]) -> dict[str, Any]:
    """As gpu_input says; a step, `data_dir`, `seconds`."""
    from lab.gpu_input import keeping_up as time_input

    return time_input(work)


def gpu_kernels(path: Path) -> list:
    """The kernels and copies of a trace on GPUs by name, the longest first: measuring.operations.Operation."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    from bert_horovod.measuring.operations import STEPS, Operation

    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    durations: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for plane in space.planes:
        for line in plane.lines:
            if plane.name.startswith("/device:GPU") and "Stream" in line.name:  # other lines repeat these events
                for event in line.events:
                    name = plane.event_metadata[event.metadata_id].name
                    durations[name] += event.duration_ps / 1e9 / STEPS
                    calls[name] += 1
    operations = [Operation(name, duration, calls[name] / STEPS) for name, duration in durations.items()]
    return sorted(operations, key=lambda entry: -entry.ms_per_step)


def _nvidia_smi() -> list[str] | None:
    """A line for each GPU: name, driver, memory, highest clock, power limit; None without the program."""
    if shutil.which("nvidia-smi") is None:
        return None
    fields = "name,driver_version,memory.total,clocks.max.sm,power.limit"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout.splitlines()


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)


def strict(value: Any) -> Any:
    """The value as JSON can hold it: numbers that are not finite become words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: strict(entry) for key, entry in value.items()}
    return [strict(entry) for entry in value] if isinstance(value, (list, tuple)) else value


SECTIONS = {
    "device": device,
    "correctness": correctness,
    "step": step,
    "peer": peer,
    "ranks": ranks,
    "kernels": kernels,
    "input": keeping_up,
    "matrix": matrix,
}
OTHERS_COMPUTE = ("peer", "ranks")  # processes of their own use the GPU, this one must not


def main() -> None:
    """Do one piece of work."""
    work = json.loads(sys.argv[1])
    import_tensorflow()
    if work["section"] not in OTHERS_COMPUTE:
        from bert_horovod.runtime.devices import use_devices

        use_devices(0, 1, 0)
    print(json.dumps(strict(SECTIONS[work["section"]](work))), flush=True)


if __name__ == "__main__":
    main()
