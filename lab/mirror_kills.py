#!/usr/bin/env python3
"""Machines that vanish with their disks: kills a run and removes its directory, again and again.

python lab/mirror_kills.py --kills 20 --mirror s3://bucket/kills

Two ranks under horovodrun train as in soak.py, with execution.mirror. kill -9 hits horovodrun and all ranks at a random
moment, --output_dir is removed, and the same command is given again. At the end metrics and the last checkpoint must
equal those of a run that nothing disturbed, bit for bit. Exit code: 0 if they do, 1 otherwise.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from lab.rounds import PROJECT
from lab.soak import differences, environment, make_input, outcome

MOST_STEPS = 25  # a kill comes after so many steps at most, or in the first seconds of a start
START_S = 8.0


def start(directory: Path, output_dir: Path, mirror: str | None) -> subprocess.Popen:
    """Begin or go on with the run; its output goes to a file."""
    words = [sys.executable, Path(sys.executable).with_name("horovodrun"), "--gloo", "-np", "2", sys.executable]
    words += [PROJECT / "run" / "run_pretraining.py", "--recipe", directory / "recipe.toml"]
    words += ["--data_dir", directory / "store", "--output_dir", output_dir]
    words += ["--set", f"execution.mirror={mirror}"] if mirror else []
    with (directory / "log").open("w") as log:
        return subprocess.Popen(words, stdout=log, stderr=log, env=environment())


def kill(output_dir: Path, process: subprocess.Popen) -> None:
    """kill -9 of all that has the directory in its command line."""
    while found := [entry for entry in Path("/proc").glob("[0-9]*/cmdline") if str(output_dir) in read(entry)]:
        for entry in found:
            try:
                os.kill(int(entry.parent.name), signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.poll()
        time.sleep(0.05)


def read(path: Path) -> str:
    """The text of a file of /proc; "" if its process has ended."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def main() -> int:
    """Kill and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=400, metavar="N", help="steps of the run (default: %(default)s)")
    parser.add_argument("--mirror", required=True, metavar="URL", help="an empty place")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the kills (default: %(default)s)")
    arguments = parser.parse_args()
    draw, fetched = random.Random(arguments.seed), 0
    with tempfile.TemporaryDirectory(prefix="kills-") as scratch:
        directory = Path(scratch)
        make_input(directory, arguments.steps)
        if start(directory, directory / "undisturbed", None).wait():
            print((directory / "log").read_text(errors="replace"), file=sys.stderr)
            return 1
        expected, output_dir = outcome(directory / "undisturbed"), directory / "disturbed"
        for number in range(1, arguments.kills + 1):
            process, log = start(directory, output_dir, arguments.mirror), directory / "log"
            steps, end = draw.randint(0, MOST_STEPS), time.monotonic() + draw.uniform(0, START_S)
            while process.poll() is None and (log.read_text(errors="replace").count(">:step ") < steps):
                time.sleep(0.01)
            while not steps and time.monotonic() < end:
                time.sleep(0.1)
            time.sleep(draw.uniform(0, 0.2))
            if process.poll() is not None:
                print(f"the run ended before kill {number}:\n{log.read_text(errors='replace')}", file=sys.stderr)
                return 1
            kill(output_dir, process)
            text = log.read_text(errors="replace")
            fetched += "hashes say" in text
            resumed = next(
                (line.split("resuming from ")[1][-13:] for line in text.splitlines() if "resuming" in line), "-"
            )
            print(f"kill {number}: after {text.count('>:step ')} steps from {resumed}", file=sys.stderr, flush=True)
            shutil.rmtree(output_dir, ignore_errors=True)
        if start(directory, output_dir, arguments.mirror).wait():
            print((directory / "log").read_text(errors="replace"), file=sys.stderr)
            return 1
        differing = differences(outcome(output_dir), expected)
    print(f"{arguments.kills} kills, {fetched} of those starts had fetched a checkpoint before")
    print(f"differences from the undisturbed run: {'; '.join(differing) or 'none'}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
