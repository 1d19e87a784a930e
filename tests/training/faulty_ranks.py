"""Run under horovodrun by tests: trains while one rank alone meets a fault.

    faulty_ranks.py RECIPE DATA_DIR OUTPUT_DIR FAULT FIRST LAST

FAULT, on rank 1, or the only one: "not-finite", the weights of the rows at positions FIRST to LAST - 1 are not numbers;
"jump", they are 1000; "bit", after step FIRST a bit of a parameter flips in memory.
"""

import sys

import numpy as np

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.batches.rows import Rows
from bert_horovod.collectives.launched import launch
from bert_horovod.training.step import TrainStep

PARAMETER = "bert.encoder.layer.1.output.dense.weight"
recipe, data_dir, output_dir, fault, first, last = sys.argv[1:]
first, last = int(first), int(last)
launched = launch()
faulty = launched.rank == min(1, launched.size - 1)
assemble, run_step = Rows.assemble, TrainStep.run


def assemble_faulty(self: Rows, positions: np.ndarray) -> dict[str, np.ndarray]:
    batch = assemble(self, positions)
    bad = (first <= positions) & (positions < last)
    batch["masked_weights"][bad] *= np.float32(np.nan if fault == "not-finite" else 1000)
    return batch


def run_and_flip(self: TrainStep, *arguments):
    result = run_step(self, *arguments)
    if self._state.progress.step + 1 == first:
        variable = self._state.parameters[PARAMETER]
        bits = variable.numpy().view(np.uint32)
        bits[3, 5] ^= 1 << 7
        variable.assign(bits.view(np.float32))
    return result


if faulty and fault == "bit":
    TrainStep.run = run_and_flip
elif faulty:
    Rows.assemble = assemble_faulty
words = ["bert-horovod", "pretrain", "--recipe", recipe, "--data_dir", data_dir, "--output_dir", output_dir]
sys.exit(dispatch(parse(words)))
