#!/usr/bin/env python3
"""Trains while faults happen, and compares what comes out with a run that nothing disturbed. Needs root.

python lab/soak.py --directory soak --minutes 60       adds faults to soak/faults.jsonl, as later calls do
python lab/soak.py --directory soak --table            what happened so far

Two hosts of lab/cluster.py train a small BERT on made-up text: two phases, dropout, float16 with overflows, buckets by
size, evaluations, a checkpoint every few steps, copied to execution.mirror where a fault needs it. A seed decides which
faults happen, and when. In every second run `launch --restarts` starts the ranks again, in the others the same command
does. A run that a host has left is compared to rounding, every other one bit for bit: metrics, evaluations, the last
checkpoint and its copy.
"""

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.reporting.tables import lines
from lab.cluster import Cluster, cluster
from lab.kept import add_line, read_lines
from lab.made_store import make_store
from lab.rounds import PROJECT, variables
from lab.soak_ranks import MARK

STEPS, WORDS = 120, 200  # of a run; of its vocabulary
FAULTS = 10  # in a run
PATIENCE_S = 1500.0  # for whatever must follow a fault
TOLERANCE = 2e-3  # relative, of losses of a run that another number of ranks has finished
STEP = "step "
A_RANK = ("SIGKILL", "lost other ranks", "gave no sign of life", "ended first")  # said of one that was killed
RECIPE = """
[model]
vocab_size = {words}
hidden_size = 64
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 128
max_position_embeddings = 64
[optimizer]
name = "adamw"
[numerics]
precision = "float16"
wire = "float16"
[execution]
micro_batch = 16
threads = 1
xla = "off"
log_steps = 1
checkpoint_steps = 4
evaluate_steps = 10
evaluate_rows = 32
consistency_steps = 2
replay_steps = 1
stall_s = 90.0
bucket_bytes = 65536
trackers = []
[[phase]]
sequence_length = 32
global_batch = 32
steps = {first}
learning_rate = 0.002
warmup = 0.1
[[phase]]
sequence_length = 64
global_batch = 24
steps = {second}
learning_rate = 0.001
warmup = 0.1
"""
# Adds the seconds in a host's file to the time of day; what time it takes to do something is as before.
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long jump(void) {
    char text[32] = {0}, path[300] = JUMP ".";
    gethostname(path + strlen(path), 64);
    int file = open(path, O_RDONLY);
    if (file < 0) return 0;
    if (read(file, text, 31) < 0) text[0] = 0;
    close(file);
    return atol(text);
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int answer = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += jump();
    return answer;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *place) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (place) *place = exact.tv_sec;
    return exact.tv_sec;
}
"""


def make_input(directory: Path, steps: int) -> None:
    """A token store of made-up text, and a recipe."""
    make_store(directory / "store", WORDS, documents=20)
    recipe = RECIPE.format(words=WORDS, first=steps // 2, second=steps - steps // 2)
    (directory / "recipe.toml").write_text(recipe)


class Soak:
    """A run, from its first start to its end; `directory` has the input, `disk` the output directory."""

    def __init__(
        self, box: Cluster, directory: Path, disk: Path, restarts: bool, mirrors: bool, draw: random.Random
    ) -> None:
        self.box, self.directory, self.restarts, self.draw = box, directory, restarts, draw
        self.output_dir, self.log = disk / "run", directory / "log"
        self.mirror = directory / "mirror" if mirrors else None
        self.starts, self.rounds_only = 0, False
        self.process: subprocess.Popen | None = None
        self.read_from = 0  # of the log: where the last fault began

    def start(self) -> None:
        """Give the command, once more."""
        self.starts += 1
        words = [sys.executable, "-m", "bert_horovod", "launch", "-np", "2", "-hostfile", self.box.hostfile]
        words += ["--restarts", "20"] if self.restarts else []
        words += ["--env", "LD_PRELOAD", "--", "pretrain", "--recipe", self.directory / "recipe.toml"]
        words += ["--data_dir", self.directory / "store", "--output_dir", self.output_dir]
        words += ["--set", f"execution.mirror={self.mirror}"] if self.mirror else []
        library = self.directory / "patches" / "clock.so"
        patched = os.pathsep.join([str(self.directory / "patches"), str(PROJECT)])
        own = variables(PYTHONPATH=patched, LD_PRELOAD=str(library))
        with self.log.open("a") as log:
            self.process = self.box.start("node1", words, stdout=log, stderr=log, env=own)

    def said(self) -> str:
        """What was printed since the last fault."""
        return self.log.read_text(errors="replace")[self.read_from :]

    def processes(self, wanted: Callable[[str, dict[str, str]], bool]) -> list[int]:
        """Processes of the run with such a command line and environment."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_text(errors="replace").replace("\0", " ")
                text = (entry / "environ").read_text(errors="replace").split("\0")
                if str(self.output_dir) in line and wanted(line, dict(v.partition("=")[::2] for v in text)):
                    found.append(int(entry.name))
        return found

    def rank(self, rank: int | None) -> list[int]:
        """The processes of a rank; None: of all."""
        numbers = [str(rank)] if rank is not None else ["0", "1"]
        return self.processes(lambda line, of: of.get("HOROVOD_RANK") in numbers and not line.startswith("ssh"))

    def ssh(self) -> list[int]:
        """The ssh clients that started ranks."""
        return self.processes(lambda line, _: line.startswith("ssh "))

    def launcher(self) -> list[int]:
        """The processes of `launch` itself."""
        return self.processes(lambda line, _: " bert_horovod launch " in line and not line.startswith("nsenter"))

    def steps(self) -> int:
        """Steps that were printed since the last fault."""
        return sum(line.startswith(STEP) and "/" in line for line in self.said().splitlines())

    def await_(self, holds: Callable[[], bool], what: object) -> bool:
        """Wait until this holds, giving the command again where it ends; False: the run ended before."""
        end = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > end:
                raise TimeoutError(f"no {what} within {PATIENCE_S:.0f} s")
            if self.process.poll() is not None and not self.again():
                return False
            time.sleep(0.05)
        return True

    def await_steps(self, count: int) -> bool:
        """Wait for so many steps after the last fault; False: the run ended."""
        return self.await_(lambda: self.steps() >= count, f"{count} steps")

    def await_words(self, *words: str) -> bool:
        """Wait until one of these is printed after the last fault; False: the run ended."""
        return self.await_(lambda: any(word in self.said() for word in words), words)

    def again(self) -> bool:
        """The command has ended: give it again unless the run is done; whether it was given."""
        if self.process.returncode == 0 and f"step {STEPS}/{STEPS}" in self.log.read_text(errors="replace"):
            return False
        if self.starts > 30:
            raise RuntimeError("the command failed 30 times")
        self.start()
        return True

    def begin_fault(self) -> None:
        self.read_from = len(self.log.read_text(errors="replace"))


