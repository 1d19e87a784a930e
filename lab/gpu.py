#!/usr/bin/env python3
"""What one GPU makes of the training step: correctness first, then speed and memory, eight minutes at a time.

python lab/gpu.py --list                                  what is done, in order, and how long each piece takes
python lab/gpu.py --output gpu.json                       as much as eight minutes hold; again: what is not done yet
python lab/gpu.py --output gpu.json --only correctness    one section
python lab/gpu.py --smoke --output gpu.json               toy sizes, with or without a GPU

Each piece of work is a process of its own: a command of `bert-horovod`, a script of lab/ or a part of
lab/gpu_parts.py. So one that fails leaves the others alone and a memory peak is one configuration's. The most valuable
come first; what the budget leaves no time for is skipped. The output file is written anew after each piece, and the
same command does what is not done in it: the rest, and what failed. docs/gpu.md says how to read it. Neither Horovod
nor tensorflow-text is needed. Exit code: 0, or 1 where anything failed.
"""

import argparse
import contextlib
import functools
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

from bert_horovod.errors import DamagedData, UserError
from bert_horovod.reporting.tables import lines
from bert_horovod.runtime.children import end_with_parent
from bert_horovod.runtime.devices import CHOICES_FLAGS
from bert_horovod.runtime.host import OUT_OF_MEMORY
from bert_horovod.storage.writing import write_atomically
from lab.contestants import RANK_0
from lab.gpu_plan import ASSUMED, MADE_STORE, OF_STORE, SECTIONS, Job, jobs, part
from lab.rounds import reported, say, variables

VERSION = 4  # of the output file
BUDGET_S = 480.0
GO_ON = "the same command goes on"
LAST_LINES = 20  # of what a failed process said
SHOWN = {  # of what a section finds, or of each of its lines, the newest of which are last
    "device": ("gpu", "gpus", "processor", "tensorflow", "precision", "without_kernels", "horovod_with"),
    "kernels": ("seconds", "broken"),
    "correctness": ("largest_differences",),
    "step": ("out_of_memory", "rows_per_s", "flops_per_s", "memory_bytes", "estimated_memory_bytes"),
    "resume": ("seconds", "choices"),
    "link": ("communication",),
    "operations": ("step_s", "operations"),
    "curves": ("last", "mean", "training_s"),
    "same_minutes": ("contestant", "pilot", "step_s", "losses"),
    "ranks": ("layout", "step_s", "efficiency"),
    "peer": ("configuration", "step_s", "hugging_face"),
    "tune": ("settings", "rows_per_s", "search_s"),
    "input": ("tokens", "input_wait_s", "step_s"),
    "tests": ("summary",),
}
LONGEST = 300  # characters of a line
# Sections whose processes compile the same products: what one has searched for, the next ones find.
SHARING = ("step", "operations", "tune", "peer", "input")


def with_choices(job: Job, output: Path) -> Job:
    """The job, with a directory beside the output file for XLA's choices: one for jobs with the same flags."""
    directory = output.absolute().with_suffix(".xla") / (re.sub(r"\W", "", job.xla_flags) or "usual")
    directory.mkdir(parents=True, exist_ok=True)
    return job._replace(xla_flags=" ".join([job.xla_flags, *(f"--{flag}={directory}" for flag in CHOICES_FLAGS)]))


