"""Finds a device that computes wrongly: ranks compute one another's micro-batches once more, and compare checksums.

A wrong gradient enters the sum over ranks, so all ranks agree on a wrong state, and ConsistencyHook sees nothing. But
rows and dropout are functions of position, so any rank can compute any micro-batch, and equal devices agree to the bit.
Which ranks are equal is tried at a phase's start, on one common micro-batch. Ranks that were equal in the phase before
and no longer are try that phase's once more: other shapes may choose other kernels, a bad device differs there too.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from bert_horovod.errors import WrongDevice
from bert_horovod.runs.checkpoint import step_of
from bert_horovod.runs.saving import put_aside
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.training.hooks.base import Hook, StepEvent
from bert_horovod.training.inputs import StepBatch, micro_batch_of
from bert_horovod.training.rechecking import Recheck
from bert_horovod.training.run import Run
from bert_horovod.training.step import TrainStep
from bert_horovod.training.step_results import StepInputs

_MOST_REPEATED = 8  # micro-batches that all ranks repeat to decide which rank is wrong


class _Replayed(NamedTuple):
    """The micro-batches that ranks computed once more, before the step that trains on them."""

    batch: int  # number of the global batch
    k: int  # of the micro-batch in each owner's part of it
    owners: list[int]  # by rank: whose micro-batch it computed
    checksums: tf.Tensor  # this rank's, int64 [tensors]
    parameters: dict[str, np.ndarray]  # as they were; empty if each rank repeated its own
    loss_scale: float


class _Common(NamedTuple):
    """A micro-batch that all ranks compute, and how."""

    recheck: Recheck
    arguments: tuple[dict[str, np.ndarray], int, StepInputs]


class ReplayHook(Hook):
    """Checks every execution.replay_steps steps and before each checkpoint.

    Ranks that hold parameters of their own repeat their own micro-batches; they still find what differs between tries.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._every = run.recipe.execution.replay_steps
        self._checks = 0
        self._groups: list[list[int]] | None = None  # ranks that agree to the bit; None: not tried yet
        exchange = run.recipe.exchange
        self._alone = exchange.trains_copies or exchange.agreement > 1

    def phase(self) -> None:
        self._groups_before, self._groups = self._groups, None
        self._replayed: _Replayed | None = None
        if not self._every:
            self.run.state.progress.checked = 0  # so that no checkpoint is kept for it

    def wants_replay(self, step: int) -> bool:
        return self._every > 0 and (self._groups is None or self._is_due(step))

    def wants_state(self, step: int) -> bool:
        return self._replayed is not None

    def replay(self, step: int, train_step: TrainStep, batch: StepBatch, inputs: StepInputs) -> int | None:
        run = self.run
        if self._groups is None:
            before = self._common if self._groups_before else None
            self._common = _Common(Recheck(train_step), (*self._micro_batch(0, 0, batch.number), inputs))
            self._groups = self._tried_groups()
            parted = any(not any({*old} <= {*new} for new in self._groups) for old in self._groups_before or ())
            if self._every and parted:
                self._require_equal(before, self._groups_before)
        if not self._every or not self._is_due(step):
            return None
        k, turn = self._checks % run.phase.micro_batches, self._checks // run.phase.micro_batches
        self._checks += 1
        owners = owners_of(self._groups, run.world.size, turn)
        micro_batch = self._micro_batch(owners[run.world.rank], k, batch.number)
        parameters = self._common.recheck.parameters_now() if any(len(group) > 1 for group in self._groups) else {}
        self._names, checksums = self._common.recheck.replay(*micro_batch, inputs)
        self._replayed = _Replayed(batch.number, k, owners, checksums, parameters, run.state.progress.loss_scale)
        return k

    def step(self, event: StepEvent) -> None:
        replayed, self._replayed = self._replayed, None
        if replayed is None or not event.result.finite:  # what is not finite has other bits here and there
            return
        self.run.doing("comparing gradients")
        trained, tries = self._of_all_ranks(event.result.checksums, replayed.checksums)
        differing = [rank for rank, owner in enumerate(replayed.owners) if (tries[rank] != trained[owner]).any()]
        if differing:
            self._decide(event, replayed, trained, tries, differing)
        elif self._every:
            self.run.state.progress.checked = event.step

    def stopping(self) -> None:
        """Try the common micro-batch before the checkpoint of a run that is asked to stop: its last step is done."""
        progress = self.run.state.progress
        if not self._every or not self._groups or progress.checked == progress.step:
            return
        self._require_equal(self._common, self._groups)
        progress.checked = progress.step

    def _require_equal(self, common: _Common, groups: list[list[int]]) -> None:
        """Try a common micro-batch; raises WrongDevice if the ranks of a group no longer compute it alike."""
        first, second = self._tries_of(common)
        differing = np.flatnonzero((first != second).any(1)).tolist()
        wrong, unsure, differs = set(differing), set(), first != second
        for group in groups:
            odd = {rank for rank in group if (first[rank] != first[group[0]]).any()}
            right = most_common(first[group])
            differs[group] |= first[group] != first[group[0]]
            if odd and (right is None or len(group) == 2):
                unsure |= set(group)
            elif odd:
                wrong |= {rank for rank in group if (first[rank] != right).any()}
        if wrong or unsure:
            self._end(self.run.state.progress.step, wrong, unsure - wrong, differs.any(0))

    def rolled_back(self) -> None:
        self._replayed = None

    def _is_due(self, step: int) -> bool:
        return step % self._every == 0 or self.run.save_due(step)

    def _micro_batch(self, rank: int, k: int, batch: int) -> tuple[dict[str, np.ndarray], int]:
        run, rows = self.run, self.run.phase.settings.global_batch
        return micro_batch_of(rank, k, batch, rows, run.phase.source, run.recipe, run.world)

    def _of_all_ranks(self, *checksums: np.ndarray | tf.Tensor) -> tuple[np.ndarray, ...]:
        """Each of these checksums of all ranks, int64 [ranks, tensors]."""
        own = np.stack([np.asarray(each) for each in checksums])
        with tf.device("/CPU:0"):
            everyone = self.run.world.all_gather(tf.constant(own[None]), "replay").numpy()
        return tuple(everyone.swapaxes(0, 1))

    def _tries_of(self, common: _Common) -> tuple[np.ndarray, ...]:
        tries = [common.recheck.replay(*common.arguments) for _ in range(2)]
        self._names = tries[0][0]
        return self._of_all_ranks(*(checksums for _, checksums in tries))

    def _tried_groups(self) -> list[list[int]]:
        """The ranks that compute the common micro-batch alike, largest group first."""
        run = self.run
        alone = [[rank] for rank in range(run.world.size)]
        if self._alone:
            return alone
        first, second = self._tries_of(self._common)
        if (first != second).any(1).all():
            self._give_up(
                "each rank's two tries of one micro-batch differ, because this computation does not repeat itself or, "
                "with one rank, because its device is bad"
            )
            return alone
        groups: dict[bytes, list[int]] = {}
        for rank, checksums in enumerate(first):
            groups.setdefault(checksums.tobytes(), []).append(rank)
        largest_first = sorted(groups.values(), key=len, reverse=True)
        if others := [rank for group in largest_first[1:] for rank in group]:
            self._tell(
                f"warning: {self._named(others)} computed a micro-batch otherwise than the other ranks, by some bits: "
                "gradients are compared among equal ranks alone, and a rank without an equal repeats its own. Other "
                "devices, processors or libraries do that; on equal hosts it may be a bad device: look at it before "
                "the run goes on"
            )
        else:
            run.state.progress.checked = run.state.progress.step
        return largest_first

    def _decide(
        self, event: StepEvent, replayed: _Replayed, trained: np.ndarray, tries: np.ndarray, differing: list[int]
    ) -> None:
        """Let all ranks repeat the micro-batches in question, with the parameters of that time, and name who is wrong.

        Raises WrongDevice on all ranks, unless no device can be at fault.
        """
        recheck, progress, owners, votes = self._common.recheck, self.run.state.progress, replayed.owners, {}
        others = [owners[rank] for rank in differing if owners[rank] != rank][:_MOST_REPEATED]
        if others:
            now = recheck.parameters_now()
            recheck.set_back(replayed.parameters, event.loss_scale)
            for owner in others:
                micro_batch = self._micro_batch(owner, replayed.k, replayed.batch)
                (votes[owner],) = self._of_all_ranks(recheck.replay(*micro_batch, event.inputs)[1])
            recheck.set_back(now, progress.loss_scale)
        found = verdict(self._groups or [], owners, differing, trained, tries, votes)
        if found is None:
            self._give_up("on every rank the gradient that was trained differs from its repetitions, which agree")
            return
        self._end(event.step, *found, np.any([tries[rank] != trained[owners[rank]] for rank in differing], 0))

    def _end(self, step: int, wrong: set[int], unsure: set[int], tensors: np.ndarray) -> None:
        """Put aside the checkpoints since the last good check, and raise WrongDevice."""
        run = self.run
        names = [name for name, differs in zip(self._names, tensors, strict=True) if differs]
        more = f" (and in {len(names) - 1} more)" if len(names) > 1 else ""
        run.settle()
        for hook in run.hooks:
            hook.put_aside(run.state.progress.checked)
        aside, left = put_aside(run.job.output_dir, run.state.progress.checked) if run.world.rank == 0 else ([], None)
        where = f"from {left}" if left else "from the beginning"
        put = f"Put aside, as they may be wrong: {', '.join(path.name for path in aside)}. " if aside else ""
        if wrong:
            who = "; ".join(f"{self._named([rank])} computes wrongly" for rank in sorted(wrong))
            mend = "`launch --restarts` leaves its host out; else look at that device, or leave the host out by hand"
        else:
            who = f"{self._named(sorted(unsure))} disagree, and no third rank decides which computes wrongly"
            mend = "look at the devices of both"
        text = (
            f"step {step}: {who}: the same rows, dropout and parameters gave another gradient in {names[-1]}{more}. "
            f"{put}The same command goes on {where}; {mend}"
        )
        if run.journal is not None:
            run.journal.cut_back(resumed := step_of(left.name) if left else 0)
            run.journal.incident(resumed, text)
        raise WrongDevice(text)

    def _give_up(self, why: str) -> None:
        """Check no more: what differs is not a device's fault, or cannot be told from it."""
        self._every = 0
        self._tell(f"warning: {why}: gradients are not checked (execution.replay_steps) from here on")

    def _tell(self, text: str) -> None:
        if self.run.journal is not None:
            self.run.journal.incident(self.run.state.progress.step, text)

    def _named(self, ranks: list[int]) -> str:
        return " and ".join(f"rank {rank} on {self.run.hosts[rank]}" for rank in ranks)