def send(processes: list[int], number: int) -> None:
    """Send a signal to what still lives."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


# Each fault returns the words of which one must be printed because of it; none: nothing need be.


def kills(processes: Callable[[Soak], list[int]], *words: str) -> Callable[[Soak], list[str]]:
    """The fault that kills these processes of a run."""

    def fault(run: Soak) -> list[str]:
        send(processes(run), signal.SIGKILL)
        return list(words)

    return fault


def terminate(run: Soak) -> list[str]:
    send(run.launcher(), signal.SIGTERM)
    return ["asked to stop: saved at step", "the ranks will stop as soon as they have started", "more steps first"]


def stop_seconds(run: Soak) -> list[str]:
    stopped = run.rank(run.draw.randrange(2))
    send(stopped, signal.SIGSTOP)
    time.sleep(run.draw.uniform(1, 8))
    send(stopped, signal.SIGCONT)
    return []


def stop_minutes(run: Soak) -> list[str]:
    rank = run.draw.randrange(2)
    stopped = run.rank(rank)
    send(stopped, signal.SIGSTOP)
    run.await_words("gives no sign of life", "gave no sign of life", "restart ", "ended first")
    time.sleep(run.draw.uniform(0, 60))
    send(stopped, signal.SIGCONT)
    return [f"rank {rank} on node{rank + 1} gave no sign of life"]


def cut_seconds(run: Soak) -> list[str]:
    run.box.cut("node2")
    time.sleep(run.draw.uniform(1, 6))
    run.box.mend("node2")
    return []


def cut_for_good(run: Soak) -> list[str]:
    run.box.cut("node2")
    try:
        run.await_words("leaving out node2", "no sign of life", "lost other ranks", "ended first")
        if run.restarts:
            run.await_words("leaving out node2")
            run.rounds_only = True
            run.await_steps(5)
    finally:
        run.box.mend("node2")
    return ["leaving out node2", "rank 1 on node2"]


def fill_disk(run: Soak) -> list[str]:
    filler = run.output_dir.parent / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    try:
        run.await_words("No space left on device")
        time.sleep(run.draw.uniform(0, 10))
    finally:
        filler.unlink()
    return ["No space left on device"]


def mark(kind: str, words: str, run: Soak) -> list[str]:
    """Ask a rank for a fault: see lab/soak_ranks.py."""
    place = run.directory / "patches" / MARK
    (place.with_suffix(".new")).write_text(json.dumps({"kind": kind, "rank": run.draw.randrange(2)}))
    os.replace(place.with_suffix(".new"), place)
    return [words]


def damage_checkpoint(run: Soak) -> list[str]:
    send(run.rank(None), signal.SIGKILL)
    newest = max(run.output_dir.glob("checkpoints/step-*"), default=None)
    if newest is None:
        return ["SIGKILL", "ended first"]
    flip_byte(newest / "model.safetensors", run.draw)
    return [f"{newest.name} is damaged"]


def damage_store(run: Soak) -> list[str]:
    (shard,) = (run.directory / "store").glob("shard-*.safetensors")
    before = shard.read_bytes()
    end = time.monotonic() + 60
    try:
        while "is missing or damaged" not in run.said() and time.monotonic() < end:
            flip_byte(shard, run.draw)
            time.sleep(0.2)
        run.await_words("is missing or damaged")
    finally:
        with shard.open("r+b") as file:
            file.write(before)
    return ["is missing or damaged"]


def lose_mirror(run: Soak) -> list[str]:
    """The mirror is away for a while: an empty place, or one where nothing can be written."""
    away, words = run.mirror.with_name("away"), ["is not in execution.mirror yet"] if run.draw.random() < 0.5 else []
    os.rename(run.mirror, away)
    if words:
        run.mirror.touch()
        run.await_words(*words)
    else:
        run.await_steps(run.draw.randint(5, 12))
    if words:
        run.mirror.unlink()
    while away.exists():
        remove(run.mirror)
        with contextlib.suppress(OSError):  # the run has made it anew
            os.rename(away, run.mirror)
    return words


def remove(directory: Path) -> None:
    """Remove a directory into which a run still writes."""
    while directory.exists():
        shutil.rmtree(directory, ignore_errors=True)


def lose_directory(run: Soak) -> list[str]:
    """A machine vanishes with its disk."""
    had_copy = next(run.mirror.glob("checkpoints/*/complete.json"), None)
    send(run.rank(None), signal.SIGKILL)
    remove(run.output_dir)
    return ["all as their hashes say"] if had_copy else ["SIGKILL", "ended first"]


def jump_clock(run: Soak) -> list[str]:
    seconds = run.draw.choice([-86400, -3600, -5, 5, 3600, 86400])
    for host in run.draw.choice([["node1"], ["node2"], ["node1", "node2"]]):
        (run.directory / f"jump.{host}").write_text(str(seconds))
    return []


# Kinds, and how often each comes in a round: more often what takes seconds, once what takes minutes.
KINDS: dict[str, tuple[int, Callable[[Soak], list[str]]]] = {
    "kill -9 of one rank": (3, kills(lambda run: run.rank(run.draw.randrange(2)), *A_RANK)),
    "kill -9 of all ranks": (2, kills(lambda run: run.rank(None), "SIGKILL", "ended first")),
    "kill -9 of a host's ssh": (2, kills(Soak.ssh, "SIGKILL of the ssh client")),
    "kill -9 of the launcher": (2, kills(Soak.launcher)),
    "SIGTERM": (2, terminate),
    "SIGSTOP for seconds": (4, stop_seconds),
    "SIGSTOP for minutes": (1, stop_minutes),
    "link cut for seconds": (4, cut_seconds),
    "link cut for good": (1, cut_for_good),
    "disk full and freed": (4, fill_disk),
    "bit of a parameter": (2, partial(mark, "parameter", "ranks no longer hold the same state")),
    "bit of a slot": (2, partial(mark, "slot", "ranks no longer hold the same state")),
    "wrong gradients": (2, partial(mark, "gradient", "disagree, and no third rank decides which computes wrongly")),
    "bit of a checkpoint": (2, damage_checkpoint),
    "bits of the store": (2, damage_store),
    "clock jump": (4, jump_clock),
    "mirror gone": (3, lose_mirror),
    "output directory gone, with a mirror": (2, lose_directory),
}
OF_MIRRORS = ("mirror gone", "output directory gone, with a mirror")


def flip_byte(path: Path, draw: random.Random) -> None:
    """Flip a bit of a file, at its place."""
    with path.open("r+b") as file:
        place = draw.randrange(path.stat().st_size)
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1 << draw.randrange(8)]))


def outcome(output_dir: Path) -> tuple[list[list], dict[str, bytes]]:
    """What must not depend on faults: the own values of each line of metrics.jsonl, and the last checkpoint's files."""
    values = [
        list(takewhile(lambda item: item[0] != "rows_per_s", line.items()))
        for line in read_lines(output_dir / "metrics.jsonl")
        if "incident" not in line
    ]
    return values, checkpoint(output_dir)


