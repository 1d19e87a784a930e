"""Time the optimizer step: on synthetic rows or a store's, alone or on many ranks, with its communication on or off.

bert-horovod bench step --model base                                        BERT-base, 16 rows of 128
bert-horovod bench step --recipe F --data_dir D                             a recipe's step, on rows of a token store
bert-horovod launch -np 4 -hostfile hosts -- bench step --recipe F --communication on off held_back

Synthetic rows are full, with words as frequent as in text. One process on synthetic rows also times forward and
backward alone, and the step's matrix products alone. A step of more than two micro-batches is timed with two, because
all but the last are alike; step s and rows/s are of the whole step.

With --communication several ranks time the step with its sums overlapped with backward (on), without them (off), and
all of them after backward (held_back), in turns; "exposed" is what communication adds to the step. The prediction is
computed from the link, which is measured first, and from backward's own profile. docs/speed.md says how to read it.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from bert_horovod.commands.shared.flags import add_data_dirs, add_tuned, require_least
from bert_horovod.commands.shared.step_flags import add_step, step_recipe
from bert_horovod.errors import RunError, UserError
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.wording import megabytes

_KINDS = ("on", "off", "held_back")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the benchmark's flags."""
    add_step(parser)
    parser.add_argument("--phase", type=int, default=0, metavar="N", help="phase, from 0 (default: %(default)s)")
    add_tuned(parser)
    add_data_dirs(parser, required=False, more=" of the rows (default: synthetic rows)")
    parser.add_argument("--index_dir", type=Path, metavar="DIR", help="where row indices go if the store is read-only")
    parser.add_argument(
        "--communication",
        nargs="+",
        choices=_KINDS,
        metavar="KIND",
        help=f"{', '.join(_KINDS)}: each is timed in turn, with a training state of its own (default: on)",
    )
    parser.add_argument(
        "--world_size", type=int, metavar="N", help="do one rank's work of so many alone (default: of those started)"
    )
    parser.add_argument(
        "--warm_up", type=int, default=3, metavar="N", help="steps that are not timed (default: %(default)s)"
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="DIR",
        help="write a TensorBoard trace of two steps to DIR; with several ranks a Chrome trace of one",
    )
    parser.add_argument("--memory", metavar="SIZE", help="end a CPU rank that takes more, as 16GiB or 900MiB")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(arguments: argparse.Namespace) -> None:
    """Measure on all ranks; rank 0 prints."""
    from bert_horovod.collectives.launched import launch

    launched = launch()
    if arguments.world_size is not None and launched.size > 1:
        raise UserError(f"--world_size {arguments.world_size}: {launched.size} ranks are started; leave it out")
    require_least("--world_size", arguments.world_size)
    require_least("--warm_up", arguments.warm_up)
    recipe = step_recipe(arguments, arguments.world_size or launched.size, arguments.phase)
    if arguments.trace and arguments.trace.exists() and not arguments.trace.is_dir():
        raise UserError(f"--trace {arguments.trace}: that is a file; name a directory for the trace")
    stores = None
    if arguments.data_dir:
        from bert_horovod.batches.text.mixture import check_mixtures
        from bert_horovod.corpus.stores import open_stores

        stores = open_stores(arguments.data_dir)
        check_mixtures(recipe, stores)

    from bert_horovod.batches.layout import check_vocabulary
    from bert_horovod.collectives.starting import connect
    from bert_horovod.measuring.bench import Bench, parts
    from bert_horovod.measuring.largest_micro_batch import parse_bytes
    from bert_horovod.measuring.synthetic import LoneRank
    from bert_horovod.runtime.devices import host_has_gpu, use_devices
    from bert_horovod.runtime.host import OUT_OF_MEMORY, end_above
    from bert_horovod.tasks.pretraining import Pretraining
    from bert_horovod.training.job import check_size

    if stores:
        check_vocabulary(recipe, next(iter(stores.values())))
        check_size(recipe, Pretraining(recipe.objective.pairs), launched.size)
    if arguments.memory and not host_has_gpu():
        end_above(parse_bytes(arguments.memory, "--memory"))
    world = connect(launched, recipe, bool(arguments.trace))
    use_devices(world.local_rank, world.local_size, recipe.execution.threads)
    try:
        as_rank = LoneRank(arguments.world_size) if arguments.world_size else world
        bench = Bench(recipe, as_rank, arguments.communication or ("on",), stores, arguments.index_dir)
        measured = bench.run(arguments.steps, arguments.warm_up)
        if world.size == 1 and not (stores or arguments.communication):
            measured |= parts(bench.step, arguments.steps, measured)
        if arguments.trace:
            measured["trace"] = str(bench.trace(arguments.trace))
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        raise RunError(f"{OUT_OF_MEMORY}: {error}") from error
    bench.close()
    if world.rank == 0:
        print(json.dumps(measured) if arguments.json else _text(measured), flush=True)
    world.barrier()
    world.shutdown()


def _text(measured: dict[str, Any]) -> str:
    from bert_horovod.reporting.tables import lines, table

    told = [table([measured]), f"{measured['world_size']} rank(s), {measured['micro_batches']} micro-batch(es) a step"]
    if measured["input_wait_s"]:
        told[-1] += f"; waited {measured['input_wait_s']:.4g} s for rows in a step"
    if "products_s" in measured:
        told.append(
            f"of a micro-batch: forward and backward {measured['forward_backward_s']:.4g} s, "
            f"matrix products alone {measured['products_s']:.4g} s"
        )
    if "wire_bytes" in measured:
        told.append(
            f"{megabytes(measured['wire_bytes'])} sent by a rank in a step; of the time of all-reduces "
            f"{measured['hidden_share']:.1%} lies before backward's end; "
            f"waited {1e3 * measured['reduce_wait_s']:.1f} ms after it"
        )
    if "exposed_s" in measured:
        cells = [("communication", "step s", "exposed ms", "sent Mb/s", "cores busy")]
        for kind, timed in measured["communication"].items():
            seconds = timed["step_s"]
            exposed_ms = 1e3 * (seconds - measured["communication"]["off"]["step_s"])
            sent = "-" if kind == "off" else f"{8e-6 * measured['wire_bytes'] / seconds:.0f}"
            cells.append((kind, f"{seconds:.4f}", f"{exposed_ms:.1f}", sent, f"{timed['cores_busy']:.0%}"))
        link_ms, link_gb = 1e3 * measured["link"]["latency_s"], 8e-9 * measured["link"]["bytes_per_s"]
        buckets = " + ".join(f"{size / 1e6:.1f}" for size in measured["bucket_bytes"])
        rows = f", then {measured['rows']} looked-up rows" if measured["rows"] else ""
        told += [
            lines(cells),
            f"buckets: {buckets} MB{rows}; link: {link_ms:.2f} ms, {link_gb:.3f} Gb/s",
        ]
        if measured["predicted_s"] is not None:
            told.append(
                f"predicted: {measured['predicted_s']:.4f} s, of which {1e3 * measured['floor_s']:.1f} ms come after "
                "backward in any plan"
            )
    if "trace" in measured:
        told.append(f"trace: {measured['trace']}")
    return "\n".join(told)