def owners_of(groups: list[list[int]], size: int, turn: int) -> list[int]:
    """By rank: whose micro-batch it repeats. It is another one of its group each turn; its own in a group of one.

    >>> [owners_of([[0, 1, 2], [3]], 4, turn) for turn in range(3)]
    [[1, 2, 0, 3], [2, 0, 1, 3], [1, 2, 0, 3]]
    """
    owners = list(range(size))
    for group in groups:
        distance = 1 + turn % (len(group) - 1) if len(group) > 1 else 0
        for place, rank in enumerate(group):
            owners[rank] = group[(place + distance) % len(group)]
    return owners


def most_common(checksums: np.ndarray) -> np.ndarray | None:
    """The row of int64 [ranks, tensors] that two or more ranks have, and more than have any other; None: there is none.

    >>> most_common(np.array([[1, 5], [1, 6], [1, 5]]))
    array([1, 5])
    """
    counts = Counter(row.tobytes() for row in checksums).most_common(2)
    if counts[0][1] < 2 or (len(counts) > 1 and counts[1][1] == counts[0][1]):
        return None
    return np.frombuffer(counts[0][0], checksums.dtype)


def verdict(
    groups: list[list[int]],
    owners: list[int],
    differing: list[int],
    trained: np.ndarray,
    tries: np.ndarray,
    votes: dict[int, np.ndarray],
) -> tuple[set[int], set[int]] | None:
    """The ranks that computed wrongly, and those of which one did; None: no rank can be at fault.

    `groups`: ranks that agreed to the bit at the start. `owners`: by rank, whose micro-batch it computed once more.
    `differing`: ranks whose checksums are not the owner's. Checksums are int64 [ranks, tensors]: of the gradient that a
    rank trained, of its `tries` of the owner's micro-batch, and, as `votes` by owner, of all ranks that computed it
    afterwards.
    """
    group_of = {rank: group for group in groups for rank in group}
    repeated = {rank: owners[rank] for rank in differing if owners[rank] in votes}
    if len(differing) == len(owners) > 1 and all(
        (votes[owner][group_of[rank]] == tries[rank]).all() for rank, owner in repeated.items()
    ):
        return None
    wrong, unsure = {rank for rank in differing if owners[rank] == rank}, set()
    for rank, owner in repeated.items():
        group, of_all = group_of[rank], votes[owner]
        right = most_common(of_all[group])
        if right is None or len(group) == 2:
            unsure |= {rank, owner}
            continue
        wrong |= {each for each in group if (of_all[each] != right).any()}
        wrong |= {each for each, own in ((owner, trained[owner]), (rank, tries[rank])) if (own != right).any()}
    return wrong, unsure - wrong
