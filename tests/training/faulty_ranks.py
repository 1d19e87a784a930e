"""Run under horovodrun by tests: trains while one rank alone meets a fault.

    faulty_ranks.py RECIPE DATA_DIR OUTPUT_DIR FAULT FIRST LAST

FAULT, on rank 1, or the only one: "not-finite", the weights of the rows at positions FIRST to LAST - 1 are not numbers;
"jump", they are 1000; "bit", after step FIRST a bit of a parameter flips in memory, see flip_a_bit_after.
"""

import sys

import numpy as np

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.batches.rows import Rows
from bert_horovod.collectives.launched import launch
from bert_horovod.training.step import TrainStep

PARAMETER = "bert.encoder.layer.1.output.dense.weight"


def spoil_rows(value: float, first: int, last: int) -> None:
    """Have the weights of these rows multiplied."""
    assemble = Rows.assemble

    def assemble_faulty(self: Rows, positions: np.ndarray) -> dict[str, np.ndarray]:
        batch = assemble(self, positions)
        bad = (first <= positions) & (positions < last)
        batch["masked_weights"][bad] *= np.float32(value)
        return batch

    Rows.assemble = assemble_faulty


def flip_a_bit_after(step: int) -> None:
    """Have a bit of a parameter flip in memory after this step of the run."""
    run_step = TrainStep.run

    def run_and_flip(self: TrainStep, *arguments):
        result = run_step(self, *arguments)
        if self._state.progress.step + 1 == step:
            variable = self._state.parameters[PARAMETER]
            bits = variable.numpy().view(np.uint32)
            bits[3, 5] ^= 1 << 7
            variable.assign(bits.view(np.float32))
        return result

    TrainStep.run = run_and_flip


if __name__ == "__main__":
    recipe, data_dir, output_dir, fault, first, last = sys.argv[1:]
    launched = launch()
    if launched.rank != min(1, launched.size - 1):
        pass
    elif fault == "bit":
        flip_a_bit_after(int(first))
    else:
        spoil_rows(np.nan if fault == "not-finite" else 1000, int(first), int(last))
    words = ["bert-horovod", "pretrain", "--recipe", recipe, "--data_dir", data_dir, "--output_dir", output_dir]
    sys.exit(dispatch(parse(words)))
