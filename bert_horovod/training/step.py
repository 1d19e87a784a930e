"""One optimizer step: K micro-batches, one reduction, one update.

Losses are sums over a micro-batch divided by the *global* counts of masked tokens and sequences, so that the gradient
does not depend on how a global batch is split over micro-batches and ranks. The first K - 1 micro-batches only
accumulate, in float32; in the last one each bucket of gradients goes to the reducer as soon as backward has made it.
What earlier micro-batches looked up leaves with the dense gradients; only the last one's looked-up rows are late.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.exchange.reducer import GradientReducer
from bert_horovod.model.dropout import DropoutState
from bert_horovod.model.heads import Sums, loss_sums
from bert_horovod.model.parameters import decays, update_groups
from bert_horovod.model.policy import ComputePolicy
from bert_horovod.model.weights import cast_weights, parameter_gradients
from bert_horovod.optimizers.applying import clip_factor, square_sums, update
from bert_horovod.optimizers.registry import rule
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runs.state import TrainingState
from bert_horovod.runtime.clock import clock
from bert_horovod.runtime.devices import has_gpu

BATCH_DTYPES = {"masked_weights": tf.float32, "sequence_weights": tf.float32}  # the others are int32


class StepInputs(NamedTuple):
    """What all micro-batches of an optimizer step share, as tensors: a Python number would retrace the graph."""

    masked_tokens: tf.Tensor  # float32 scalar, over all ranks
    sequences: tf.Tensor  # float32 scalar, over all ranks: sequences that count for the pair loss
    backward_scale: (
        tf.Tensor
    )  # float32 scalar: what the loss is multiplied by before backward, and gradients divided by after
    dropout_key: tf.Tensor  # uint64 [1]
    learning_rate: tf.Tensor  # float32 scalar
    update: tf.Tensor  # float32 scalar: the optimizer's t


class StepTimes(NamedTuple):
    """When things happened on this rank, in seconds since the epoch."""

    micro_batches: list[tuple[float, float]]  # begin and end of forward and backward
    all_reduces: list[tuple[float, float]]  # of each of the reducer's: its gradients exist, its sum does
    reduced: float  # all sums are there
    updated: float


class StepResult(NamedTuple):
    """What one optimizer step did; equal on all ranks but for the times."""

    sums: np.ndarray  # float64 [4]: model.heads.Sums over the global batch
    gradient_norm: float  # global L2 norm after reduction, before clipping
    finite: bool  # False: the update was skipped
    rows: int  # looked-up rows that were reduced alone
    times: StepTimes

    @property
    def reduce_wait_s(self) -> float:
        """From the last gradient's arrival to the last sum's."""
        return self.times.reduced - self.times.micro_batches[-1][1]


class TrainStep:
    """The compiled step of one phase.

    Args:
        recipe: the run's.
        state: what is trained.
        reducer: sums gradients over ranks.
        world: sums losses over ranks.
        micro_batches: K, per rank.
        xla: see ComputePolicy.
    """

    def __init__(
        self,
        recipe: Recipe,
        state: TrainingState,
        reducer: GradientReducer,
        world: World,
        micro_batches: int,
        xla: str,
    ) -> None:
        self._recipe = recipe
        self._state = state
        self.reducer = reducer
        self._world = world
        self._micro_batches = micro_batches
        self._compute = ComputePolicy(tf.as_dtype(recipe.numerics.precision), xla, recipe.execution.recompute)
        self._accumulators = None
        if micro_batches > 1:
            self._accumulators = {
                name: tf.Variable(tf.zeros(variable.shape), trainable=False)
                for name, variable in state.parameters.items()
            }
        self._sums = tf.Variable(tf.zeros([len(Sums._fields)], tf.float64), trainable=False)
        # Cast and joined once a step; what working weights share with the parameters is read from these.
        made = cast_weights(_values(state.parameters), self._compute.dtype)
        self._made = {
            name: tf.Variable(value, trainable=False)
            for name, value in made.items()
            if name not in state.parameters or value.dtype != tf.float32 or value.shape != state.parameters[name].shape
        }
        self.shapes = {name: tuple(variable.shape) for name, variable in state.parameters.items()}
        self._groups = update_groups(self.shapes)
        self._accumulate = tf.function(self._accumulate_micro_batch, autograph=False)
        self._finish = tf.function(self._finish_step, autograph=False)
        self._look = None  # rarely needed

    def run(self, batches: list[dict[str, np.ndarray]], first_rows: list[int], inputs: StepInputs) -> StepResult:
        """Train on this rank's K micro-batches of a global batch."""
        assert len(batches) == self._micro_batches, f"{len(batches)} micro-batches for a step of {self._micro_batches}"
        spans = []
        for k, (batch, first_row) in enumerate(zip(batches, first_rows, strict=True)):
            work = self._finish if k == self._micro_batches - 1 else self._accumulate
            *result, span = work(as_tensors(batch), tf.constant(first_row, tf.uint64), inputs)
            spans.append(span)
        scalars, ready, done = (part.numpy() for part in result)  # here the host waits for the device
        *sums, norm, finite, rows, reduced, updated = scalars
        spans = [tuple(span.numpy().tolist()) for span in spans]
        times = StepTimes(spans, list(zip(ready.tolist(), done.tolist(), strict=True)), float(reduced), float(updated))
        return StepResult(np.array(sums), float(norm), bool(finite), int(rows), times)

    def forward_backward(
        self, batch: dict[str, tf.Tensor], first_row: tf.Tensor, inputs: StepInputs
    ) -> tuple[dict[str, tf.Tensor], dict[str, tf.IndexedSlices], tf.Tensor]:
        """This micro-batch's share of the gradient, as parameter_gradients has it, and its loss sums, float64 [4].

        Gradients are of the dtype that they were computed in; in float16 of float32, as they leave the loss scale.
        """
        weights = _values({**self._state.parameters, **self._made})
        state = DropoutState(inputs.dropout_key, first_row)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            sums = loss_sums(weights, self._recipe.model, self._recipe.objective.pairs, batch, self._compute, state)
            loss = (sums.mlm_loss / inputs.masked_tokens + sums.nsp_loss / inputs.sequences) * inputs.backward_scale
        gradients, lookups = parameter_gradients(tape.gradient(loss, weights), self.shapes)
        if self._compute.dtype == tf.float16:
            scale = inputs.backward_scale
            gradients = {name: tf.cast(gradient, tf.float32) / scale for name, gradient in gradients.items()}
            lookups = {name: tf.IndexedSlices(part.values / scale, part.indices) for name, part in lookups.items()}
        return gradients, lookups, tf.cast(tf.stack(sums), tf.float64)

    def not_finite(
        self, batches: list[dict[str, np.ndarray]], first_rows: list[int], inputs: StepInputs
    ) -> list[tuple[int, list[str]]]:
        """Run forward and backward of a skipped step's micro-batches again and look where they are not finite.

        Returns: numbers of micro-batches, each with the parameters that hold what is not finite, or else with those
        whose gradients do, in backward's order; none if only the sum over ranks or its wire overflowed.
        """
        if self._look is None:
            self._look = tf.function(self._finite_parts, autograph=False)
        found = []
        for k, (batch, first_row) in enumerate(zip(batches, first_rows, strict=True)):
            finite = self._look(as_tensors(batch), tf.constant(first_row, tf.uint64), inputs)
            values, gradients = (
                [name for name, fine in zip(self.shapes, part.numpy(), strict=True) if not fine] for part in finite
            )
            if values or gradients:
                found.append((k, values or gradients[::-1]))
        return found

    def _finite_parts(
        self, batch: dict[str, tf.Tensor], first_row: tf.Tensor, inputs: StepInputs
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Whether each parameter and each gradient is finite, bool [parameters]."""
        gradients, lookups, _ = self.forward_backward(batch, first_row, inputs)
        parts = {name: [gradient] for name, gradient in gradients.items()}
        for name, part in lookups.items():
            parts[name].append(part.values)

        def finite(tensors: list[tf.Tensor]) -> tf.Tensor:
            return tf.reduce_all([tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors])

        values = [finite([tf.convert_to_tensor(variable)]) for variable in self._state.parameters.values()]
        return tf.stack(values), tf.stack([finite(parts[name]) for name in self.shapes])

    @property
    def traces(self) -> int:
        """How many graphs were traced so far: stays the same after a phase's first step."""
        return self._accumulate.experimental_get_tracing_count() + self._finish.experimental_get_tracing_count()

    def _accumulate_micro_batch(
        self, batch: dict[str, tf.Tensor], first_row: tf.Tensor, inputs: StepInputs
    ) -> tuple[tf.Tensor]:
        """Begin and end, float64 [2]."""
        begin = clock([first_row])
        gradients, lookups, sums = self.forward_backward(batch, first_row, inputs)
        added = []
        for name, gradient in gradients.items():
            accumulator = self._accumulators[name]
            added.append(accumulator.assign_add(tf.cast(gradient, tf.float32)))
            if name in lookups:
                ids = tf.reshape(lookups[name].indices, [-1, 1])
                values = tf.reshape(lookups[name].values, [-1, accumulator.shape[1]])
                added.append(accumulator.scatter_nd_add(ids, values))
        self._sums.assign_add(sums)
        return (tf.stack([begin, clock(added)]),)

    def _finish_step(
        self, batch: dict[str, tf.Tensor], first_row: tf.Tensor, inputs: StepInputs
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """StepResult in float64 tensors: its scalars, the all-reduces' begins and ends, the micro-batch's own."""
        begin = clock([first_row])
        gradients, lookups, sums = self.forward_backward(batch, first_row, inputs)
        if self._accumulators is not None:
            gradients = {
                name: self._accumulators[name] + tf.cast(gradient, tf.float32) for name, gradient in gradients.items()
            }
        # Inlining drops control edges from a call's outputs, but not from what is made of them.
        gradients, lookups = tf.nest.map_structure(tf.identity, (gradients, lookups), expand_composites=True)
        computed = clock([*gradients.values(), *(part.values for part in lookups.values())])
        gradients, ready, done, rows = self.reducer.reduce(gradients, lookups)
        reduced = clock(list(gradients.values()))
        fused = self._compute.xla != "off"
        groups = [tf.stack([gradients[name] for name in group]) for group in self._groups]
        norm = tf.sqrt(tf.add_n([tf.reduce_sum(square_sums(group, fused)) for group in groups]))
        finite = tf.math.is_finite(norm)
        updated = tf.cond(finite, lambda: self._update(groups, norm, inputs, fused), lambda: clock([norm]))
        sums = self._world.all_reduce(self._sums + sums, "sums")
        with tf.control_dependencies([sums, norm]):
            self._sums.assign(tf.zeros_like(self._sums))
            for accumulator in (self._accumulators or {}).values():
                accumulator.assign(tf.zeros_like(accumulator))
        scalars = [tf.cast(value, tf.float64) for value in (norm, finite, rows, reduced, updated)]
        return tf.concat([sums, tf.stack(scalars)], 0), ready, done, tf.stack([begin, computed])

    def _update(self, gradients: list[tf.Tensor], norm: tf.Tensor, inputs: StepInputs, fused: bool) -> tf.Tensor:
        """Apply the optimizer; when it was done, in seconds since the epoch."""
        settings = self._recipe.optimizer
        factor = tf.constant(1.0)
        if rule(settings.name).clips:
            factor = clip_factor(norm, settings.max_grad_norm)
        variables = {"": self._state.parameters, **self._state.slots}
        parameters, narrow = {}, {}
        for group, gradient in zip(self._groups, gradients, strict=True):
            old = {slot: tf.stack([named[name] for name in group]) for slot, named in variables.items()}
            value, cast, slots = update(
                rule(settings.name),
                old.pop(""),
                gradient,
                old,
                inputs.update,
                inputs.learning_rate,
                factor,
                decays(group[0]),
                settings,
                self._compute.dtype,
                fused,
            )
            parameters |= zip(group, tf.unstack(value), strict=True)
            narrow |= zip(group, tf.unstack(cast), strict=True)
            for slot, values in slots.items():
                for name, new in zip(group, tf.unstack(values), strict=True):
                    variables[slot][name].assign(new)
        for name, new in parameters.items():
            self._state.parameters[name].assign(new)
        made = cast_weights(parameters, self._compute.dtype, narrow)
        for name, variable in self._made.items():
            variable.assign(made[name])
        return clock([*made.values(), *parameters.values()])


def xla_mode(recipe: Recipe) -> str:
    """What XLA compiles on this rank's device: "layers", "elementwise" or "off"."""
    if recipe.execution.xla != "auto":
        return recipe.execution.xla
    return "layers" if has_gpu() else "elementwise"


def as_tensors(batch: dict[str, np.ndarray]) -> dict[str, tf.Tensor]:
    """A micro-batch's arrays as tensors of the dtypes that the graphs take."""
    return {name: tf.constant(array, BATCH_DTYPES.get(name, tf.int32)) for name, array in batch.items()}


def _values(variables: dict[str, tf.Variable]) -> dict[str, tf.Tensor]:
    return {name: tf.convert_to_tensor(variable) for name, variable in variables.items()}