def perform(job: Job, left_s: float) -> dict[str, Any]:
    """Run a job in a process of its own; its entry in the output file: name, status, seconds, found or reason."""
    reason = job.lacking
    if not reason and left_s < job.expected_s:
        reason = f"{max(0.0, left_s):.0f} s of the budget were left, it takes {job.expected_s:.0f} s: {GO_ON}"
    if reason:
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
        flags = f"{os.environ.get('XLA_FLAGS', '')} {job.xla_flags}".strip()
        environment = variables(gpu=True, TF_CPP_MIN_LOG_LEVEL="2", XLA_FLAGS=flags)  # errors are shown
        command, bound = [sys.executable, *job.command], functools.partial(end_with_parent, os.getpid())
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": log}
        options = {"env": environment, "start_new_session": True, "preexec_fn": bound}
        with subprocess.Popen(command, **streams, **options) as process:
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with contextlib.suppress(ProcessLookupError):  # what it has started and left would hold the GPU
                    os.killpg(process.pid, signal.SIGKILL)
        output.seek(0)
        log.seek(0)
        words, printed = log.read().strip().splitlines()[-LAST_LINES:], output.read().splitlines()
    if code is None:
        reason = f"no answer within {limit_s:.0f} s"
        if limit_s < job.limit_s:
            return {"status": "skipped", "reason": f"{reason}, at the budget's end: {GO_ON}"}
        return {"status": "failed", "reason": reason, "last_lines": words}
    printed = [line.removeprefix(RANK_0) for line in printed]
    found = next((line for line in reversed(printed) if line.startswith(("{", "[{"))), None)
    if not found:
        if job.section == "step" and any(OUT_OF_MEMORY in line for line in words):
            return {"status": "done", "found": {"out_of_memory": True, **(job.known or {})}}
        reason = _last_word(words)
        absent = next((text for text in ABSENT if text in reason), None)
        if absent:
            return {"status": "skipped", "reason": reason}
        return {"status": "failed", "reason": f"ended with {code}: {reason}", "last_lines": words}
    facts = {"lines": json.loads(found)} if found.startswith("[") else json.loads(found) | (job.known or {})
    problems = facts.pop("problems", [])
    if problems or code:
        reason = "; ".join(problems) or f"ended with {code}"
        return {"status": "failed", "reason": reason, "found": facts, "last_lines": words}
    return {"status": "done", "found": facts}


RAISED = re.compile(r"(\[\d+\]<stderr>:)?(bert-horovod: )?([\w.]+(Error|Exception)|error|gpu_kernels): ")
# What a machine may lack without being broken.
ABSENT = ("the kernels cannot be used here", "--peer_python names one that has")


def _last_word(words: list[str]) -> str:
    """The exception among a process's last lines, which libraries may follow with lines of their own; else the last."""
    raised = [line for line in words if RAISED.match(line)]
    return (raised or words or ["it said nothing"])[-1]


def result(section: str, entry: dict[str, Any]) -> str:
    """An entry's main figures in a line; why there are none."""
    if entry["status"] != "done":
        return f"{entry['status']}: {entry['reason']}"

    def told(facts: dict[str, Any]) -> str:
        return "; ".join(f"{name} {_short(facts[name])}" for name in SHOWN[section] if facts.get(name) is not None)

    found = entry["found"]
    return " | ".join(map(told, found["lines"]))[-LONGEST:] if "lines" in found else told(found)[:LONGEST]


