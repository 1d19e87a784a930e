#!/usr/bin/env python3
"""What one GPU makes of the training step: correctness first, then speed and memory, within eight minutes.

python lab/gpu.py --output gpu.json                       all of it
python lab/gpu.py --output gpu.json --only correctness    one section
python lab/gpu.py --smoke --output gpu.json               toy sizes, with or without a GPU

Each piece of work is a process of its own: a command of `bert-horovod bench`, a script of lab/ or a part of
lab/gpu_parts.py. So one that fails leaves the others alone and a memory peak is one configuration's. The most valuable
come first; what the budget leaves no time for is skipped. The output file is written anew after each piece, so that a
command that is interrupted keeps what it had. docs/gpu.md says how to read it. Neither Horovod nor tensorflow-text is
needed. Exit code: 0, or 1 where anything failed.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.costs.derived import derive
from bert_horovod.errors import ReportedError
from bert_horovod.measuring.configuration import size_recipe
from bert_horovod.reporting.tables import lines
from bert_horovod.runtime.host import OUT_OF_MEMORY
from bert_horovod.storage.writing import write_atomically
from lab.rounds import PROJECT, say

VERSION = 3  # of the output file
BUDGET_S = 480.0
LAST_LINES = 8  # of what a failed process said
SECTIONS = ("device", "kernels", "correctness", "step", "resume", "peer", "operations", "input", "ranks")
SHAPES = [("base", 128, 128), ("large", 128, 64), ("base", 512, 32), ("large", 512, 16)]  # size, length, rows
NO_ATTENTION_DROPOUT = "model.attention_probs_dropout_prob=0"  # as all modern recipes have
TOY = ["model.vocab_size=200", "model.hidden_size=64", "model.num_hidden_layers=1", "model.intermediate_size=128"]
BENCH = ["-m", "bert_horovod", "bench"]
CUBLAS_ALONE = (
    "--xla_gpu_enable_triton_gemm=false"  # else XLA compiles products of its own and times them beside cuBLAS's
)


class Job(NamedTuple):
    """A process's work: it prints what it found, JSON, as its last line."""

    section: str
    name: str
    command: list[str]  # behind the Python
    least_s: float = 20.0  # with less time left it is not begun
    limit_s: float = 120.0  # then it is ended
    recipe: Any = None  # of a step: whose memory is estimated
    capability: tuple[int, int] | None = None  # of the GPU, for the estimate
    xla_flags: str = ""  # beside those of XLA_FLAGS


def part(name: str, work: dict[str, Any]) -> list[str]:
    """The command of a part of lab/gpu_parts.py."""
    return [str(PROJECT / "lab" / "gpu_parts.py"), name, json.dumps(work)]


def batch(length: int, rows: int) -> list[str]:
    """The settings of a step of one micro-batch."""
    return [f"phase.0.sequence_length={length}", f"execution.micro_batch={rows}", f"phase.0.global_batch={rows}"]


def step_job(
    size: str, length: int, rows: int, settings: list[str], device: dict[str, Any], steps: int = 20, xla_flags: str = ""
) -> Job:
    """Optimizer steps of a size of measuring.configuration, one micro-batch each."""
    all_settings = [f"numerics.precision={device['precision']}", *batch(length, rows), *settings]
    words = ["--model", size, "--steps", str(steps), "--json"]
    words += [word for each in all_settings for word in ("--set", each)]
    recipe = size_recipe(size, all_settings)
    kernels = not device["without_kernels"] and recipe.execution.kernels != "xla"
    told = [each for each in settings if each.startswith("execution") or each == NO_ATTENTION_DROPOUT]
    told = ", ".join(each.rpartition(".")[2].replace("=", " ") for each in told)
    name = f"{size} {length}, {rows} rows{', ' + told if told else ''}{', kernels' if kernels else ''}"
    return Job(
        "step",
        name + (", cuBLAS alone" if xla_flags == CUBLAS_ALONE else ""),
        [*BENCH, "step", *words],
        limit_s=240.0,  # XLA's search for the fastest products may take two minutes
        recipe=recipe,
        capability=tuple(device["compute_capability"] or ()) or None,
        xla_flags=xla_flags,
    )


