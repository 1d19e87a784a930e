"""Time the training step without communication, with it overlapped with backward, and with all of it after backward.

bert-horovod launch -np 4 -hostfile hosts -- bench comm --recipe F     a recipe's first phase
bert-horovod launch -np 2 -- bench comm --model small --trace DIR      and a trace of one step

Rows are synthetic and full, with words as frequent as in text. "exposed" is the time that communication adds to the
step. The prediction is computed from the link (latency and bytes a second, fitted to all-reduces that are timed first)
and from backward's own profile; both also choose the buckets. The time "after backward in any plan" is communication
that no choice of buckets can hide.
"""

import argparse
import json
from pathlib import Path

from bert_horovod.commands.shared.step_flags import add_step, step_recipe
from bert_horovod.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the benchmark's flags."""
    add_step(parser)
    parser.add_argument("--trace", type=Path, metavar="DIR", help="write a trace of one overlapped step to DIR")
    parser.add_argument(
        "--delay",
        type=Path,
        metavar="FILE",
        help="sleep as long as FILE says (`delays` of --json) instead of computing, if ranks share cores",
    )
    parser.add_argument(
        "--warm_up", type=int, default=1, metavar="N", help="steps that are not timed, such as dense ones (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(arguments: argparse.Namespace) -> None:
    """Measure on all ranks; rank 0 prints."""
    recipe = step_recipe(arguments)
    from bert_horovod.collectives.launched import launch
    from bert_horovod.collectives.starting import connect
    from bert_horovod.measuring.communication import measure
    from bert_horovod.measuring.delayed import read_delays
    from bert_horovod.runtime.devices import use_devices

    if arguments.warm_up < 1:
        raise UserError(f"--warm_up {arguments.warm_up}: expected at least 1, because the first step compiles")
    launched = launch()
    if arguments.trace and launched.size == 1:
        raise UserError("--trace: one process has no all-reduces; start several: launch -np N -- bench comm ...")
    delays = read_delays(arguments.delay, recipe.model.layer_groups) if arguments.delay else None
    world = connect(launched, recipe, bool(arguments.trace))
    use_devices(world.local_rank, world.local_size, recipe.execution.threads)
    measured = measure(recipe, world, arguments.steps, delays, arguments.trace, arguments.warm_up)
    if world.rank == 0:
        print(json.dumps(measured) if arguments.json else _text(measured), flush=True)
    world.barrier()
    world.shutdown()


def _text(measured: dict) -> str:
    from bert_horovod.reporting.tables import lines

    step_s = measured["step_s"]
    rows = measured["rows_per_s"] * step_s.get("overlapped", step_s["off"])
    heading = ("communication", "step s", "exposed ms", "rows/s", "sent Mb/s", "cores busy")
    table = [heading]
    for name, seconds in step_s.items():
        sent = "-" if name == "off" else f"{8e-6 * measured['wire_bytes'] / seconds:.0f}"
        cells = [name, f"{seconds:.4f}", f"{1e3 * (seconds - step_s['off']):.1f}", f"{rows / seconds:.1f}", sent]
        table.append((*cells, f"{measured['cores_busy'][name]:.0%}"))
    text = (
        f"{measured['configuration']}; {measured['world_size']} rank(s), {measured['micro_batches']} micro-batch(es)\n"
        f"{lines(table)}"
    )
    if measured["world_size"] == 1:
        return text
    link, buckets = measured["link"], [f"{size / 1e6:.1f}" for size in measured["bucket_bytes"]]
    rows_sent = f", then {measured['rows']} looked-up rows" if measured["rows"] else ""
    predicted = ""
    if measured["predicted_s"] is not None:
        predicted = (
            f"\npredicted: {measured['predicted_s']:.4f} s, of which {1e3 * measured['floor_s']:.1f} ms come after "
            "backward in any plan"
        )
    return (
        f"{text}\n"
        f"buckets: {' + '.join(buckets)} MB{rows_sent}; "
        f"{measured['wire_bytes'] / 1e6:.1f} MB sent by a rank in a step\n"
        f"link: {1e3 * link['latency_s']:.2f} ms, {8e-9 * link['bytes_per_s']:.3f} Gb/s\n"
        f"of the time of all-reduces {measured['hidden_share']:.1%} lies before backward's end; "
        f"waited {1e3 * measured['reduce_wait_s']:.1f} ms after it{predicted}"
    )
