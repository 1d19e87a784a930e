"""Joining the launcher's world, with Horovod's settings, and the groups and pairs of ranks that a recipe needs.

When collectives no longer work, ranks exchange values through horovodrun's own rendezvous store.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

from bert_horovod.collectives.launched import UNEVEN, Launch, check_horovodruns_server
from bert_horovod.collectives.world import HostWorlds, World
from bert_horovod.errors import UserError
from bert_horovod.recipe.sections import Recipe, may_sum_in_two_steps, sums_by_host
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.children import set_up
from bert_horovod.runtime.quiet import import_tensorflow


def knobs(timeline: bool = False) -> dict[str, str]:
    """Horovod's settings, by environment variable; `timeline`: whether record_timeline may be called.

    A variable that is set already wins: HOROVOD_CYCLE_TIME and the like are the user's.
    """
    variables = {
        # Ranks may arrive minutes apart, because one rank of each host reads a large token store first; by default Gloo
        # aborts a rank that has waited 30 s.
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "300",
        # Horovod's own fusion makes sums depend on timing; the gradient buckets of this project take its place.
        "HOROVOD_FUSION_THRESHOLD": "0",
    }
    if timeline:
        variables["HOROVOD_TIMELINE"] = "DYNAMIC"
    return variables


def connect(launched: Launch, recipe: Recipe | None = None, timeline: bool = False) -> World:
    """Join the launcher's world with Horovod's settings; one by the launcher's flags wins.

    The recipe decides which groups of ranks are made, because a group costs every collective a little; None: the
    defaults. `timeline`: whether record_timeline will be called. Raises UserError if Horovod cannot join the world.
    """
    if launched.size == 1:
        return World()
    for name, value in knobs(timeline).items():
        os.environ.setdefault(name, value)
    import_tensorflow()  # Horovod would import it with its messages
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
            f"{set_up()} builds it; one process works without it"
        ) from error
    if horovod.size() != launched.size:
        raise UserError(
            f"{launched.launcher} started {launched.size} processes, but Horovod made a world of {horovod.size()}: "
            f"this Horovod {'has' if horovod.mpi_built() else 'was built without'} MPI. "
            f"Start with horovodrun instead, or install an MPI with its compiler mpicxx and run {set_up()} again, "
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
    if not 1 < local < size or size % local or UNEVEN in os.environ:
        return [], []
    return [list(range(k, k + local)) for k in range(0, size, local)], [
        list(range(k, size, local)) for k in range(local)
    ]


MOST_IN_PAIRS = 8  # ranks of an all-to-all in pairs; more ranks need too many groups


def meetings(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """All pairs of 3 to MOST_IN_PAIRS ranks, round by round, so that in a round no rank is in two pairs; else none.

    The rounds are those of a tournament: one rank stays, the others move on by a place.

    >>> meetings(range(4))
    [(0, 3), (1, 2), (0, 2), (1, 3), (0, 1), (2, 3)]
    """
    if not 2 < len(ranks) <= MOST_IN_PAIRS:
        return []
    places = [*ranks, *([None] if len(ranks) % 2 else [])]
    pairs = []
    for _ in places[1:]:
        for a, b in zip(places[: len(places) // 2], reversed(places), strict=False):
            if a is not None and b is not None:
                pairs.append((min(a, b), max(a, b)))
        places.insert(1, places.pop())
    return pairs


_SCOPE = "bert_horovod"
_TIMEOUT_S = 5
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # without the environment's proxies


class RendezvousBoard:
    """A value of each rank for a subject, readable by all ranks; only where horovodrun with Gloo started the ranks."""

    def __init__(self, subject: str = "life") -> None:
        address = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR")
        self._url = address and f"http://{address}:{os.environ.get('HOROVOD_GLOO_RENDEZVOUS_PORT')}/{_SCOPE}_{subject}"

    def write(self, rank: int, value: Any) -> bool:
        """Replace the rank's value, which JSON can hold; returns whether that worked."""
        return self._send(rank, json.dumps(value).encode()) is not None

    def read(self, rank: int) -> Any:
        """The rank's last value; None if it never wrote one, or if the server cannot be reached."""
        answer = self._send(rank)
        try:
            return None if answer is None else json.loads(answer)
        except ValueError:
            return None

    def _send(self, rank: int, content: bytes | None = None) -> bytes | None:
        if not self._url:
            return None
        request = urllib.request.Request(f"{self._url}/{rank}", content, method="GET" if content is None else "PUT")
        try:
            with _DIRECT.open(request, timeout=_TIMEOUT_S) as answer:
                return answer.read()
        except (OSError, HTTPException):  # the latter: a port that is no number, an answer that breaks off
            return None


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
        pairs: dict[int, HorovodWorld] | None = None,
    ) -> None:
        self._horovod = horovod
        self._label = label
        self._group = {} if group is None else {"process_set": group}
        self.rank, self.size = (horovod.rank(), horovod.size()) if group is None else (group.rank(), group.size())
        self.local_rank, self.local_size = horovod.local_rank(), horovod.local_size()
        self._counts: dict[str, tf.Tensor] = {}  # a collective's name -> handle of an int64 variable
        self._groups, self._pairs = groups, pairs or {}
        self._in_pairs = len(self._pairs) == self.size - 1  # else there are none, or of the ranks across hosts only
        self._hosts: HostWorlds | None = None

    def join_hosts(self) -> HostWorlds:
        # Not when the world is made, because this collective starts TensorFlow's devices.
        if self._hosts is None:
            self._hosts = self._joined_hosts() or super().join_hosts()
        return self._hosts

    def _joined_hosts(self) -> HostWorlds | None:
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
        return HostWorlds(
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