def jobs(device: dict[str, Any], arguments: argparse.Namespace, scratch: Path) -> list[Job]:
    """All work after the device's facts, the most valuable first; in toy sizes with --smoke.

    With 16 fast cores about 25 s are expected of a step (most of it imports, tracing and compiling), 100 s of kernels,
    40 s of a precision's correctness, 80 s of resume, 50 s of a peer of BERT-base and 75 s of BERT-large.
    """
    precisions = ("bfloat16", "float16", "float32")
    shapes, steps, layers, toy = SHAPES, 20, 2, []
    if arguments.smoke:
        shapes, precisions, steps, layers, toy = [("mini", 16, 4)], ("float32",), 3, 1, [*TOY, "execution.xla=off"]
    modes = ["triton", "layers", "off"] if not arguments.smoke else ["triton", "elementwise"]
    compared = [
        Job(
            "correctness",
            each,
            part("correctness", {"precision": each, "modes": modes, "steps": steps, "layers": layers}),
            limit_s=150.0,  # a CPU computes slowly in float16
        )
        for each in precisions
    ]

    def steps_with(*settings: str, of: list[tuple[str, int, int]] = shapes, xla_flags: str = "") -> list[Job]:
        return [step_job(*shape, [*toy, *settings], device, steps, xla_flags) for shape in of]

    def words_of(size: str, length: int, rows: int, *settings: str) -> list[str]:
        all_settings = [*toy, f"numerics.precision={device['precision']}", *batch(length, rows), *settings]
        words = [word for each in all_settings for word in ("--set", each)]
        return ["--model", size, "--steps", str(steps), "--json", *words]

    size, length, rows = shapes[0]
    model, attending = words_of(*shapes[0]), words_of(*shapes[-2:][0], NO_ATTENTION_DROPOUT)
    operations = str(PROJECT / "lab" / "operations.py")
    peers = [
        Job("peer", f"{shape[0]} {shape[1]}, {shape[2]} rows", peer_command(shape, device, toy, arguments), 45.0, 180.0)
        for shape in shapes
    ]
    store, made = arguments.data_dir or str(scratch / "store"), []
    if not arguments.data_dir:
        vocabulary = 200 if arguments.smoke else 30522
        made = [Job("input", "made store", part("store", {"path": store, "vocabulary": vocabulary}), 5.0)]
    run = ["phase.0.global_batch=64", f"numerics.precision={device['precision']}", *toy]
    run += ["execution.evaluate_steps=0", "execution.tensorboard=false"]
    resumes = [
        Job(
            "resume",
            f"K = {count}",
            part(
                "resume",
                {
                    "store": store,
                    "settings": [*run, f"execution.micro_batch={64 // count}"],
                    "steps": 8 if arguments.smoke else 200,
                },
            ),
            60.0,
            240.0,
        )
        for count in (4, 1)
    ]
    recipe = scratch / "input.toml"
    from_store = ["step", "--recipe", str(recipe), "--data_dir", store, "--index_dir", str(scratch / "index")]
    write_recipe(recipe, size_recipe(size, [*batch(length, rows), "data.packing=true", *toy]))
    ranks = device["gpus"] or 2
    scaling = [*BENCH, "scaling", "-H", f"localhost:{ranks}", *model]
    larger = [] if arguments.smoke else [("large", 512, 32), ("base", 128, 256)]
    return [
        Job("kernels", "errors, a broken one, times", [str(PROJECT / "lab" / "gpu_kernels.py")], 60.0, 240.0),
        *compared,
        *steps_with(),
        *steps_with(NO_ATTENTION_DROPOUT, of=shapes[-2:]),
        *(
            steps_with(of=list(dict.fromkeys([shapes[0], shapes[-1]])), xla_flags=CUBLAS_ALONE)
            if not device["without_kernels"]
            else []
        ),
        *made,
        resumes[0],
        peers[0],
        *(steps_with("execution.kernels=xla") if not device["without_kernels"] else []),
        Job("operations", f"{size} {length}", [operations, *model]),
        Job("operations", "without attention dropout", [operations, *attending]),
        Job("input", f"{size} {length}", [*BENCH, *from_store, "--steps", str(3 * steps), "--json"]),
        *([Job("ranks", f"{size} {length}", scaling, 60.0, 240.0)] if ranks > 1 and device["horovod_with"] else []),
        *reversed(peers[1:]),  # large 512 has most to gain from fused attention
        resumes[1],
        *steps_with("execution.recompute=layer", of=[shapes[-1], *larger[:1]]),
        *steps_with(of=larger),
        *(steps_with("execution.xla=elementwise", "execution.kernels=xla") if not arguments.smoke else []),
    ]


def write_recipe(path: Path, recipe: Any) -> None:
    """Write a recipe file."""
    from bert_horovod.recipe_files.loading import recipe_to_toml

    path.write_text(recipe_to_toml(recipe), encoding="utf-8")


