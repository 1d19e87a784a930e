"""Parts of a payload: what a rank sends of some gradients, and what it owes afterwards.

g_i is rank i's share of a gradient, e_i what it owes of former steps, and M_i = g_i + e_i. A part makes its numbers of
the payload from M_i. From the sum over ranks, and from what rounding took from its own numbers, it then makes the
gradient, equal on all ranks, and the new e_i. The sum of gradients over all steps is the sum of all g_i, minus the e_i
that are left at the end.

Low-rank parts of matrices: orthonormal bases and products, for n matrices of one shape at once. A matrix M [rows,
columns] is projected onto the span of a factor: with B, an orthonormal basis of the left factor's columns, to B (B^T
M), whose right factor is M^T B; with a basis of the right factor's columns to (M B) B^T, whose left factor is M B.
Factors hold vectors as columns: [rows, rank] and [columns, rank].

The sum of one flat payload over ranks, on any wire; where hosts have several ranks, these sum first. float32 and
float16 numbers are summed by ring. float16 numbers are scaled by a maximum of the last sums, as
exchange/dense/reducer.py does. int8 numbers are summed in two steps (exchange/two_step.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from bert_horovod.collectives.world import World
from bert_horovod.costs.exchanges import NUMBER_BYTES
from bert_horovod.exchange.compressed.largest_chunks import packed, unpacked
from bert_horovod.exchange.dense.reducer import next_maxima, wire_scale
from bert_horovod.exchange.two_step import Errors, Int8, TwoStep
from bert_horovod.recipe.sections import Shape
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.xla import compiled

LEFT, RIGHT = "left_factor", "right_factor"  # slots of a matrix [n, m] in low rank: [n, rank] and [m, rank]
Tensors = dict[str, "tf.Tensor"]  # float32, by parameter
# Of the part's numbers: their sum, and what rounding took.
Finish: TypeAlias = "Callable[[tf.Tensor, tf.Tensor | None], Decoded]"


class Decoded(NamedTuple):
    """What a part makes of its sum; of the parameters that it has."""

    gradients: Tensors
    owed: Tensors  # the new e_i; without those that do not change
    factors: Tensors  # the factors that were summed
    norms: tf.Tensor | None  # float32 [chunks]: of chunks


class WholePart:
    """Gradients as they are; `owing`: whether ranks owe anything of them."""

    def __init__(self, shapes: dict[str, Shape], owing: bool) -> None:
        self._shapes, self._owing = shapes, owing
        self._sizes = [math.prod(shape) for shape in shapes.values()]
        self.numbers = sum(self._sizes)

    def begin(self, gradients: Tensors, owed: Tensors) -> tuple[tf.Tensor, Finish]:
        """The payload's numbers, float32 [numbers], and a function of what comes back; arguments by parameter."""
        whole = {name: gradients[name] + owed[name] if self._owing else gradients[name] for name in self._shapes}
        return tf.concat([tf.reshape(tensor, [-1]) for tensor in whole.values()], 0), self._finish

    def _finish(self, total: tf.Tensor, lost: tf.Tensor | None) -> Decoded:
        owed = self._named(tf.zeros_like(total) if lost is None else lost) if self._owing else {}
        return Decoded(self._named(total), owed, {}, None)

    def _named(self, flat: tf.Tensor) -> Tensors:
        tensors = zip(self._shapes.items(), tf.split(flat, self._sizes), strict=True)
        return {name: tf.reshape(tensor, shape) for (name, shape), tensor in tensors}


class LowRankPart:
    """Matrices of one shape [rows, columns] in low rank; see exchange/compressed/powersgd.py.

    `summed` is the factor that is summed over ranks, LEFT or RIGHT; the other one gives the basis. `factors` are of
    these matrices, by slot and name. With `fused` XLA compiles the functions, with `at_once` as a whole.
    """

    def __init__(
        self,
        names: list[str],
        shape: Shape,
        rank: int,
        summed: str,
        factors: dict[str, dict[str, tf.Variable]],
        fused: bool,
        at_once: bool,
    ) -> None:
        self._names, self._summed = names, summed
        self._shape = (len(names), shape[0], rank) if summed == LEFT else (len(names), rank, shape[1])
        self.numbers = math.prod(self._shape)
        self._basis = [factors[RIGHT if summed == LEFT else LEFT][name] for name in names]
        share = _left_share if summed == LEFT else _right_share
        self._share = compiled(share) if at_once else share
        # On a CPU XLA's products of matrices are slower than TensorFlow's; a product of rank 1 is elementwise.
        in_xla = at_once or (fused and rank == 1)
        self._product, self._remainder = map(compiled if in_xla else _as_it_is, (product, remainder))

    def begin(self, gradients: Tensors, owed: Tensors) -> tuple[tf.Tensor, Finish]:
        """See WholePart."""
        lists = ([tensors[name] for name in self._names] for tensors in (gradients, owed))
        matrices, basis, share = self._share(*lists, [tf.convert_to_tensor(factor) for factor in self._basis])

        def finish(total: tf.Tensor, lost: tf.Tensor | None) -> Decoded:
            total = tf.reshape(total, self._shape)
            sent = share if lost is None else share - tf.reshape(lost, self._shape)
            if self._summed == LEFT:
                factors, summed, own = total, (total, basis), (sent, basis)
            else:
                factors, summed, own = tf.linalg.matrix_transpose(total), (basis, total), (basis, sent)
            made = (self._product(*summed), self._remainder(matrices, *own), factors)
            return Decoded(*(dict(zip(self._names, tf.unstack(tensors), strict=True)) for tensors in made), None)

        return tf.reshape(share, [-1]), finish


