#!/usr/bin/env python3
"""The operations of a training step by total time, from the trace that `bert-horovod bench step --trace` writes.

python lab/operations.py --model base --set numerics.precision=bfloat16      any words of `bench step`

It prints the JSON of `bench step`, and the longest operations: milliseconds and calls a step, summed over threads.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.measuring.configuration import TRACED_STEPS
from bert_horovod.runtime.quiet import import_tensorflow

TOP = 25
_OPERATION = re.compile(r"[^:]*[^:]:([A-Za-z_]\w*)")  # node name:operation; the executor's own events have ::
_MODULE = re.compile(r"a_(?:inference_+)?(.*?)(?:_\d+)*_*\.\d+")  # XLA's module name of a tf.function


class Operation(NamedTuple):
    """The time of one kind of operation, summed over threads, without the time of operations nested inside it."""

    name: str
    ms_per_step: float
    calls_per_step: float


def operations(path: Path, steps: int = TRACED_STEPS) -> list[Operation]:
    """A trace's operations by kind, the longest first; operations that XLA compiled by function and kind."""
    import_tensorflow()  # quietly, before its part
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    durations: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for plane in space.planes:
        if plane.name != "/host:CPU" and not plane.name.startswith("/device:GPU"):
            continue
        for line in plane.lines:
            for name, duration_ps in _own_times(plane, line):
                durations[name] += duration_ps / 1e9 / steps
                calls[name] += 1
    listed = [Operation(name, duration, calls[name] / steps) for name, duration in durations.items()]
    return sorted(listed, key=lambda operation: -operation.ms_per_step)


def _own_times(plane, line) -> list[tuple[str, int]]:
    """Name and picoseconds of each operation of a thread; the time of operations nested inside it is subtracted.

    XLA's "call" event encloses a fusion and does no work itself, so a call with nested events is left out.
    """
    events = []
    for event in line.events:
        name = _name(plane, event)
        if name is not None:
            events.append((event.offset_ps, -event.duration_ps, name))
    spans: list[list] = []
    open_events: list[tuple[int, int]] = []  # end, index in own
    for start, negative, name in sorted(events):
        while open_events and open_events[-1][0] <= start:
            open_events.pop()
        if open_events:
            spans[open_events[-1][1]][1] += negative
            spans[open_events[-1][1]][2] = False
        open_events.append((start - negative, len(spans)))
        spans.append([name, -negative, True])
    return [(name, max(0, duration)) for name, duration, leaf in spans if leaf or not name.endswith(": call")]


def _name(plane, event) -> str | None:
    """`_MklMatMul` for the event MatMul_82:_MklMatMul, `XLA layer: fusion` for a compiled one, None for others."""
    name = plane.event_metadata[event.metadata_id].name
    for stat in event.stats:
        if plane.stat_metadata[stat.metadata_id].name == "hlo_module":
            module = stat.str_value or plane.stat_metadata[stat.ref_value].name
            matched = _MODULE.fullmatch(module)
            kind = re.sub(r"(\.\d+|\.clone)+$", "", name)
            return f"XLA {matched[1] if matched else module}: {kind}"
    matched = _OPERATION.fullmatch(name)
    return matched[1] if matched else None


def main() -> None:
    """Trace a step and list its operations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _, words = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "bert_horovod", "bench", "step", *words, "--trace", directory, "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            sys.exit(done.returncode)
        measured = json.loads(done.stdout)
        listed = operations(Path(measured.pop("trace")))[:TOP]
    print(json.dumps(measured | {"operations": [operation._asdict() for operation in listed]}))


if __name__ == "__main__":
    main()
