"""Compares the state over ranks during training, because a flipped bit on one rank would otherwise spread unnoticed."""

from __future__ import annotations

from bert_horovod.collectives.world import World
from bert_horovod.errors import RunError
from bert_horovod.runs.state import TrainingState
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.training.hooks.base import Hook, StepEvent
from bert_horovod.training.step_results import checksum


class ConsistencyHook(Hook):
    """Compares the state every execution.consistency_steps steps and before each checkpoint."""

    def phase(self) -> None:
        self._consistency = Consistency(self.run.state, self.run.world)

    def wants_state(self, step: int) -> bool:
        every = self.run.recipe.execution.consistency_steps
        return bool(every) and (self.run.save_due(step) or step % every == 0)

    def step(self, event: StepEvent) -> None:
        if self.wants_state(event.step):
            self.run.doing("comparing the state over ranks")
            self._consistency.check(event.step)


class Consistency:
    """Compares checksums of parameters and slots over ranks."""

    def __init__(self, state: TrainingState, world: World) -> None:
        self._world = world
        variables = state.variables()
        self._names = list(variables)
        self._checksums = tf.function(lambda: tf.stack([checksum(v) for v in variables.values()]), autograph=False)

    def check(self, step: int) -> None:
        """Raise RunError, on all ranks, if the state differs between ranks; it names tensors and ranks."""
        if self._world.size == 1:
            return
        own_checksums = self._checksums()
        largest, negative = tf.split(
            self._world.all_reduce_max(tf.concat([own_checksums, -own_checksums], 0), "checksums"), 2
        )
        differ = tf.where(largest != -negative)[:, 0].numpy().tolist()
        if not differ:
            return
        everyone = self._world.all_gather(own_checksums[None], "checksums.all").numpy()
        differing = []
        for i in differ[:10]:
            ranks_by_checksum, ranks = {}, everyone[:, i].tolist()
            for rank, checksum_of_rank in enumerate(ranks):
                ranks_by_checksum.setdefault(checksum_of_rank, []).append(rank)
            # The last group counts as right: the largest, or on a tie rank 0's.
            groups = sorted(ranks_by_checksum.values(), key=lambda group: (len(group), 0 in group))
            odd = [str(rank) for group in groups[:-1] for rank in group]
            differing.append(f"{self._names[i]} of rank {', '.join(odd)} is not that of rank {groups[-1][0]}")
        more = f" and {len(differ) - 10} more tensors" if len(differ) > 10 else ""
        raise RunError(
            f"step {step}: ranks no longer hold the same state: {'; '.join(differing)}{more}. Memory, a device or the "
            "network of a host has changed numbers: look at that host before going on. The last checkpoint is from "
            "before: the same command resumes from it"
        )
