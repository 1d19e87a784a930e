"""One optimizer step: K micro-batches, one reduction, one update.

Losses are sums over a micro-batch divided by the *global* counts of masked tokens and sequences, so that the gradient
does not depend on how a global batch is split over micro-batches and ranks. The first K - 1 micro-batches only
accumulate, in float32; in the last one each bucket of gradients goes to the reducer as soon as backward has made it.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_horovod import optimizers
from bert_horovod.collectives.reducer import GradientReducer
from bert_horovod.collectives.world import World
from bert_horovod.config import Recipe
from bert_horovod.model.bert import encode
from bert_horovod.model.dropout import DropoutState
from bert_horovod.model.heads import Sums, loss_sums
from bert_horovod.training.state import TrainingState

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


class StepResult(NamedTuple):
    """What one optimizer step did; equal on all ranks but for the wait."""

    sums: np.ndarray  # float64 [4]: model.heads.Sums over the global batch
    gradient_norm: float  # global L2 norm after reduction, before clipping
    finite: bool  # False: the update was skipped
    reduce_wait_s: float  # from the last gradient's arrival to the last sum's


class TrainStep:
    """The compiled step of one phase."""

    def __init__(
        self,
        recipe: Recipe,
        state: TrainingState,
        reducer: GradientReducer,
        world: World,
        micro_batches: int,
        xla: bool,
    ) -> None:
        self._state = state
        self._micro_batches = micro_batches
        self._accumulators = None
        if micro_batches > 1:
            self._accumulators = {
                name: tf.Variable(tf.zeros(variable.shape), trainable=False)
                for name, variable in state.parameters.items()
            }
        self._sums = tf.Variable(tf.zeros([len(Sums._fields)], tf.float64), trainable=False)
        forward_backward = tf.function(_forward_backward(recipe), jit_compile=xla, autograph=False)
        self._accumulate = tf.function(self._make_accumulate(forward_backward), autograph=False)
        self._finish = tf.function(self._make_finish(forward_backward, recipe, reducer, world), autograph=False)

    def run(self, batches: list[dict[str, np.ndarray]], first_rows: list[int], inputs: StepInputs) -> StepResult:
        """Train on this rank's K micro-batches of a global batch."""
        assert len(batches) == self._micro_batches, f"{len(batches)} micro-batches for a step of {self._micro_batches}"
        for k, (batch, first_row) in enumerate(zip(batches, first_rows, strict=True)):
            work = self._finish if k == self._micro_batches - 1 else self._accumulate
            result = work(as_tensors(batch), tf.constant(first_row, tf.uint64), inputs)
        *sums, norm, finite, wait = result.numpy()  # the one time that the host waits for the device
        return StepResult(np.array(sums), float(norm), bool(finite), float(wait))

    @property
    def traces(self) -> int:
        """How many graphs were traced so far: stays the same after a phase's first step."""
        return self._accumulate.experimental_get_tracing_count() + self._finish.experimental_get_tracing_count()

    def _make_accumulate(self, forward_backward: Callable) -> Callable:
        def accumulate(batch: dict[str, tf.Tensor], first_row: tf.Tensor, inputs: StepInputs) -> None:
            gradients, sums = forward_backward(_values(self._state.parameters), batch, first_row, inputs)
            for name, gradient in gradients.items():
                self._accumulators[name].assign_add(gradient)
            self._sums.assign_add(sums)

        return accumulate

    def _make_finish(
        self, forward_backward: Callable, recipe: Recipe, reducer: GradientReducer, world: World
    ) -> Callable:
        def finish(batch: dict[str, tf.Tensor], first_row: tf.Tensor, inputs: StepInputs) -> tf.Tensor:
            gradients, sums = forward_backward(_values(self._state.parameters), batch, first_row, inputs)
            if self._accumulators is not None:
                gradients = {name: self._accumulators[name] + gradient for name, gradient in gradients.items()}
            # Inlining drops control edges from a call's outputs, but not from what is made of them.
            gradients = {name: tf.identity(gradient) for name, gradient in gradients.items()}
            with tf.control_dependencies(list(gradients.values())):
                computed = tf.timestamp()
            gradients = reducer.reduce(gradients)
            with tf.control_dependencies(list(gradients.values())):
                reduced = tf.timestamp()
            norm = tf.linalg.global_norm(list(gradients.values()))
            finite = tf.math.is_finite(norm)
            tf.cond(finite, lambda: self._update(recipe, gradients, norm, inputs), lambda: None)
            sums = world.all_reduce(self._sums + sums, "sums")
            with tf.control_dependencies([sums, norm]):
                self._sums.assign(tf.zeros_like(self._sums))
                for accumulator in (self._accumulators or {}).values():
                    accumulator.assign(tf.zeros_like(accumulator))
            scalars = [tf.cast(norm, tf.float64), tf.cast(finite, tf.float64), reduced - computed]
            return tf.concat([sums, tf.stack(scalars)], 0)

        return finish

    def _update(self, recipe: Recipe, gradients: dict[str, tf.Tensor], norm: tf.Tensor, inputs: StepInputs) -> None:
        settings = recipe.optimizer
        rule = optimizers.rule(settings.name)
        factor = tf.constant(1.0)
        if optimizers.uses_clipping(settings.name):
            factor = optimizers.clip_factor(norm, settings.max_grad_norm)
        for name, variable in self._state.parameters.items():
            slots = {slot: variables[name] for slot, variables in self._state.slots.items()}
            value, new_slots = rule.update(
                tf.convert_to_tensor(variable),
                gradients[name] * factor,
                _values(slots),
                inputs.update,
                inputs.learning_rate,
                optimizers.decays(name),
                settings,
            )
            variable.assign(value)
            for slot, new_value in new_slots.items():
                slots[slot].assign(new_value)


def as_tensors(batch: dict[str, np.ndarray]) -> dict[str, tf.Tensor]:
    """A micro-batch's arrays as tensors of the dtypes that the graphs take."""
    return {name: tf.constant(array, BATCH_DTYPES.get(name, tf.int32)) for name, array in batch.items()}


def _forward_backward(recipe: Recipe) -> Callable:
    dtype = tf.as_dtype(recipe.numerics.precision)
    next_sentence = recipe.objective.pairs

    def forward_backward(
        parameters: dict[str, tf.Tensor], batch: dict[str, tf.Tensor], first_row: tf.Tensor, inputs: StepInputs
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """This micro-batch's share of the global gradient, dense float32 by name, and its loss sums, float64 [4]."""
        state = DropoutState(inputs.dropout_key, first_row)
        with tf.GradientTape() as tape:
            tape.watch(parameters)
            hidden = encode(parameters, recipe.model, batch, dtype, state)[-1]
            sums = loss_sums(parameters, recipe.model, next_sentence, hidden, batch)
            loss = (sums.mlm_loss / inputs.masked_tokens + sums.nsp_loss / inputs.sequences) * inputs.backward_scale
        gradients = tape.gradient(loss, parameters)
        # The lookup's gradient comes as slices: made dense here, so that it is never gathered slice by slice over
        # ranks.
        gradients = {
            name: tf.convert_to_tensor(gradient) / inputs.backward_scale for name, gradient in gradients.items()
        }
        return gradients, tf.cast(tf.stack(sums), tf.float64)

    return forward_backward


def _values(variables: dict[str, tf.Variable]) -> dict[str, tf.Tensor]:
    return {name: tf.convert_to_tensor(variable) for name, variable in variables.items()}
