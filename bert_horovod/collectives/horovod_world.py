"""The ranks that Horovod joined. They get the library from starting.py, which alone imports it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from bert_horovod.collectives.world import Hosts, World
from bert_horovod.runtime import lazy_tensorflow as tf


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
        self._hosts: Hosts | None = None

    def join_hosts(self) -> Hosts:
        # Not when the world is made, because this collective starts TensorFlow's devices.
        if self._hosts is None:
            self._hosts = self._joined_hosts() or super().join_hosts()
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
