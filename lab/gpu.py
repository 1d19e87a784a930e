#!/usr/bin/env python3
"""What one GPU makes of the training step: correctness, speed, memory and kernels, within eight minutes.

python lab/gpu.py --output gpu.json                       all of it
python lab/gpu.py --output gpu.json --only correctness    one section
python lab/gpu.py --smoke --output gpu.json               toy sizes, with or without a GPU

Each piece of work is a process of its own (lab/gpu_sections.py), so that one that fails leaves the others alone
and a memory peak is one configuration's. The most valuable come first; what the budget leaves no time for is skipped.
The output file is written anew after each piece. docs/gpu.md says how to read it. Neither Horovod nor tensorflow-text
is needed. Exit code: 0, or 1 where anything failed.
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
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.errors import ReportedError
from bert_horovod.measuring.tables import lines
from bert_horovod.storage.writing import write_atomically
from lab.gpu_jobs import Job, jobs, smoke_jobs

VERSION = 2  # of the output file
BUDGET_S = 480.0
LAST_LINES = 8  # of what a failed process said
SECTIONS = ("device", "correctness", "step", "peer", "ranks", "kernels", "input", "matrix")
CHILD = Path(__file__).resolve().with_name("gpu_sections.py")


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
        command = [sys.executable, str(CHILD), json.dumps({"section": job.section, **job.work})]
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2"} | os.environ  # errors are shown
        with subprocess.Popen(command, stdout=output, stderr=log, env=environment, start_new_session=True) as process:
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # with the contestants that it may have started
        output.seek(0)
        log.seek(0)
        words = log.read().strip().splitlines()[-LAST_LINES:]
        if code is None:
            reason = f"no answer within {limit_s:.0f} s"
            if limit_s < job.limit_s:
                return {"status": "skipped", "reason": f"{reason}, at the budget's end: give more --budget_s"}
            return {"status": "failed", "reason": reason, "last_lines": words}
        if code:
            return {"status": "failed", "reason": f"ended with {code}: {_last_word(words)}", "last_lines": words}
        facts = json.loads(output.read().splitlines()[-1])
    problems = facts.pop("problems", [])
    if problems:
        return {"status": "failed", "reason": "; ".join(problems), "found": facts}
    if "absent" in facts:
        return {"status": "skipped", "reason": facts["absent"]}
    return {"status": "done", "found": facts}


def _last_word(words: list[str]) -> str:
    """The exception among a process's last lines, which libraries may follow with lines of their own; else the last."""
    raised = [line for line in words if re.match(r"[\w.]+(Error|Exception): ", line)]
    return (raised or words or ["it said nothing"])[-1]


def result(section: str, entry: dict[str, Any]) -> str:
    """An entry's main figures in a few words; why there are none."""
    if entry["status"] != "done":
        return f"{entry['status']}: {entry['reason']}"
    facts = entry["found"]
    if section == "device":
        name = f"{facts['gpus']} x {facts['gpu']}" if facts["gpu"] else f"no GPU; {facts['processor']}"
        horovod = "+".join(facts["horovod_with"]) or "none"
        return f"{name}, TensorFlow {facts['tensorflow']}, {facts['precision']}, Horovod: {horovod}"
    if section == "correctness":
        modes = [
            f"{key.removeprefix('xla_')} {compared['loss_difference']:.1e}, {compared['gradient_difference']:.1e}"
            for key, compared in facts.items()
            if key.startswith("xla_")
        ]
        return f"losses, gradients differ: {'; '.join(modes)}; dropout masks equal"
    if section == "matrix":
        rates = facts["shapes"].items()
        return "; ".join(f"{shape}: {rate['flops_per_s'] / 1e12:.3g} TFLOP/s{_share(rate)}" for shape, rate in rates)
    if section == "kernels":
        longest = facts["kernels"][0]
        return f"{facts['all_ms_per_step']:.2f} ms a step, {longest['ms_per_step']:.2f} of it {longest['name'][:50]}"
    if section == "peer":
        theirs, ours = facts["hugging_face"]["rows_per_s"], facts["ours"]["rows_per_s"]
        return f"ours {ours:.1f}, theirs {theirs:.1f} rows/s: {facts['ratio']:.2f} x"
    if section == "ranks":
        return "; ".join(_scaling_line(line) for line in facts["lines"])
    if section == "input":
        return (
            f"a thread makes {facts['input_rows_per_s']:,.0f} rows/s, the step takes {facts['step_rows_per_s']:,.0f}; "
            f"it waits {facts['input_wait_share']:.1%} of its time"
        )
    if facts.get("out_of_memory"):
        return f"does not fit into memory (estimate {facts['estimated_memory_bytes'] / 2**30:.2f} GiB)"
    memory = f"{facts['memory_bytes'] / 2**30:.2f} GiB (estimate {facts['estimated_memory_bytes'] / 2**30:.2f})"
    return f"{facts['rows_per_s']:.1f} rows/s{_share(facts)}, {memory}"


def _scaling_line(line: dict[str, Any]) -> str:
    text = f"{line['ranks']} rank(s) {line['rows_per_s']:.1f} rows/s"
    if "link" in line:
        text += f" ({line['efficiency']:.0%}), all-reduce {8e-9 * line['link']['bytes_per_s']:.3g} Gb/s"
    return text


def _share(rate: dict[str, Any]) -> str:
    return f" ({rate['share']:.1%} of the data sheet)" if rate["share"] else ""


def summary(sections: dict[str, list[dict[str, Any]]]) -> str:
    """All entries as one table."""
    entries = [(section, entry) for section, entries in sections.items() for entry in entries]
    cells = [(f"{section}: {entry['name']}", f"{entry['seconds']:.0f}") for section, entry in entries]
    column = ["result", *(result(section, entry) for section, entry in entries)]
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
    parser.add_argument(
        "--data_dir", metavar="DIR", help="token store of the input section (default: one that is made in memory)"
    )
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
        say(f"               {result(job.section, entry)}")
        sections.setdefault(job.section, []).append(entry)
        write_atomically(arguments.output, json.dumps(report, indent=1) + "\n")
        return entry

    try:
        facts = do(Job("device", "facts", {"gpu": not arguments.smoke}))
        device = facts.get("found", {})
        make = smoke_jobs if arguments.smoke else jobs
        words = (arguments.peer_python, arguments.data_dir)
        plan = make(device.get("precision", "bfloat16"), device.get("gpus", 0), *words)
        if not device or facts["status"] == "done":  # else there is no GPU
            for job in plan:
                if job.section in (arguments.only or SECTIONS):
                    do(job)
    except ReportedError as error:
        say(f"error: {error}")
        return error.exit_code
    print(summary(sections))
    return int(any(entry["status"] == "failed" for entries in sections.values() for entry in entries))


def say(text: str) -> None:
    """Tell on standard error what goes on."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
