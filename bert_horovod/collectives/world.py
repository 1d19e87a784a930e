"""The world of ranks: the only module that imports Horovod's collectives (horovod.tensorflow)."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from bert_horovod.collectives.launched import Launch, check_horovodruns_server
from bert_horovod.collectives.meetings import meetings
from bert_horovod.errors import UserError
from bert_horovod.recipe.reductions import may_sum_in_two_steps, sums_by_host
from bert_horovod.recipe.sections import Execution, Recipe


class World:
    """A world of one process, which needs no Horovod; its collectives return what they are given."""

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1

    @property
    def hosts(self) -> "Hosts":
        """Two smaller worlds: the ranks of this host, and from each host the rank with this rank's local rank.

        If hosts have different numbers of ranks, each rank counts as a host of its own.
        """
        return Hosts(World(), self)

    def all_reduce(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """The sum over ranks: float16, float32, float64, int32 or int64, in a graph or eagerly."""
        return tensor

    def all_reduce_max(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """The maximum over ranks, element by element: uint8 or int64, in a graph or eagerly."""
        return tensor

    def broadcast(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Rank 0's tensor."""
        return tensor

    def all_gather(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """All ranks' tensors, one after another along the first axis."""
        return tensor

    def all_to_all(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Cut each rank's tensor along the first axis into one equal part per rank; rank r gets all parts number r."""
        return tensor

    def swap(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """The other rank's tensor, of the same shape, in a world of two; of any dtype whose bits are whole bytes."""
        return tensor

    def barrier(self) -> None:
        """Wait until every rank is here."""

    def record_timeline(self, path: Path | None) -> None:
        """From now on write Horovod's operations to a Chrome trace; None: stop that. Needs execution.timeline."""

    def in_flight(self) -> list[str]:
        """The names of the collectives that this rank has begun and not ended; any thread may call this."""
        return []

    def shutdown(self) -> None:
        """Leave the world in order."""


class Hosts(NamedTuple):
    """A world divided by hosts; this rank is a member of `inside` and of `across`."""

    inside: World  # the ranks of this host
    across: World  # one rank of each host; of this host it is this rank


class HorovodWorld(World):
    """The ranks that Horovod joined, or a group of them.

    Args:
        horovod: the library.
        group: the process set; None: all ranks.
        label: put after the names of the group's collectives, because two groups may not use the same name.
        groups: process sets, one for each host and one for each place in a host; empty: none were made.
        pairs: by rank, the group of this rank and that one, in the order in which these groups were made.
    """

    def __init__(
        self,
        horovod,
        group=None,
        label: str = "",
        groups: tuple[list, list] = ([], []),
        pairs: dict[int, "HorovodWorld"] | None = None,
    ) -> None:
        self._horovod = horovod
        self._label = label
        self._group = {} if group is None else {"process_set": group}
        self.rank, self.size = (horovod.rank(), horovod.size()) if group is None else (group.rank(), group.size())
        self.local_rank, self.local_size = horovod.local_rank(), horovod.local_size()
        self._counts: dict[str, tf.Tensor] = {}  # a collective's name -> handle of an int64 variable
        self._groups, self._pairs = groups, pairs or {}
        self._in_pairs = len(self._pairs) == self.size - 1  # else there are none, or of the ranks across hosts only
        self._hosts: Hosts | None = None

    @property
    def hosts(self) -> Hosts:
        # All ranks must make the first call together. `connect` does not, because a collective starts TensorFlow's
        # devices.
        if self._hosts is None:
            self._hosts = self._joined_hosts() or super().hosts
        return self._hosts

    def _joined_hosts(self) -> Hosts | None:
        """The groups that Horovod made at its start; None if any rank is not at the place that was assumed then."""
        inside, across = self._groups
        if not inside:
            return None
        host, place = divmod(self.rank, self.local_size)
        right = len(inside) == self._horovod.cross_size() and host == self._horovod.cross_rank()
        right = right and place == self.local_rank and len(across) == self.local_size
        with tf.init_scope():
            agree = self.all_reduce(tf.constant([int(right)]), "hosts").numpy()[0] == self.size
        if not agree:
            return None
        pairs = {rank // self.local_size: pair for rank, pair in self._pairs.items()}
        return Hosts(
            HorovodWorld(self._horovod, inside[host], f".inside.{host}"),
            HorovodWorld(self._horovod, across[place], f".across.{place}", pairs=pairs),
        )

    def all_reduce(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return self._marked(name, tensor, partial(self._horovod.allreduce, op=self._horovod.Sum))

    def all_reduce_max(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return self._marked(name, tensor, partial(self._horovod.allreduce, op=self._horovod.Max))

    def broadcast(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return self._marked(name, tensor, partial(self._horovod.broadcast, root_rank=0))

    def all_gather(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return self._marked(name, tensor, self._horovod.allgather)

    def all_to_all(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        if not self._in_pairs:
            # Horovod returns a pair only if it is given splits.
            return self._marked(name, tensor, self._horovod.alltoall)
        # Gloo's all-to-all was seen to use 0.65 of a link of 4 hosts; swaps in pairs use 0.83, see docs/speed.md.
        parts = tf.split(tensor, self.size)
        swapped = {rank: pair.swap(parts[rank], name) for rank, pair in self._pairs.items()}
        return tf.concat([swapped.get(rank, parts[rank]) for rank in range(self.size)], 0)

    def swap(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        # All-reduce the bytes of both tensors (sums modulo 256), then subtract this rank's bytes. Gloo's all-to-all and
        # all-gather took up to twice as long, because they were seen to use one direction of the link at a time. Its
        # all-reduce uses both directions at once, and sends as many bytes.
        mine = tf.bitcast(tensor, tf.uint8)
        other = self._marked(name, mine, partial(self._horovod.allreduce, op=self._horovod.Sum)) - mine
        return tf.bitcast(other, tensor.dtype)

    def _marked(self, name: str, tensor: tf.Tensor, collective: Callable[..., tf.Tensor]) -> tf.Tensor:
        """Run a collective, or put it into a graph, and count its begins and ends: while it runs the count is odd."""
        name += self._label
        one = tf.constant(1, tf.int64)
        if name not in self._counts:
            with tf.init_scope(), tf.device("/CPU:0"):
                # Not a tf.Variable: one that is made during a tf.function's tracing causes a second tracing.
                count = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=f"collective/{name}")
                tf.raw_ops.AssignVariableOp(resource=count, value=tf.constant(0, tf.int64))
                self._counts[name] = count
        with tf.control_dependencies([tensor]):
            tf.raw_ops.AssignAddVariableOp(resource=self._counts[name], value=one)
        received = collective(tensor, name=name, **self._group)
        with tf.control_dependencies([received]):
            tf.raw_ops.AssignAddVariableOp(resource=self._counts[name], value=one)
        return received

    def in_flight(self) -> list[str]:
        begun = {
            name: tf.raw_ops.ReadVariableOp(resource=count, dtype=tf.int64)
            for name, count in self._counts.copy().items()
        }
        mine = [name for name, count in begun.items() if count.numpy() % 2]
        groups = [group for group in self._hosts or () if group is not self]
        groups += self._pairs.values() if self._in_pairs else ()
        return mine + [name for group in groups for name in group.in_flight()]

    def barrier(self) -> None:
        self.all_reduce(tf.zeros([1]), "barrier").numpy()

    def record_timeline(self, path: Path | None) -> None:
        if path is None:
            self._horovod.stop_timeline()
        else:
            self._horovod.start_timeline(str(path))

    def shutdown(self) -> None:
        self._horovod.shutdown()


def knobs(execution: Execution, timeline: bool = False) -> dict[str, str]:
    """Horovod's settings, by environment variable; `timeline`: whether record_timeline may be called."""
    variables: dict[str, Any] = {
        # Ranks may arrive minutes apart, because one rank of each host reads a large token store first; by default Gloo
        # aborts a rank that has waited 30 s.
        "HOROVOD_GLOO_TIMEOUT_SECONDS": 300,
        "HOROVOD_HIERARCHICAL_ALLREDUCE": int(execution.hierarchical_allreduce),
        "HOROVOD_AUTOTUNE": int(execution.autotune),
    }
    if not execution.autotune:  # Horovod does not tune settings that are set here
        # Horovod's own fusion makes sums depend on timing; the gradient buckets of this project take its place.
        variables["HOROVOD_FUSION_THRESHOLD"] = execution.fusion_bytes
        variables["HOROVOD_CYCLE_TIME"] = execution.cycle_time_ms
    if execution.timeline or timeline:
        variables["HOROVOD_TIMELINE"] = "DYNAMIC"
    return {name: str(value) for name, value in variables.items()}


def connect(launched: Launch, recipe: Recipe | None = None, timeline: bool = False) -> World:
    """Join the launcher's world with Horovod's settings from the recipe; a setting by the launcher's flags wins.

    Args:
        launched: this process's place, from the launcher.
        recipe: the run's; it also decides which groups of ranks are made, because a group costs every collective a
            little. None: the defaults.
        timeline: whether record_timeline will be called, if `recipe` does not say so.

    Raises UserError if Horovod cannot join it.
    """
    if launched.size == 1:
        return World()
    for name, value in knobs(recipe.execution if recipe else Execution(), timeline).items():
        os.environ.setdefault(name, value)
    try:
        import horovod.tensorflow as horovod

        if launched.launcher == "horovodrun":
            check_horovodruns_server()
        inside, across = _host_groups(launched) if recipe and sums_by_host(recipe) else ([], [])
        pairs: list[tuple[int, int]] = []
        if recipe and may_sum_in_two_steps(recipe) and _gloo_alone(horovod):
            # Round by round over all groups: Horovod takes up the sums of its groups in the order of this list.
            rounds = zip(*(meetings(ranks) for ranks in across or [range(launched.size)]), strict=True)
            pairs = [pair for pairs_of_groups in rounds for pair in pairs_of_groups]
        inside, across, sets = ([horovod.ProcessSet(ranks) for ranks in kind] for kind in (inside, across, pairs))
        horovod.init(process_sets=[*inside, *across, *sets])
    except ImportError as error:
        raise UserError(
            f"{launched.launcher} started {launched.size} processes, but Horovod cannot be imported ({error}). "
            "run/setup.sh builds it; one process works without it"
        ) from error
    if horovod.size() != launched.size:
        raise UserError(
            f"{launched.launcher} started {launched.size} processes, but Horovod made a world of {horovod.size()}: "
            f"this Horovod {'has' if horovod.mpi_built() else 'was built without'} MPI. "
            "Start with horovodrun instead, or install an MPI with its compiler mpicxx and run run/setup.sh again, "
            "which rebuilds Horovod with MPI"
        )
    others = {
        sum(pair) - launched.rank: HorovodWorld(horovod, group, f".pair.{pair[0]}.{pair[1]}")
        for pair, group in zip(pairs, sets, strict=True)
        if launched.rank in pair
    }
    return HorovodWorld(horovod, groups=(inside, across), pairs=others)


def _gloo_alone(horovod) -> bool:
    """Whether Gloo will carry the collectives: MPI's and NCCL's all-to-all need no pairs."""
    return os.environ.get("HOROVOD_CONTROLLER", "").lower() == "gloo" and not horovod.nccl_built()


def _host_groups(launched: Launch) -> tuple[list[list[int]], list[list[int]]]:
    """The ranks of each host, and those of each local rank, if all hosts have as many consecutive ranks; else none."""
    size, local = launched.size, launched.local_size
    if not 1 < local < size or size % local:
        return [], []
    return [list(range(k, k + local)) for k in range(0, size, local)], [
        list(range(k, size, local)) for k in range(local)
    ]