def checkpoint(directory: Path) -> dict[str, bytes]:
    """The tensors' files of the newest checkpoint of an output directory, or of a mirror."""
    newest = max((directory / "checkpoints").glob("step-*"))
    return {str(path.relative_to(newest)): path.read_bytes() for path in newest.rglob("*.safetensors")}


def differences(
    actual: tuple[list[list], dict[str, bytes]], expected: tuple[list[list], dict[str, bytes]], tolerance: float = 0.0
) -> list[str]:
    """What is not the same; with a tolerance losses alone are compared, which may differ by so much."""
    if tolerance:
        losses = [[dict(line).get("loss") for line in values] for values, _ in (actual, expected)]
        same = len(losses[0]) == len(losses[1]) and all(
            a == b or (a is not None and b is not None and math.isclose(a, b, rel_tol=tolerance))
            for a, b in zip(*losses, strict=True)
        )
        return [] if same else ["losses"]
    lines_differ = sum(a != b for a, b in zip(actual[0], expected[0], strict=False))
    lines_differ += abs(len(actual[0]) - len(expected[0]))
    texts = [f"{lines_differ} of {len(expected[0])} lines of metrics.jsonl"] if lines_differ else []
    return texts + [name for name in expected[1] if actual[1].get(name) != expected[1][name]]


