#!/usr/bin/env python3
"""How fast an exported model answers: onnxruntime beside TensorFlow's SavedModel, on the CPU, with the same threads.

python lab/serving.py --model base --threads 2

A classifier of random parameters is exported in both formats. Each runtime has a process of its own, and computes while
the other waits; in each round every length and batch is timed in both, one after the other. A cell is the median of the
rounds' sentences a second; rows are full, without padding.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.measuring.configuration import SIZES, size_recipe
from bert_horovod.reporting.tables import lines, ratio
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.runtime.quiet import import_tensorflow
from lab.rounds import in_turn, say, started

KINDS = {"savedmodel": ("TensorFlow", np.int32), "onnx": ("onnxruntime", np.int64)}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def export_both(size: str, directory: Path) -> None:
    """Export a classifier of random parameters as directory/savedmodel and directory/onnx."""
    import_tensorflow()
    from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
    from bert_horovod.interchange.architectures import CLASSIFICATION, Architecture
    from bert_horovod.interchange.huggingface import write_directory
    from bert_horovod.model.parameters import initial_values
    from bert_horovod.runs.exporting import export

    model, architecture = size_recipe(size, []).model, Architecture(CLASSIFICATION, True, ("no", "yes"))
    words = [*SPECIAL, *(f"w{number}" for number in range(model.vocab_size - len(SPECIAL)))]
    parameters = initial_values(architecture.parameters(model), model.initializer_range, 0)
    write_directory(directory / "checkpoint", model, architecture, parameters, words, UNCASED)
    for kind in KINDS:
        begin = time.monotonic()
        exported = export(find_checkpoint(directory / "checkpoint"), directory / kind, kind)
        say(
            f"{kind}: {exported.size_bytes / 1e6:,.0f} MB, written and checked in {time.monotonic() - begin:.0f} s, at "
            f"most {exported.difference:.1e} from the checkpoint"
        )


def contestant(directory: str, kind: str, threads: int, seconds: float, cases: list[tuple[int, int]]) -> None:
    """Be a contestant: for each number on standard input, of a case, answer with its sentences a second."""
    from bert_horovod.interchange.exported import load_export

    if kind == "savedmodel":
        import_tensorflow()
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
    call, dtype = load_export(Path(directory) / kind, threads), KINDS[kind][1]
    for line in sys.stdin:
        length, batch = cases[int(line)]
        ones = np.ones((batch, length), dtype)
        rows = {"input_ids": 7 * ones, "attention_mask": ones, "token_type_ids": 0 * ones}
        call("serving_default", rows)
        calls, begin = 0, time.perf_counter()
        while time.perf_counter() < begin + seconds:
            call("serving_default", rows)
            calls += 1
        print(json.dumps([calls * batch / (time.perf_counter() - begin)]), flush=True)


def measure(arguments: argparse.Namespace, directory: Path) -> dict[tuple[str, int], list[float]]:
    """Sentences a second of each round, by kind and the number of the case."""
    cases = cases_of(arguments)
    words = [sys.executable, str(Path(__file__).resolve()), "--contestant"]
    commands = [
        (kind, [*words, json.dumps([str(directory), kind, arguments.threads, arguments.seconds, cases])], None)
        for kind in KINDS
    ]
    with started(commands, lambda _: 0) as running:
        asked = [(kind, number) for number in range(len(cases)) for kind in running]
        return in_turn(asked, arguments.rounds, lambda one, _: running[one[0]].ask(one[1])[0])


def cases_of(arguments: argparse.Namespace) -> list[tuple[int, int]]:
    """Lengths and batches."""
    return list(product(arguments.length, arguments.batch))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(SIZES), default="base", help="(default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="of an operation (default: %(default)s)")
    parser.add_argument("--length", type=int, nargs="+", default=[32, 128, 384], metavar="N", help="positions of a row")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], metavar="N", help="rows of a call")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2, metavar="S", help="of a measurement (default: %(default)s)")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contestant:
        return contestant(*json.loads(arguments.contestant))
    with tempfile.TemporaryDirectory(prefix="serving-") as directory:
        export_both(arguments.model, Path(directory))
        measured = measure(arguments, Path(directory))
    table = [("length x batch", *(f"{name}, sentences/s" for name, _ in KINDS.values()), "ratio")]
    for number, (length, batch) in enumerate(cases_of(arguments)):
        rates = [statistics.median(measured[kind, number]) for kind in KINDS]
        table.append((f"{length} x {batch}", *(f"{rate:,.1f}" for rate in rates), ratio(rates[1] / rates[0])))
    print(f"BERT-{arguments.model}, float32, {arguments.threads} threads")
    print(lines(table))


if __name__ == "__main__":
    main()
