#!/usr/bin/env python3
"""What a start of pre-training costs as the token store grows: seconds, open files, memory maps, memory, bytes read.

python lab/size.py --data_dir STORE --work DIR [--sizes 0.064 1.3 6.4 19 100]

Larger stores are made of hard links to shards of STORE, so that their pages are in memory and a disk counts for
nothing: shards of one part up to a thousand, then shards of several parts. Each size is started twice under a hard
limit of 1,024 open files: `pretrain --recipe bert-mini` makes the row index and then opens it. The time is that from
"starting from ..." to the compilation of the first step, where the run is ended; the whole also has Python's imports.
"""

import argparse
import itertools
import os
import re
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.corpus.shard import COUNTS, shard_file, write_shard
from bert_horovod.corpus.store import Store, open_store, write_manifest
from lab.kept import add_line
from lab.rounds import peak_bytes, variables

MOST_SHARDS = 1000
HARD_LIMIT = 1024  # of open files
BEGIN, END = re.compile("starting from"), re.compile(r"phase 0: .*; (compiling|tracing)")
COLUMNS = "text GB  shards  index s  start s  files  maps  memory GB  read MB"


def linked_store(base: Store, path: Path, gigabytes: float) -> Path:
    """Make a store of so much text from links to the shards of `base`, each of one part."""
    entries = base.manifest["shards"]
    size = sum(entry["bytes"] for entry in entries)
    parts = max(len(entries), round(gigabytes * 1e9 / size * len(entries)))
    together = -(-parts // MOST_SHARDS)
    path.mkdir(parents=True)
    if together > 1:
        shards = [shard.split()[0] for shard in base.shards]
        members = [shards[i % len(shards)] for i in range(together)]
        text_bytes = sum(entries[i % len(entries)]["bytes"] for i in range(together))
        entries = [write_shard(shard_file(path, "joined"), members, text_bytes)]
    of_store = []
    source = path if together > 1 else base.path
    for number, entry in zip(range(parts // together), itertools.cycle(entries), strict=False):
        name = f"shard-{number:05d}"
        os.link(shard_file(source, entry["name"]), shard_file(path, name))
        of_store.append(entry | {"name": name})
    shard_file(path, "joined").unlink(missing_ok=True)
    for name in ("vocab.txt", "sources.jsonl"):
        os.link(base.path / name, path / name)
    write_remade(base, path, of_store)
    return path


def write_remade(base: Store, path: Path, shards: list[dict[str, Any]]) -> None:
    """Write the manifest of a store that has other shards than the one of which it was made."""
    totals = base.manifest["totals"] | {count: sum(entry[count] for entry in shards) for count in COUNTS}
    duplicates = {"documents": 0, "tokens": 0, "sha256": None}
    manifest = base.manifest | {"shards": shards, "totals": totals, "duplicates": duplicates}
    manifest.pop("text", None)  # it was of other documents
    write_manifest(path, manifest)


def start(store: Path, output: Path) -> dict[str, Any]:
    """Start a run, end it where its first step is compiled; returns what it took."""
    command = [sys.executable, "-m", "bert_horovod", "pretrain", "--recipe", "bert-mini", "--data_dir", str(store)]
    process = subprocess.Popen(
        [*command, "--output_dir", str(output)],
        env=variables(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (HARD_LIMIT, HARD_LIMIT)),
    )
    most = {"files": 0, "maps": 0}
    began = time.monotonic()
    watcher = threading.Thread(target=_watch, args=(process, most), daemon=True)
    watcher.start()
    times: dict[re.Pattern, float] = {}
    read = memory = 0
    lines = []
    for line in process.stdout or ():
        lines.append(line)
        for pattern in (BEGIN, END):
            if pattern.search(line):
                times.setdefault(pattern, time.monotonic())
        if END.search(line):
            read = int(Path(f"/proc/{process.pid}/io").read_text(encoding="utf-8").split()[1])
            memory = peak_bytes(process.pid)  # compiling takes more, whatever the text
            time.sleep(1)  # in which rows are read
            process.kill()
    process.wait()
    if END not in times:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{''.join(lines[-20:])}")
    times_s = {"whole_s": times[END] - began, "start_s": times[END] - times[BEGIN]}
    return most | times_s | {"read_bytes": read, "memory_bytes": memory}


def _watch(process: subprocess.Popen, most: dict[str, int]) -> None:
    while process.poll() is None:
        try:
            most["files"] = max(most["files"], len(os.listdir(f"/proc/{process.pid}/fd")))
            maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")
            most["maps"] = max(most["maps"], maps.count("\n"))
        except OSError:
            return
        time.sleep(0.1)


def main() -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", required=True, type=Path, help="token store of a few shards of one part")
    parser.add_argument("--work", required=True, type=Path, help="directory for stores and runs, on the same disk")
    parser.add_argument("--sizes", nargs="+", type=float, default=[0.064, 1.3, 6.4, 19, 100], help="GB of text")
    arguments = parser.parse_args()
    base = open_store(arguments.data_dir)
    print(COLUMNS)
    for gigabytes in arguments.sizes:
        path = arguments.work / f"store-{gigabytes}"
        if not path.is_dir():
            linked_store(base, path, gigabytes)
        shards = len(open_store(path).shards)
        first, second = (start(path, arguments.work / f"run-{gigabytes}-{name}") for name in ("first", "second"))
        print(
            f"{gigabytes:7}  {shards:6}  {first['start_s'] - second['start_s']:7.1f}  {second['start_s']:7.1f}  "
            f"{second['files']:5}  {second['maps']:4}  {second['memory_bytes'] / 1e9:9.2f}  "
            f"{second['read_bytes'] / 1e6:7.1f}",
            flush=True,
        )
        add_line(arguments.work / "size.jsonl", {"gigabytes": gigabytes, "first": first, "second": second})


if __name__ == "__main__":
    main()