def drawn(seed: int, count: int) -> str:
    """The kind of fault number `count`: all kinds come in each round of them, in another order."""
    order = [kind for kind, (times, _) in KINDS.items() for _ in range(times)]
    random.Random(f"{seed} {count // len(order)}").shuffle(order)
    return order[count % len(order)]


def disturbed_run(
    box: Cluster, directory: Path, disk: Path, seed: int, done: list[dict[str, Any]], expected
) -> Iterator[dict[str, Any]]:
    """Train with faults; yields a record of each fault, at last one of the run with what was not as expected."""
    number = 1 + max((each["run"] for each in done), default=-1)
    faults = sum("kind" in each for each in done)
    kinds = [drawn(seed, faults + each) for each in range(FAULTS)]
    mirrors = not set(kinds).isdisjoint(OF_MIRRORS)
    run = Soak(box, directory, disk, number % 2 == 0, mirrors, random.Random(f"{seed} run {number}"))
    for leftover in (run.output_dir, directory / "mirror", directory / "away"):
        shutil.rmtree(leftover, ignore_errors=True)
    for leftover in (run.log, *directory.glob("jump.*"), directory / "patches" / MARK):
        leftover.unlink(missing_ok=True)
    run.start()
    problems, kind = [], ""
    try:
        for kind in kinds:
            if run.rounds_only or not run.await_steps(run.draw.randint(1, 8)):
                break  # one host is left: there is nothing between hosts to disturb
            time.sleep(run.draw.uniform(0, 0.3))
            began = time.time()
            run.begin_fault()
            words = KINDS[kind][1](run)
            goes_on = run.await_steps(3)
            if words and not any(word in run.said() for word in words):
                goes_on = run.await_steps(12)
            found = next((word for word in words if word in run.said()), "")
            if words and not found and (goes_on or kind != "SIGTERM"):
                problems.append(f"{kind}: nothing said {words}")
            seconds = time.time() - began
            yield {"run": number, "restarts": run.restarts, "kind": kind, "seconds": seconds, "found": found}
            kind = ""
        run.await_steps(10**6)
        actual = outcome(run.output_dir)
        problems += differences(actual, expected, TOLERANCE if run.rounds_only else 0.0)
        if run.mirror and checkpoint(run.mirror) != actual[1]:
            problems.append("the mirror")
    except (TimeoutError, RuntimeError, OSError, ValueError) as error:
        problems.append(f"{kind}: {type(error).__name__}: {error}")
    finally:
        box.mend("node2")
        send([*run.launcher(), *run.rank(None)], signal.SIGKILL)
        run.process.wait()
    if problems:
        shutil.copy(run.log, directory / f"log-{number}")
    yield {"run": number, "problem": "; ".join(problems)}


