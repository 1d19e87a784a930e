#!/usr/bin/env python3
"""What a training step asks of a GPU, counted on a machine without one.

python lab/gpu_trace.py --standin DIR                                  BERT-base, 16 rows x 128, compiled layers
python lab/gpu_trace.py --standin DIR --size base --size large --length 128 --length 512 --xla layers --xla off
python lab/gpu_trace.py --standin DIR --smoke                          a toy model

DIR holds stand-ins for the CUDA libraries (DIR/lib, and DIR/cuda with ptxas): TensorFlow finds a GPU on which kernels
do nothing, copies are carried out in the host's memory, and each call is told on standard error. So launches, copies,
waits and allocations are those of a GPU; times and values are not. Options that are repeated multiply. Each
configuration is a process of its own. docs/speed.md has results.
"""

import argparse
import ctypes
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.batches.masks import full_row_slots
from bert_horovod.costs.derived import derive
from bert_horovod.errors import ReportedError, RunError, UserError
from bert_horovod.measuring.configuration import SIZES, XLA_CHOICES, size_recipe
from bert_horovod.measuring.tables import lines
from bert_horovod.recipe.sections import Recipe
from bert_horovod.storage.writing import write_atomically

MODES = tuple(mode for mode in XLA_CHOICES if mode != "auto")
TOKENS = 2048  # of a micro-batch, unless --rows says otherwise
TOY = ["model.vocab_size=200", "model.hidden_size=64", "model.num_attention_heads=2", "model.intermediate_size=128"]
WARM_UP, STEPS = 2, 2
DEVICE_GB = 80
LAST_LINES = 15  # of what a failed process said
CALL = re.compile(r"\[fake\] (\w+)(?: (\d+))?|\[trace\] (\w+)")
COPIES = {"HtoD": "to_device", "DtoH": "to_host", "DtoD": "on_device"}
WAITS = ("cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize")  # the host waits for the device
PRODUCT = re.compile(r"cublas\w*(Gemm|gemm|LtMatmul$)")
CALLBACKS = ("PyFunc", "EagerPyFunc", "PyFuncStateless")  # operations that call Python
LAUNCHES = {
    "cuda": ("1", ["cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel"]),
    "cudart": ("12", ["cudaLaunchKernel", "cudaLaunchKernelExC", "cudaLaunchCooperativeKernel"]),
}


def make_counters(standin: Path, directory: Path) -> None:
    """Make libraries in the directory that count kernel launches and leave everything else to the stand-in's."""
    for name, (version, functions) in LAUNCHES.items():
        soname = f"lib{name}.so.{version}"
        # The stand-in's library gets another name of equal length, because the loader loads one library of a name only.
        hidden = soname.replace("lib", "own", 1)
        library = (standin / "lib" / soname).read_bytes()
        (directory / hidden).write_bytes(library.replace(soname.encode(), hidden.encode()))
        source = f"#include <stdatomic.h>\natomic_long {name}_launches;\n"
        source += "".join(f"int {function}() {{ {name}_launches++; return 0; }}\n" for function in functions)
        command = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{soname},-rpath,{directory},--no-as-needed"]
        command += ["-o", str(directory / soname), "-x", "c", "-", "-x", "none", str(directory / hidden)]
        subprocess.run(command, input=source, check=True, text=True)


def launches() -> int:
    """Kernels that this process has launched, those inside the library of matrix products excepted."""
    libraries = {name: ctypes.CDLL(f"lib{name}.so.{version}") for name, (version, _) in LAUNCHES.items()}
    return sum(ctypes.c_long.in_dll(library, f"{name}_launches").value for name, library in libraries.items())


