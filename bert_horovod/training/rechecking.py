"""Micro-batches of a step that are computed once more: to find what is not finite, or a device that computes wrongly.

Nothing is trained by it.
"""

from __future__ import annotations

import numpy as np

from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.training.step import TrainStep
from bert_horovod.training.step_results import (
    Layout,
    Named,
    StepInputs,
    as_named,
    flat,
    gradient_checksums,
    together,
    unflat,
)


class Recheck:
    """Computes micro-batches of a step again, with the step's own forward and backward."""

    def __init__(self, step: TrainStep) -> None:
        self._step = step
        self._checksums = tf.function(self._gradient_checksums, autograph=False)
        self._finite = tf.function(self._finite_parts, autograph=False)

    def replay(
        self, batch: dict[str, np.ndarray], first_row: int, inputs: StepInputs
    ) -> tuple[tuple[str, ...], tf.Tensor]:
        """Enqueue forward and backward of a micro-batch; names and values of its gradient's checksums, int64 [tensors].

        TrainStep.start has the same checksums, of the gradient that it trains.
        """
        self._step.try_kernels(*batch["input_ids"].shape)
        (checksums,) = self._checksums(*together(flat(batch, first_row, inputs))).items()
        return checksums

    def _gradient_checksums(self, tensor: tf.Tensor, layout: Layout) -> Named:
        batch, first_row, inputs, _ = unflat(tensor, layout)
        gradients, lookups, _ = self._step.forward_backward(batch, first_row, inputs)
        return as_named(gradient_checksums(gradients, lookups), tf.int64)

    def parameters_now(self) -> dict[str, np.ndarray]:
        """A copy of the trained parameters, float32 by name, in the host's memory."""
        return {name: variable.numpy() for name, variable in self._step.state.trained.items()}

    def set_back(self, parameters: dict[str, np.ndarray], loss_scale: float) -> None:
        """Compute with these parameters, and in float16 this loss scale, from now on."""
        state = self._step.state
        for name, array in parameters.items():
            state.trained[name].assign(array)
        self._step.cast.refresh({name: tf.convert_to_tensor(v) for name, v in state.parameters.items()}, None)
        self._step.loss_scale.assign(loss_scale)

    def not_finite(
        self, batches: list[dict[str, np.ndarray]], first_rows: list[int], inputs: StepInputs, loss_scale: float
    ) -> list[tuple[int, list[str]]]:
        """Run forward and backward of a skipped step's micro-batches again, to find values that are not finite.

        `loss_scale`: the step's; 1 without loss scaling. Returns the numbers of the micro-batches with such values,
        each with the names of the parameters that are not finite, or, if all parameters are, of those whose gradients
        are not, in backward's order. The list is empty if only the sum over ranks or its wire overflowed.
        """
        bad = []
        for k, (batch, first_row) in enumerate(zip(batches, first_rows, strict=True)):
            finite = self._finite(*together(flat(batch, first_row, inputs) | {"scale": np.float32(loss_scale)}))
            parameters, gradients = (
                [name for name, fine in zip(self._step.shapes, part.numpy(), strict=True) if not fine]
                for part in finite
            )
            if parameters or gradients:
                bad.append((k, parameters or gradients[::-1]))
        return bad

    def _finite_parts(self, tensor: tf.Tensor, layout: Layout) -> tuple[tf.Tensor, tf.Tensor]:
        """Whether each parameter and each gradient is finite, bool [parameters]."""
        *arguments, others = unflat(tensor, layout)
        gradients, lookups, _ = self._step.forward_backward(*arguments, others["scale"])
        parts = {name: [gradient] for name, gradient in gradients.items()}
        for name, part in lookups.items():
            parts[name].append(part.values)

        def finite(tensors: list[tf.Tensor]) -> tf.Tensor:
            return tf.reduce_all([tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors])

        finite_parameters = [finite([tf.convert_to_tensor(variable)]) for variable in self._step.state.trained.values()]
        return tf.stack(finite_parameters), tf.stack([finite(parts[name]) for name in self._step.shapes])