def prepare(directory: Path) -> None:
    """Make the input, and what goes into ranks."""
    directory.mkdir(parents=True, exist_ok=True)
    make_input(directory, STEPS)
    patches = directory / "patches"
    patches.mkdir(exist_ok=True)
    (patches / "sitecustomize.py").write_text("import lab.soak_ranks\n")
    (patches / "clock.c").write_text(CLOCK)
    jump = f'-DJUMP="{directory / "jump"}"'
    words = ["gcc", "-shared", "-fPIC", "-O1", jump, patches / "clock.c", "-o", patches / "clock.so", "-ldl"]
    subprocess.run(words, check=True)


def table(done: list[dict[str, Any]]) -> str:
    """Faults by kind: how many there were, were named, and in how many the run ended as the undisturbed one."""
    rows = [("fault", "times", "named", "the run went on to the same end")]
    ended = {each["run"]: not each["problem"] for each in done if "problem" in each}  # others were interrupted
    faults = [each for each in done if "kind" in each and each["run"] in ended]
    for kind in (*KINDS, "all"):
        of_kind = [each for each in faults if kind in ("all", each["kind"])]
        counts = len(of_kind), sum(bool(each["found"]) for each in of_kind), sum(ended[each["run"]] for each in of_kind)
        rows.append((kind, *map(str, counts)))
    return lines(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, required=True, help="input, logs and counts; kept between calls")
    parser.add_argument("--minutes", type=float, default=60.0, metavar="N", help="begin no run after (default: 60)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the faults (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="print what happened so far, and start nothing")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    directory = arguments.directory.resolve()
    record = directory / "faults.jsonl"
    done = read_lines(record)
    if not arguments.table:
        if not (directory / "patches" / "clock.so").exists():
            prepare(directory)
        disk = directory / "disk"
        disk.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "soak", disk], check=True)
        try:
            with cluster(hosts=2) as box:
                soak(box, directory, disk, arguments.seed, done, record, 60 * arguments.minutes)
        finally:
            subprocess.run(["umount", "--lazy", disk], check=True)
    print(table(done))
    return 1 if any(each.get("problem") for each in done) else 0


def soak(
    box: Cluster, directory: Path, disk: Path, seed: int, done: list[dict[str, Any]], record: Path, seconds: float
) -> None:
    """Train and disturb, beginning no run after so many seconds; adds to `done` and to the file `record`."""
    kept = directory / "undisturbed"
    if not kept.exists():
        run = Soak(box, directory, disk, False, False, random.Random(seed))
        run.start()
        if run.process.wait() != 0:
            raise SystemExit(run.said())
        shutil.copytree(run.output_dir, kept)
    expected, end = outcome(kept), time.monotonic() + seconds
    while time.monotonic() < end:
        for fault in disturbed_run(box, directory, disk, seed, done, expected):
            done.append(fault)
            add_line(record, fault)
            print(fault, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