def peer_command(
    shape: tuple[str, int, int], device: dict[str, Any], toy: list[str], arguments: argparse.Namespace
) -> list[str]:
    """Ours and Hugging Face's compiled model in turn."""
    size, length, rows = shape
    words = ["--shape", size, "--rows", str(rows), "--length", str(length), "--precision", device["precision"]]
    words += ["--peer", "hugging_face", "--peer_python", arguments.peer_python, "--device", "cuda", "--json"]
    words += [word for each in toy for word in ("--set", each)]
    return [str(PROJECT / "lab" / "compute.py"), *words, "--xla", "layers", "--steps", "10"]


def perform(job: Job, left_s: float) -> dict[str, Any]:
    """Run a job in a process of its own; its entry in the output file: name, status, seconds, found or reason."""
    if left_s < job.least_s:
        reason = f"{max(0.0, left_s):.0f} s of the budget were left, it needs {job.least_s:.0f} s: give more --budget_s"
        return {"name": job.name, "status": "skipped", "seconds": 0.0, "reason": reason}
    limit_s = min(job.limit_s, left_s)
    started = time.monotonic()
    entry = {"name": job.name} | _run(job, limit_s)
    return entry | {"seconds": round(time.monotonic() - started, 2)}


def _run(job: Job, limit_s: float) -> dict[str, Any]:
    with (
        tempfile.TemporaryFile("w+", errors="replace") as output,
        tempfile.TemporaryFile("w+", errors="replace") as log,
    ):
        path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2"} | os.environ | {"PYTHONPATH": path}  # errors are shown
        environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {job.xla_flags}".strip()
        environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        command = [sys.executable, *job.command]
        with subprocess.Popen(command, stdout=output, stderr=log, env=environment, start_new_session=True) as process:
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # with the processes that it may have started
        output.seek(0)
        log.seek(0)
        words, printed = log.read().strip().splitlines()[-LAST_LINES:], output.read().splitlines()
    if code is None:
        reason = f"no answer within {limit_s:.0f} s"
        if limit_s < job.limit_s:
            return {"status": "skipped", "reason": f"{reason}, at the budget's end: give more --budget_s"}
        return {"status": "failed", "reason": reason, "last_lines": words}
    found = printed[-1] if printed and printed[-1].startswith(("{", "[")) else None
    if code and not found:
        if job.section == "step" and any(OUT_OF_MEMORY in line for line in words):
            return {"status": "done", "found": {"out_of_memory": True, **_estimated(job)}}
        reason = _last_word(words)
        absent = next((text for text in ABSENT if text in reason), None)
        if absent:
            return {"status": "skipped", "reason": reason}
        return {"status": "failed", "reason": f"ended with {code}: {reason}", "last_lines": words}
    facts = json.loads(found) | _estimated(job) if job.section != "peer" else {"lines": json.loads(found)}
    problems = facts.pop("problems", [])
    if problems or code:
        return {"status": "failed", "reason": "; ".join(problems) or f"ended with {code}", "found": facts}
    return {"status": "done", "found": facts}


# What a machine may lack without being broken.
ABSENT = ("the kernels cannot be used here", "--peer_python names one that has")


def _estimated(job: Job) -> dict[str, Any]:
    if job.recipe is None:
        return {}
    phase = job.recipe.phase[0]
    return {"estimated_memory_bytes": derive(job.recipe, phase, 1, capability=job.capability).memory_bytes}


def _last_word(words: list[str]) -> str:
    """The exception among a process's last lines, which libraries may follow with lines of their own; else the last."""
    raised = [line for line in words if re.match(r"([\w.]+(Error|Exception)|error|gpu_kernels): ", line)]
    return (raised or words or ["it said nothing"])[-1]