def take_steps(work: dict[str, Any]) -> dict[str, Any]:
    """Take steps of one configuration, with marks between what the stand-in tells; returns what it does not tell."""
    import tensorflow as tf

    from bert_horovod.measuring.synthetic import SyntheticStep, synthetic_batch, synthetic_step
    from bert_horovod.runtime.devices import has_gpu, peak_memory_bytes, use_devices

    def made(layers: int) -> SyntheticStep:
        recipe = work_recipe(work, layers)
        slots = full_row_slots(recipe.objective, work["length"])
        batch = synthetic_batch(recipe.model, work["rows"], work["length"], slots, 1)
        return synthetic_step(recipe, batch, work["micro_batches"])

    def arguments(step: SyntheticStep) -> tuple:
        return step.batches[0], tf.constant(0, tf.uint64), step.inputs()

    def pass_launches(step: SyntheticStep) -> int:
        """Of forward and backward of a micro-batch."""
        graph = tf.function(step.step.forward_backward, autograph=False)
        for _ in range(2):
            before = launches()
            graph(*arguments(step))
            tf.test.experimental.sync_devices()
        return launches() - before

    use_devices(0, 1, 0)
    if not has_gpu():
        raise RunError("TensorFlow sees no GPU: was the stand-in built for this TensorFlow?")
    step = made(work["layers"])
    for _ in range(WARM_UP):
        step.run()
    tf.test.experimental.sync_devices()
    first_peak = peak_memory_bytes()
    tf.config.experimental.reset_memory_stats("GPU:0")
    programs = len(list(Path(work["dump"]).glob("*before_optimizations.txt")))
    mark("step")
    before = launches()
    for _ in range(STEPS):
        step.run()
    tf.test.experimental.sync_devices()
    counted = (launches() - before) / STEPS
    mark("end")
    graph = step.step._finish[False].get_concrete_function(*arguments(step)).graph.as_graph_def()
    nodes = itertools.chain(graph.node, *(function.node_def for function in graph.library.function))
    counts = {
        "launches": counted,
        "programs": programs,
        "callbacks": sum(node.op in CALLBACKS for node in nodes),
        "first_peak_bytes": first_peak,  # with what compilation takes
        "peak_bytes": peak_memory_bytes(),
    }
    return counts | {"layer_launches": (pass_launches(step) - pass_launches(made(work["layers"] - 1))) / 2}


def mark(name: str) -> None:
    """Write a mark between the calls that the stand-in tells."""
    os.write(2, f"[trace] {name}\n".encode())


def told(text: str) -> dict[str, Any]:
    """What the stand-in told of a step, and of all allocations; a copy's sizes: the most bytes in all come first."""
    calls = [(match[1] or match[3], int(match[2] or 0)) for match in CALL.finditer(text)]
    names = [name for name, _ in calls]
    allocated = sum(size for name, size in calls if name.startswith("cuMemAlloc"))
    calls = calls[names.index("step") : names.index("end")]
    counts_of_step: dict[str, Any] = {
        "allocated_bytes": allocated,
        "products": sum(bool(PRODUCT.match(name)) for name, _ in calls) / STEPS,
        "waits": sum(name in WAITS for name, _ in calls) / STEPS,
    }
    for kind, key in COPIES.items():
        counts = Counter(size for name, size in calls if name.startswith(f"cuMemcpy{kind}"))
        sizes = sorted(counts, key=lambda size, counts=counts: -size * counts[size])
        counts_of_step[key] = {
            "copies": counts.total() / STEPS,
            "bytes": sum(size * count for size, count in counts.items()) / STEPS,
            "sizes": {str(size): counts[size] / STEPS for size in sizes},
        }
    return counts_of_step


def work_recipe(work: dict[str, Any], layers: int) -> Recipe:
    """The recipe of a configuration with so many layers."""
    settings = [
        f"numerics.precision={work['precision']}",
        f"execution.xla={work['xla']}",
        f"execution.recompute={work['recompute']}",
        f"phase.0.global_batch={work['rows'] * work['micro_batches']}",
        *work["settings"],
        f"model.num_hidden_layers={layers}",
    ]
    return size_recipe(work["size"], settings, work["rows"], work["length"])


def trace(standin: Path, work: dict[str, Any]) -> dict[str, Any]:
    """Count one configuration's step, in a process of its own; raises RunError if that fails."""
    recipe = work_recipe(work, work["layers"])
    slots = full_row_slots(recipe.objective, work["length"])
    estimate = derive(recipe, recipe.phase[0], 1, slots, 1, True)
    with tempfile.TemporaryDirectory() as directory:
        make_counters(standin, Path(directory))
        cuda, dump = standin / "cuda" / "nvidia" / "cuda_nvcc", Path(directory) / "dump"
        # Without CUDA graphs, because the stand-in does not carry out copies inside them.
        flags = f"--xla_gpu_cuda_data_dir={cuda} --xla_gpu_enable_command_buffer= --xla_dump_to={dump}"
        environment = os.environ | {
            "LD_LIBRARY_PATH": f"{directory}:{standin / 'lib'}",
            "PATH": f"{cuda / 'bin'}:{os.environ['PATH']}",
            "XLA_FLAGS": flags,
            "CUDA_VISIBLE_DEVICES": "0",
            "FAKE_TRACE": "1",
            "FAKE_GB": str(DEVICE_GB),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        command = [sys.executable, __file__, "--child", json.dumps(work | {"dump": str(dump)})]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if "[fake]" not in line][-LAST_LINES:]
        raise RunError("\n".join([f"the process ended with {done.returncode}:", *words]))
    counts = json.loads(done.stdout.splitlines()[-1]) | told(done.stderr)
    return work | counts | {"estimated_bytes": estimate.memory_bytes}


