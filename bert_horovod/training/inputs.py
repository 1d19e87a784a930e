"""The inputs of optimizer steps: a rank's micro-batches as arrays, made in the background ahead of each step."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bert_horovod.batches.order import keyed_hash
from bert_horovod.batches.positions import micro_batch_count, step_positions
from bert_horovod.batches.source import Dataset, Source
from bert_horovod.batches.text.mask_rates import mask_rate
from bert_horovod.collectives.world import World
from bert_horovod.errors import DamagedData, ReportedError
from bert_horovod.model.forward import as_arrays
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe.settings import Phase
from bert_horovod.runtime.prefetching import prefetch
from bert_horovod.tasks.base import Task
from bert_horovod.training.run import Run
from bert_horovod.training.step_results import StepInputs

# The dropout stream of the recipe's seed; batches/text/rows.py uses other stream numbers.
_DROPOUT_STREAM = 101
_POSITIONS_AT_ONCE, _MOST_STEPS = 1 << 18, 64  # of a rank, made in one call: rows * sequence length, and steps


class StepBatch(NamedTuple):
    """This rank's part of a global batch."""

    number: int  # number of the global batch in the phase
    micro_batches: list[dict[str, np.ndarray]]  # float32 or int32
    first_rows: list[int]  # for each micro-batch, the place of its first row in the global batch
    counts: dict[str, int]  # the task's counts of these rows
    tokens: int  # real tokens, without padding


def step_batches(run: Run) -> Iterator[tuple[StepBatch, float]]:
    """The phase's remaining global batches, after the run's progress, with the seconds that the step waited for each.

    A background thread makes them. Raises DamagedData if the data hold an id that is not in the model's vocabulary.
    """
    phase, progress = run.phase, run.state.progress
    passed_over = progress.passed_over.get(str(phase.number), 0) - phase.begin
    batches = Batches(phase.settings.global_batch, phase.settings, phase.source, run.job.dataset, run.task, run.recipe)
    return batches.ahead(progress.step + passed_over, phase.end + passed_over, run.world)


class Batches(NamedTuple):
    """The global batches of a phase, of `rows` rows over all ranks."""

    rows: int
    phase: Phase
    source: Source
    dataset: Dataset
    task: Task
    recipe: Recipe

    def ahead(self, first: int, last: int, world: World) -> Iterator[tuple[StepBatch, float]]:
        """This rank's parts of the batches [first, last), and raises, as step_batches.

        The rows of several steps are made in one call, because a call has a fixed cost for each store; of the first
        step alone, because nothing is trained meanwhile.
        """
        micro_batch = self.recipe.execution.micro_batch
        positions = micro_batch_count(self.rows, world.size, micro_batch) * micro_batch * self.phase.sequence_length
        most = max(1, min(_MOST_STEPS, _POSITIONS_AT_ONCE // positions))
        rate = mask_rate(self.recipe, self.phase)
        made: deque[StepBatch] = deque()

        def make(number: int) -> StepBatch:
            if not made:
                numbers = np.arange(number, min(number + (most if number > first else 1), last))
                stairs = rate.stair(numbers * self.rows)
                numbers = numbers[stairs == stairs[0]]  # so that rows have as many masked slots as alone
                try:
                    made.extend(self._made(numbers, world))
                except ReportedError:
                    if len(numbers) == 1:
                        raise
                    made.extend(self._made(numbers[:1], world))  # rows of a later step may be at fault
            return made.popleft()

        return prefetch(make, first, last, depth=2 * most)

    def _made(self, numbers: np.ndarray, world: World) -> list[StepBatch]:
        """This rank's parts of the batches with these numbers, int64 [steps], made together."""
        steps = [
            step_positions(number, self.rows, world.rank, world.size, self.recipe.execution.micro_batch)
            for number in numbers.tolist()
        ]
        rows = self.source.assemble(np.concatenate([positions for step in steps for positions, _ in step]))
        if (highest := rows["input_ids"].max()) >= self.recipe.model.vocab_size:
            paths = [store.path for store in getattr(self.dataset, "stores", {}).values()] or [self.dataset.path]
            raise DamagedData(
                f"the data in {self.dataset.path} hold id {highest}, the model has {self.recipe.model.vocab_size} "
                "entries; see which shard of a token store is damaged with: "
                f"{'; '.join(f'bert-horovod verify {path}' for path in paths)}"
            )
        parts = {name: np.split(array, len(steps)) for name, array in rows.items()}
        batches = []
        for i, (number, step) in enumerate(zip(numbers.tolist(), steps, strict=True)):
            together = {name: part[i] for name, part in parts.items()}
            pieces = {name: np.split(array, len(step)) for name, array in together.items()}
            arrays = [as_arrays({name: piece[k] for name, piece in pieces.items()}) for k in range(len(step))]
            tokens = int(np.count_nonzero(together["sequence_ids"]))
            counts = self.task.batch_counts(together)
            batches.append(StepBatch(number, arrays, [first_row for _, first_row in step], counts, tokens))
        return batches


def micro_batch_of(
    rank: int, k: int, number: int, rows: int, source: Source, recipe: Recipe, world: World
) -> tuple[dict[str, np.ndarray], int]:
    """Micro-batch k of any rank in global batch `number`, as in StepBatch: its arrays, and its first row's place."""
    positions, first_row = step_positions(number, rows, rank, world.size, recipe.execution.micro_batch)[k]
    return as_arrays(source.assemble(positions)), first_row


def step_inputs(
    recipe: Recipe, step: int, task: dict[str, list[float]], counts: dict[str, float], learning_rate: float
) -> StepInputs:
    """The inputs that all micro-batches of a step share; `step`: steps of the run before it; `task`: Progress.task."""
    return StepInputs(
        {name: np.asarray(count, np.float32) for name, count in counts.items()},
        np.asarray(learning_rate, np.float32),
        np.asarray(keyed_hash(recipe.data.seed, _DROPOUT_STREAM, index=np.array([step], np.uint64)), np.uint64),
        {name: np.asarray(numbers, np.float32) for name, numbers in task.items()},
    )