def _short(value: Any) -> str:
    """A figure with four digits; tables and lists likewise."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_short(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_short, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def summary(sections: dict[str, list[dict[str, Any]]]) -> str:
    """All entries as one table."""
    entries = [(section, entry) for section, entries in sections.items() for entry in entries]
    cells = [(f"{section}: {entry['name']}", f"{entry['seconds']:.0f}") for section, entry in entries]
    column = ["result", *(result(section, entry) for section, entry in entries)]
    return "\n".join(map("  ".join, zip(lines([("piece", "s"), *cells]).splitlines(), column, strict=True)))


def listed(plan: list[Job]) -> str:
    """The pieces with their seconds, as a table."""
    rows, sum_s = [], 0.0
    for job in plan:
        sum_s += job.expected_s
        rows.append((f"{job.section}: {job.name}", f"{job.expected_s:.0f}", f"{job.limit_s:.0f}", f"{sum_s / 60:.1f}"))
    return lines([("piece", "expected s", "at most s", "min so far"), *rows])


def kept_sections(arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """What was done, or failed, at earlier times, by section; raises ReportedError where the file is none of these."""
    if not arguments.output.exists():
        return {}
    try:
        report = json.loads(arguments.output.read_text(encoding="utf-8"))
        kept = report["sections"]
        same = (report["version"], report["smoke"]) == (VERSION, arguments.smoke)
        tried = {name: [each for each in entries if each["status"] != "skipped"] for name, entries in kept.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedData(f"--output {arguments.output} holds no figures of lab/gpu.py; give another file") from error
    if not same:
        raise UserError(f"--output {arguments.output} was made by another version or in other sizes; give another file")
    return tried


def check_device(device: dict[str, Any], before: dict[str, Any], output: Path) -> None:
    """Refuse figures of two kinds of GPU, or versions of TensorFlow, in one file."""
    for name in ("gpu", "gpus", "tensorflow"):
        if before[name] != device[name]:
            raise UserError(
                f"--output {output} has figures with {name} {before[name]}, this is {device[name]}; give another file"
            )


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--output", type=Path, metavar="FILE", help="JSON file that is written, or gone on with")
    add("--list", action="store_true", help="print the pieces and their seconds, and do nothing")
    add("--smoke", action="store_true", help="toy sizes, also without a GPU")
    sections = f"repeatable: {', '.join(SECTIONS)} (device is always done; default: all)"
    add("--only", action="append", choices=SECTIONS, metavar="SECTION", help=sections)
    add("--budget_s", type=float, default=BUDGET_S, help="seconds for all (default: %(default).0f)")
    add("--data_dir", metavar="DIR", help="token store of the 64 MB of books (default: a made one, no curves)")
    add("--small_data_dir", metavar="DIR", help="that of 16 MB of them, for two of the curves")
    add("--contest_dir", metavar="DIR", help="what `lab/same_minutes.py --only --work DIR` made, for same_minutes")
    python = "a Python that has torch with CUDA, and transformers (default: this one)"
    add("--peer_python", default=sys.executable, metavar="FILE", help=python)
    arguments = parser.parse_args(argv)
    if not arguments.budget_s > 0:
        parser.error(f"--budget_s {arguments.budget_s}: expected more than 0")
    if arguments.list:
        arguments.output = arguments.output or Path("gpu.json")
    if not arguments.output:
        parser.error("--output: expected the JSON file that is to be written")
    if not arguments.output.absolute().parent.is_dir():
        parser.error(f"--output {arguments.output}: its directory does not exist")
    return arguments


@reported
def main() -> int:
    """Do all that the budget has time for; write and print it."""
    arguments = parse()
    began = time.monotonic()
    device: dict[str, Any] = {}

    def write(section: str, entry: dict[str, Any]) -> None:
        write_atomically(arguments.output, json.dumps(report, indent=1) + "\n")
        say(f"               {result(section, entry)}")

    def do(job: Job) -> dict[str, Any]:
        left_s = arguments.budget_s - (time.monotonic() - began)
        say(f"[{left_s:4.0f} s left] {job.section}: {job.name}")
        return perform(with_choices(job, arguments.output) if job.section in SHARING else job, left_s)

    with tempfile.TemporaryDirectory(prefix="gpu-") as scratch:
        if arguments.list:
            print(listed(jobs(ASSUMED, arguments, Path(scratch))))
            return 0
        sections = kept_sections(arguments)
        report = {
            "version": VERSION,
            "command": sys.argv,
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "budget_s": arguments.budget_s,
            "smoke": arguments.smoke,
            "sections": sections,
        }
        entry = do(Job("device", "facts", part("device", {"gpu": not arguments.smoke}), 1.0))
        device |= entry.get("found", {})
        before = next((each["found"] for each in sections.get("device", ()) if each["status"] == "done"), None)
        if device and before:
            check_device(device, before, arguments.output)
        sections["device"] = [entry]
        write("device", entry)
        asked = set(arguments.only or SECTIONS)
        plan = jobs(device, arguments, Path(scratch)) if entry["status"] == "done" else []
        status = {(name, each["name"]): each["status"] for name, entries in sections.items() for each in entries}
        plan.sort(key=lambda job: (job.section, job.name) in status and job.name != MADE_STORE)  # the failed ones last
        for job in plan:
            before, kept = status.get((job.section, job.name)), sections.setdefault(job.section, [])
            wanted = job.section in asked and before != "done"
            if wanted or (job.name == MADE_STORE and asked & OF_STORE):  # which went with the scratch directory
                entry = do(job)
                if not (before and entry["status"] == "skipped"):
                    kept[:] = [each for each in kept if each["name"] != job.name] + [entry]
                write(job.section, entry)
    print(summary(sections))
    return int(any(entry["status"] == "failed" for entries in sections.values() for entry in entries))


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):  # the piece at work ends too, else it would keep the GPU
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    sys.exit(main())