def table(traces: list[dict[str, Any]]) -> str:
    """A line for each configuration; all columns but the last are of one step."""
    heading = ["model", "rows x length", "micro-batches", "XLA", "launches", "a layer and pass", "products"]
    heading += ["to device", "to host", "on device", "on device MB", "waits", "callbacks", "programs"]
    heading += ["peak GB", "estimate GB", "estimate / peak"]
    cells = [heading]
    for entry in traces:
        cells.append(
            [
                f"{entry['size']}, {entry['layers']} layers",
                f"{entry['rows']} x {entry['length']}",
                str(entry["micro_batches"]),
                entry["xla"] + ("" if entry["recompute"] == "none" else f", recompute {entry['recompute']}"),
                f"{entry['launches']:g}",
                f"{entry['layer_launches']:g}",
                f"{entry['products']:g}",
                *(f"{entry[kind]['copies']:g}" for kind in COPIES.values()),
                f"{entry['on_device']['bytes'] / 1e6:.1f}",
                f"{entry['waits']:g}",
                str(entry["callbacks"]),
                str(entry["programs"]),
                f"{entry['peak_bytes'] / 1e9:.2f}",
                f"{entry['estimated_bytes'] / 1e9:.2f}",
                f"{entry['estimated_bytes'] / entry['peak_bytes']:.2f}",
            ]
        )
    return lines(cells)


def works(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The configurations that the flags ask for."""
    if arguments.smoke:
        toy = {"size": "mini", "length": 32, "rows": 4, "layers": 2, "settings": TOY, "micro_batches": 1}
        return [toy | {"xla": arguments.xla[0], "precision": arguments.precision, "recompute": arguments.recompute}]
    series = []
    for size, length, micro_batches, xla in itertools.product(
        arguments.size, arguments.length, arguments.micro_batches, arguments.xla
    ):
        work = {"size": size, "length": length, "micro_batches": micro_batches, "xla": xla}
        work |= {"rows": arguments.rows or max(1, TOKENS // length), "settings": arguments.set}
        work |= {"precision": arguments.precision, "recompute": arguments.recompute}
        layers = arguments.layers or size_recipe(size, []).model.num_hidden_layers
        series.append(work | {"layers": layers})
    return series


def parse() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--standin", type=Path, metavar="DIR", help="stand-ins for the CUDA libraries")
    parser.add_argument("--size", action="append", choices=list(SIZES), help="repeatable (default: base)")
    parser.add_argument("--length", action="append", type=int, metavar="N", help="repeatable (default: 128)")
    parser.add_argument("--rows", type=int, metavar="N", help=f"rows of a micro-batch (default: {TOKENS} tokens)")
    parser.add_argument("--micro_batches", action="append", type=int, metavar="N", help="repeatable (default: 1)")
    parser.add_argument("--xla", action="append", choices=MODES, help="repeatable (default: layers)")
    parser.add_argument("--layers", type=int, metavar="N", help="2 or more (default: the size's)")
    parser.add_argument("--precision", default="bfloat16", help="(default: %(default)s)")
    parser.add_argument("--recompute", default="none", help="execution.recompute (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting; repeatable")
    parser.add_argument("--smoke", action="store_true", help="a toy model")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, copies by size too")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is None and arguments.standin is None:
        parser.error("--standin DIR is needed: the directory of the CUDA libraries' stand-ins")
    for name, default in (("size", "base"), ("length", 128), ("micro_batches", 1), ("xla", "layers")):
        setattr(arguments, name, getattr(arguments, name) or [default])
    for name, value, least in (
        *(("length", length, 8) for length in arguments.length),
        *(("micro_batches", number, 1) for number in arguments.micro_batches),
        ("rows", arguments.rows or 1, 1),
        ("layers", arguments.layers or 2, 2),
    ):
        if value < least:
            parser.error(f"--{name} {value}: expected {least} or more")
    return arguments


def main() -> int:
    """Count what the flags ask for, print the table."""
    arguments = parse()
    if arguments.child:
        print(json.dumps(take_steps(json.loads(arguments.child))), flush=True)
        return 0
    try:
        if not (arguments.standin / "lib" / "libcuda.so.1").exists():
            raise UserError(f"{arguments.standin} has no lib/libcuda.so.1: expected stand-ins for the CUDA libraries")
        traces = []
        for work in works(arguments):
            print(f"{work['size']}, {work['rows']} x {work['length']}, {work['xla']} ...", file=sys.stderr, flush=True)
            traces.append(trace(arguments.standin.absolute(), work))
            if arguments.json:
                write_atomically(arguments.json, json.dumps(traces, indent=1) + "\n")
    except ReportedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(table(traces))
    return 0


if __name__ == "__main__":
    sys.exit(main())
