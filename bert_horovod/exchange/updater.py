"""Applies the optimizer's rule to parameters, slots and cast weights, group by group."""

from __future__ import annotations

from bert_horovod.exchange.base import Gradients, UpdateInputs
from bert_horovod.model.parameters import decays, joined_matrices, update_groups
from bert_horovod.model.weights import CastWeights
from bert_horovod.optimizers.applying import clip_factor, square_sums, update
from bert_horovod.optimizers.base import Rule
from bert_horovod.recipe.sections import Optimizer
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.devices import has_gpu, xla_multiplies_well
from bert_horovod.runtime.xla import compiled, read_back


class Updater:
    """Updates variables, float32 by name, and slots, by slot and name, from gradients; called inside a graph.

    The cast weights are computed again after each update. With `fused` XLA compiles the functions that read and write
    whole tensors; with `at_once` one program for the norm and one for the update, in place of one a group: a GPU would
    wait for a host that starts two programs and assigns several variables for each of the groups.
    """

    def __init__(
        self,
        parameters: dict[str, tf.Variable],
        slots: dict[str, dict[str, tf.Variable]],
        cast: CastWeights,
        settings: Optimizer,
        fused: bool,
        at_once: bool = False,
    ) -> None:
        self.parameters = parameters
        self.cast = cast
        self._slots = slots
        self.rule = settings.rule  # an exchange that has its own rule assigns it here
        self._settings = settings
        self.fused = fused
        self.at_once = at_once
        self.shapes = {name: tuple(variable.shape) for name, variable in parameters.items()}
        self.groups = update_groups(self.shapes, settings.batched)

    def grouped(self, gradients: Gradients) -> list[tf.Tensor]:
        """The gradients of each group as one tensor [n, ...]."""
        return [tf.stack([gradients[name] for name in group]) for group in self.groups]

    def norm(self, grouped: list[tf.Tensor]) -> tf.Tensor:
        """The L2 norm over all gradients that `grouped` made, float32 scalar."""
        return compiled(_norm)(grouped, False) if self.at_once else _norm(grouped, self.fused)

    def apply(
        self, grouped: list[tf.Tensor], norm: tf.Tensor, inputs: UpdateInputs, rule: Rule | None = None
    ) -> list[tf.Tensor]:
        """Clip, update and assign; returns tensors that exist when all is assigned, so that a clock can wait for them.

        `rule`: if given, it replaces the recipe's rule. It may keep tensors that it computes, so it is not compiled.
        """
        if self.at_once and rule is None:
            return [self._compiled(grouped, norm, inputs)]
        return self._apply(rule or self.rule, self.groups, grouped, norm, inputs)

    def apply_if(
        self, finite: tf.Tensor, grouped: list[tf.Tensor], norm: tf.Tensor, inputs: UpdateInputs
    ) -> list[tf.Tensor]:
        """Do the same by the recipe's rule if `finite`, bool scalar; where all is updated at once only.

        The device decides for each number, so that no host waits for it in the middle of a step.
        """
        return [self._compiled(grouped, norm, inputs, finite)]

    def _compiled(
        self, grouped: list[tf.Tensor], norm: tf.Tensor, inputs: UpdateInputs, finite: tf.Tensor | None = None
    ) -> tf.Tensor:
        """One by one: XLA updates a tensor in place, but what is part of a stack it copies to its place.

        Only matrices that the rule multiplies stay in their batches.
        """
        groups, gradients_of_groups = [], []
        for group, gradient in zip(self.groups, grouped, strict=True):
            alone = not self._settings.batched(group[0], tuple(gradient.shape[1:]))
            groups += [[name] for name in group] if alone else [group]
            gradients_of_groups += tf.split(gradient, len(group)) if alone else [gradient]

        @tf.function(jit_compile=True, autograph=False)
        def program(gradients, norm, inputs, finite) -> tf.Tensor:
            self._apply(self.rule, groups, gradients, norm, inputs, finite, whole=True)
            return tf.identity(norm)  # something to wait for: a program copies what it returns

        return program(gradients_of_groups, norm, inputs, finite)

    def _apply(
        self,
        rule: Rule,
        groups: list[list[str]],
        grouped: list[tf.Tensor],
        norm: tf.Tensor,
        inputs: UpdateInputs,
        finite: tf.Tensor | None = None,
        whole: bool = False,
    ) -> list[tf.Tensor]:
        """As `apply` and, where `finite` is given, `apply_if`; `whole`: inside one program."""
        settings = self._settings
        factor = tf.constant(1.0)
        if rule.clips and settings.clipping == "global":
            factor = clip_factor(norm, settings.max_grad_norm)
        variables = {"": self.parameters} | {slot: self._slots[slot] for slot in rule.slots}
        parameters, narrow = {}, {}
        assigned = []  # the last group's
        for group, gradient in zip(groups, grouped, strict=True):
            multiplied = settings.batched(group[0], tuple(gradient.shape[1:]))
            # A slot may not exist for a shape, and so not for the whole group.
            old = {slot: [named[name] for name in group] for slot, named in variables.items() if group[0] in named}
            # A GPU's memory is taken when an operation is enqueued: without an order, that of all groups at once.
            with tf.control_dependencies(assigned if has_gpu() else []):
                old = {slot: self._matrices(group[0], tf.stack(tensors)) for slot, tensors in old.items()}
            stacked, cast, slots = update(
                rule,
                old[""],
                self._matrices(group[0], gradient),
                {slot: tensor for slot, tensor in old.items() if slot},
                inputs.update,
                inputs.learning_rate,
                factor,
                decays(group[0]),
                settings,
                self.cast.dtype,
                self.fused and not whole and (not multiplied or xla_multiplies_well()),
            )
            new = {"": stacked} | slots
            if finite is not None:
                new = {slot: tf.where(finite, tensor, old[slot]) for slot, tensor in new.items()}
                cast = tf.cast(new[""], cast.dtype)
            cast, *values = (_parameters(tensor, len(group)) for tensor in (cast, *new.values()))
            new = dict(zip(new, values, strict=True))
            narrow |= zip(group, tf.unstack(cast), strict=True)
            assigned = []
            for slot, stacked_slot in new.items():
                for name, tensor in zip(group, tf.unstack(stacked_slot), strict=True):
                    assigned.append(variables[slot][name].assign(tensor))
                    if not slot:
                        parameters[name] = tensor
        if whole:  # else XLA would compute joined cast weights from the old values, and keep copies of those for it
            parameters, narrow = ({name: read_back(each) for name, each in new.items()} for new in (parameters, narrow))
        return [*self.cast.refresh(parameters, narrow), *parameters.values()]

    def _matrices(self, name: str, stacked: tf.Tensor) -> tf.Tensor:
        """Tensors like that of a name, [n, rows, columns], as the matrices that the rule multiplies one by one."""
        count = joined_matrices(name) if self._settings.batched(name, tuple(stacked.shape[1:])) else 1
        if count == 1:
            return stacked
        rows, columns = stacked.shape[1:]
        return tf.reshape(stacked, [-1, rows // count, columns])


class Wrapped:
    """An Updater whose `apply` also counts or records, so that it is not part of one program; a subclass has it."""

    at_once = False

    def __init__(self, updater: Updater) -> None:
        self.parameters, self.shapes = updater.parameters, updater.shapes
        self.grouped, self.norm, self._updater = updater.grouped, updater.norm, updater


def _parameters(matrices: tf.Tensor, count: int) -> tf.Tensor:
    """The inverse of Updater._matrices for `count` parameters."""
    return matrices if matrices.shape[0] == count else tf.reshape(matrices, [count, -1, matrices.shape[-1]])


def _norm(grouped: list[tf.Tensor], fused: bool) -> tf.Tensor:
    squares = tf.stack([tf.reduce_sum(square_sums(group, fused)) for group in grouped])
    # Not tf.add_n, because its order of addition depends on timing: it starts with a term whose memory it may
    # overwrite. Then norms of ranks with equal gradients sometimes differed in the last bit.
    return tf.sqrt(tf.reduce_sum(squares))