def result(section: str, entry: dict[str, Any], device: dict[str, Any]) -> str:
    """An entry's main figures in a few words; why there are none."""
    if entry["status"] != "done":
        return f"{entry['status']}: {entry['reason']}"
    facts = entry["found"]
    if section == "device":
        name = f"{facts['gpus']} x {facts['gpu']}" if facts["gpu"] else f"no GPU; {facts['processor']}"
        horovod = "+".join(facts["horovod_with"]) or "none"
        return f"{name}, TensorFlow {facts['tensorflow']}, {facts['precision']}, Horovod: {horovod}"
    if section == "kernels":
        worst = max(error for case in facts["errors"] for error, _ in case["errors"].values())
        return f"largest error {worst:.4f}; a broken kernel: {facts['broken']['verdict']}"
    if section == "correctness":
        modes = [
            f"{mode} {found.get('absent') or '{loss_difference:.1e}, {gradient_difference:.1e}'.format(**found)}"
            for mode, found in facts.items()
            if isinstance(found, dict) and {"absent", "loss_difference"} & set(found)
        ]
        return f"losses, gradients differ: {'; '.join(modes)}; dropout masks equal"
    if section == "resume":
        return "a resumed run equals one that was not stopped, bit for bit"
    if section == "peer":
        ours, theirs = facts["lines"]
        speeds = f"ours {ours['rows_per_s']:.1f}, theirs {theirs['rows_per_s']:.1f} rows/s"
        return f"{speeds}: {ours['hugging_face']:.2f} x"
    if section == "operations":
        longest = facts["operations"][0]
        return f"{longest['ms_per_step']:.2f} ms of {1e3 * facts['step_s']:.2f}: {longest['name'][:50]}"
    if section == "ranks":
        return "; ".join(f"{line['ranks']} rank(s) {line['rows_per_s']:.1f} rows/s" for line in facts["lines"])
    if section == "input":
        waits = facts["input_wait_s"] / facts["step_s"] if "step_s" in facts else None
        return f"{facts['tokens']:,} tokens" if waits is None else f"{waits:.1%} of a step waits for rows"
    estimate = f"estimate {facts['estimated_memory_bytes'] / 2**30:.2f}"
    if facts.get("out_of_memory"):
        return f"does not fit into memory ({estimate} GiB)"
    peak = (device.get("data_sheet_flops_per_s") or {}).get(device.get("precision", ""))
    share = f" ({facts['flops_per_s'] / peak:.1%} of the data sheet)" if peak else ""
    return f"{facts['rows_per_s']:.1f} rows/s{share}, {facts['memory_bytes'] / 2**30:.2f} GiB ({estimate})"


def summary(sections: dict[str, list[dict[str, Any]]], device: dict[str, Any]) -> str:
    """All entries as one table."""
    entries = [(section, entry) for section, entries in sections.items() for entry in entries]
    cells = [(f"{section}: {entry['name']}", f"{entry['seconds']:.0f}") for section, entry in entries]
    column = ["result", *(result(section, entry, device) for section, entry in entries)]
    return "\n".join(map("  ".join, zip(lines([("piece", "s"), *cells]).splitlines(), column, strict=True)))


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="JSON file that is written")
    parser.add_argument("--smoke", action="store_true", help="toy sizes, also without a GPU")
    parser.add_argument(
        "--only",
        action="append",
        choices=SECTIONS,
        metavar="SECTION",
        help=f"repeatable: {', '.join(SECTIONS)} (device is always done, because others need it; default: all)",
    )
    parser.add_argument("--budget_s", type=float, default=BUDGET_S, help="seconds for all (default: %(default).0f)")
    parser.add_argument("--data_dir", metavar="DIR", help="token store of input and resume (default: one that is made)")
    parser.add_argument(
        "--peer_python",
        default=sys.executable,
        metavar="FILE",
        help="a Python that has torch with CUDA, and transformers (default: this one)",
    )
    arguments = parser.parse_args(argv)
    if not arguments.budget_s > 0:
        parser.error(f"--budget_s {arguments.budget_s}: expected more than 0")
    if not arguments.output.absolute().parent.is_dir():
        parser.error(f"--output {arguments.output}: its directory does not exist")
    return arguments


def main() -> int:
    """Do all that the budget has time for; write and print it."""
    arguments = parse()
    began = time.monotonic()
    sections: dict[str, list[dict[str, Any]]] = {}
    device: dict[str, Any] = {}
    report = {
        "version": VERSION,
        "command": sys.argv,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "budget_s": arguments.budget_s,
        "smoke": arguments.smoke,
        "sections": sections,
    }

    def do(job: Job) -> dict[str, Any]:
        left_s = arguments.budget_s - (time.monotonic() - began)
        say(f"[{left_s:4.0f} s left] {job.section}: {job.name}")
        entry = perform(job, left_s)
        say(f"               {result(job.section, entry, device)}")
        sections.setdefault(job.section, []).append(entry)
        write_atomically(arguments.output, json.dumps(report, indent=1) + "\n")
        return entry

    try:
        with tempfile.TemporaryDirectory(prefix="gpu-") as scratch:
            entry = do(Job("device", "facts", part("device", {"gpu": not arguments.smoke}), 1.0))
            device |= entry.get("found", {})
            asked = arguments.only or SECTIONS
            for job in jobs(device, arguments, Path(scratch)) if entry["status"] == "done" else []:
                if job.section in asked or (job.name == "made store" and "resume" in asked):
                    do(job)
    except ReportedError as error:
        say(f"error: {error}")
        return error.exit_code
    print(summary(sections, device))
    return int(any(entry["status"] == "failed" for entries in sections.values() for entry in entries))


if __name__ == "__main__":
    sys.exit(main())