class ChunksPart:
    """The largest chunks of one parameter, those of indices `chosen`; see exchange/compressed/largest_chunks.py."""

    def __init__(self, name: str, shape: Shape, chunk: int, chosen: tf.Variable) -> None:
        self._name, self._shape, self._chunk, self._chosen = name, shape, chunk, chosen
        self.numbers = chosen.shape[0] * chunk + -(-math.prod(shape) // chunk)

    def begin(self, gradients: Tensors, owed: Tensors) -> tuple[tf.Tensor, Finish]:
        """See WholePart."""
        gradient, before = (chunked(each[self._name], self._chunk) for each in (gradients, owed))
        ids = self._chosen.read_value()[:, None]
        payload, left_owed = packed(before + gradient, gradient, ids)

        def finish(total: tf.Tensor, lost: tf.Tensor | None) -> Decoded:
            chunks, norms = unpacked(total, ids, left_owed.shape)
            after = left_owed if lost is None else left_owed + unpacked(lost, ids, left_owed.shape)[0]
            return Decoded(self._named(chunks), self._named(after), {}, norms)

        return payload, finish

    def _named(self, chunks: tf.Tensor) -> Tensors:
        flat = tf.reshape(chunks, [-1])[: math.prod(self._shape)]
        return {self._name: tf.reshape(flat, self._shape)}


def chunked(tensor: tf.Tensor, chunk: int) -> tf.Tensor:
    """The numbers of a tensor as rows of `chunk` numbers, the last one padded with zeros."""
    flat = tf.reshape(tensor, [-1])
    padding = -flat.shape[0] % chunk
    return tf.reshape(tf.pad(flat, [[0, padding]]) if padding else flat, [-1, chunk])


def _right_share(
    gradients: list[tf.Tensor], owed: list[tf.Tensor], left: list[tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """M_i [n, rows, columns], the basis B [n, rows, rank] of the left factors, and B^T M_i [n, rank, columns]."""
    matrices, basis = tf.stack(gradients) + tf.stack(owed), orthonormal(tf.stack(left))
    return matrices, basis, tf.matmul(tf.linalg.matrix_transpose(basis), matrices)


def _left_share(
    gradients: list[tf.Tensor], owed: list[tf.Tensor], right: list[tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """M_i [n, rows, columns], B^T [n, rank, columns] of the right factors' basis B, and M_i B [n, rows, rank]."""
    matrices, basis = tf.stack(gradients) + tf.stack(owed), orthonormal(tf.stack(right))
    return matrices, tf.linalg.matrix_transpose(basis), tf.matmul(matrices, basis)


def _as_it_is(function: Callable) -> Callable:
    return function


_LEAST = 1e-6  # of the factor's largest number: what is added to its diagonal


def orthonormal(factors: tf.Tensor) -> tf.Tensor:
    """Orthonormal bases of the columns of factors, float32 [n, rows, rank]: float32 of the same shape.

    Columns that depend on others, or are zero, are replaced by some other directions, so that no rank is lost for ever.
    This is a Cholesky QR in float64, done twice: with a few products of small matrices, a GPU makes all bases of a
    shape at once.
    """
    wide = tf.cast(factors, tf.float64)
    largest = tf.reduce_max(tf.abs(wide), [1, 2], keepdims=True)
    wide = tf.math.divide_no_nan(wide, largest) + _LEAST * tf.eye(*factors.shape[1:], dtype=tf.float64)
    for _ in range(2):
        lower = tf.linalg.cholesky(tf.matmul(wide, wide, transpose_a=True))
        wide = tf.linalg.matrix_transpose(tf.linalg.triangular_solve(lower, tf.linalg.matrix_transpose(wide)))
    return tf.cast(wide, tf.float32)


def product(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """left @ right: float32 [n, rows, rank] and [n, rank, columns] to [n, rows, columns]."""
    # For one column and one row TensorFlow's matrix product takes ten times longer on a CPU.
    return left * right if left.shape[2] == 1 else tf.matmul(left, right)


def remainder(matrices: tf.Tensor, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """matrices - left @ right: float32 [n, rows, columns]."""
    return matrices - product(left, right)


class PayloadSum:
    """Sums float32 [numbers] on a wire: float32, float16 or int8. `name`: prefix of the names of its collectives.

    `maximum` (float32 scalar) is the largest magnitude of the last sum, or half of what it was before; the float16 wire
    computes its scale from it. It is equal on all ranks, and part of a checkpoint. It falls slowly, because the first
    factors have little of a matrix, whose basis is random: sqrt(rank / rows) of it.
    """

    def __init__(self, world: World, numbers: int, wire: str, name: str) -> None:
        self._world, self._numbers, self.wire, self._name = world, numbers, wire, name
        self._two_step = TwoStep(world, numbers, name) if wire == "int8" else None
        self.maximum = tf.Variable(1.0, trainable=False)

    def sum(self, payload: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        """The sum over ranks, float32 [numbers], and what rounding took from this rank's payload; None: nothing.

        The sum is that of all payloads minus what rounding took from them on all ranks. A number that is not finite on
        one rank makes the sum not finite on all.
        """
        if self._two_step is not None:
            return self._sum_in_int8(payload)
        if self.wire == "float32":
            return self._by_ring(payload), None
        scale = wire_scale(self.maximum)
        total = tf.cast(self._by_ring(tf.cast(payload * scale, tf.float16)), tf.float32) / scale
        found = next_maxima(self.maximum, tf.reduce_max(tf.abs(total)))
        self.maximum.assign(tf.maximum(found, self.maximum / 2))
        return total, None

    @property
    def bytes_reduced(self) -> float:
        """Bytes of the payload on the wire."""
        if self._two_step is not None:
            return float(Int8().sent_bytes(self._two_step.padded))
        return NUMBER_BYTES[self.wire] * self._numbers

    @property
    def wire_bytes(self) -> float:
        """Bytes that a rank sends; in int8 those to other hosts."""
        if self._two_step is not None:
            return self._two_step.sent_bytes(Int8())
        return 2 * (self._world.size - 1) / self._world.size * self.bytes_reduced

    def _by_ring(self, numbers: tf.Tensor) -> tf.Tensor:
        """The sum over ranks by ring, first inside each host: a part of it goes from each rank to the other hosts."""
        inside, across = self._world.join_hosts()
        if inside.size == 1 or across.size == 1:
            return self._world.all_reduce(numbers, self._name)
        numbers = inside.all_reduce(numbers, f"{self._name}.inside")
        padded = tf.pad(numbers, [[0, -self._numbers % inside.size]])
        part = across.all_reduce(tf.reshape(padded, [inside.size, -1])[inside.rank], f"{self._name}.across")
        return tf.ensure_shape(inside.all_gather(part, f"{self._name}.host"), padded.shape)[: self._numbers]

    def _sum_in_int8(self, payload: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        (inside, across), sums = self._world.join_hosts(), self._two_step
        none = Errors(tf.zeros(sums.worker_shape), tf.zeros([sums.part]))
        total, errors = sums.sum(payload, Int8(), none)
        own_sums = tf.one_hot(across.rank, across.size)[:, None]  # the row of the sums that this rank makes
        lost = errors.worker + own_sums * errors.server
        if inside.size > 1:  # this rank sends one part of the host's sum
            lost = tf.one_hot(inside.rank, inside.size)[:, None] * tf.reshape(lost, [1, -1])
        return total, tf.reshape(lost, [-1])[: self._numbers]


class MadePayload(NamedTuple):
    """What a step makes, the same tensors in each kind of step."""

    gradients: dict[str, tf.Tensor]  # summed over ranks
    owed: dict[str, tf.Tensor]  # e_i afterwards
    factors: dict[str, dict[str, tf.Tensor]]  # by slot and parameter
    norms: tf.Tensor  # float32 [chunks] of the word embeddings; [0] without chunks
    ready_s: tf.Tensor  # as in Update
    done_s: tf.Tensor


def read_all(variables: dict[str, tf.Variable]) -> dict[str, tf.Tensor]:
    return {name: tf.convert_to_tensor(variable) for name, variable in variables.items()}
