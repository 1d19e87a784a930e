"""The state of a run between optimizer steps: parameters, slots and progress."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_horovod.model.parameters import Shapes
from bert_horovod.optimizers.loss_scale import next_loss_scale
from bert_horovod.recipe.settings import Numerics
from bert_horovod.runtime import lazy_tensorflow as tf

if TYPE_CHECKING:
    from bert_horovod.collectives.world import World


@dataclass
class Progress:
    """The state besides tensors: counters, scalars and small tables; equal on all ranks."""

    step: int = 0  # optimizer steps done over all phases, skipped ones included
    updates: int = 0  # applied updates: the optimizer's t
    loss_scale: float = 1.0
    good_steps: int = 0  # since the loss scale last changed
    skipped_steps: int = 0  # updates skipped so far
    skipped_in_a_row: int = 0
    mean_loss: float | None = None  # moving mean, without losses that jumped; see training/hooks/divergence.py
    jumped_in_a_row: int = 0  # steps since the loss jumped; 0: it is not far above the mean
    passed_over: dict[str, int] = field(default_factory=dict)  # by phase: batches skipped after rollbacks
    wire_maxima: dict[str, float] = field(default_factory=dict)  # see exchange/dense/reducer.py
    plan: dict[str, Any] = field(default_factory=dict)  # see training/building.py
    products: str = ""  # dtype of the optimizer's matrix products; "": it has none, or none was agreed on yet
    exchange: dict[str, Any] = field(default_factory=dict)  # state of the exchange method: see its file
    task: dict[str, list[float]] = field(default_factory=dict)  # vectors that the task's loss reads: see its file
    checked: int = 0  # step of the last check of gradients that was good: training/hooks/replay.py; 0: none
    phases_before: int = 0  # of the runs that this one goes on from: pretrain --continue_from
    steps_before: int = 0  # of these phases
    ranks_with_parts: int = 0  # ranks with a part of their own in the checkpoint: see runs/rank_parts.py

    def count(self, finite: bool, numerics: Numerics) -> float:
        """Count a step that was applied, or skipped because it was not finite; returns the step's loss scale."""
        scale = self.loss_scale
        self.step += 1
        self.updates += finite
        self.skipped_steps += not finite
        self.skipped_in_a_row = 0 if finite else self.skipped_in_a_row + 1
        if numerics.precision == "float16":
            self.loss_scale, self.good_steps = next_loss_scale(scale, self.good_steps, finite)
        return scale


class TrainingState:
    """Parameters and optimizer slots as float32 variables by Hugging Face's names, and the progress.

    `trained`: names of the parameters that train (None: all); the others never change and have no slots. `slot_shapes`:
    as optimizers.base.slot_shapes returns them.

    Parameters, slots and progress are replicated: equal on all ranks, checked, saved. `per_rank` holds the variables
    that each rank keeps alone, by name: an exchange makes them (exchange/base.py), or `copy_to_train`.
    """

    def __init__(
        self,
        parameters: dict[str, np.ndarray],
        slot_shapes: dict[str, Shapes],
        progress: Progress,
        slots: dict[str, dict[str, np.ndarray]] | None = None,
        trained: Iterable[str] | None = None,
    ) -> None:
        self.parameters = {name: tf.Variable(array, trainable=False) for name, array in parameters.items()}
        self.trained = {name: self.parameters[name] for name in (parameters if trained is None else trained)}
        self.slots = {
            slot: {
                name: tf.Variable(slots[slot][name] if slots else tf.zeros(shape), trainable=False)
                for name, shape in shapes.items()
            }
            for slot, shapes in slot_shapes.items()
        }
        self.progress = progress
        self.per_rank: dict[str, tf.Variable] = {}
        self.restored: dict[str, np.ndarray] = {}  # values of a checkpoint for `own`

    @property
    def shapes(self) -> Shapes:
        """Shapes of the parameters that train, by name."""
        return {name: tuple(variable.shape) for name, variable in self.trained.items()}

    def own(self, name: str, shape: tuple[int, ...], first: tf.Variable | None = None) -> tf.Variable:
        """A float32 variable of this rank alone, by name.

        Its value is that in `restored`, padded with zeros, else that of `first`, else zeros.
        """
        if name not in self.per_rank:
            array = np.zeros(math.prod(shape), np.float32)
            if (restored := self.restored.pop(name, None)) is not None:
                array[: restored.size] = restored.reshape(-1)
            elif first is not None:
                array[:] = first.numpy().reshape(-1)
            self.per_rank[name] = tf.Variable(array.reshape(shape), trainable=False)
        return self.per_rank[name]

    def copy_to_train(self, slot_shapes: dict[str, Shapes]) -> TrainingState:
        """A state with this rank's own parameters and slots, for an exchange that trains copies.

        Its variables are in this state's `per_rank`, so that they are saved. They begin with this state's parameters
        and zeros; parameters that do not train are shared, and so is the progress. `slot_shapes`: as the optimizer's.
        """
        copy = TrainingState({}, {}, self.progress)
        copy.per_rank = self.per_rank
        copy.trained = {
            name: self.own(f"parameters/{name}", tuple(variable.shape), variable)
            for name, variable in self.trained.items()
        }
        copy.parameters = self.parameters | copy.trained
        copy.slots = {
            slot: {name: self.own(f"{slot}/{name}", shape) for name, shape in shapes.items()}
            for slot, shapes in slot_shapes.items()
        }
        return copy

    def variables(self) -> dict[str, tf.Variable]:
        """Parameters by name and slots by slot/name, in a fixed order."""
        slots = {
            f"{slot}/{name}": variable for slot, by_name in self.slots.items() for name, variable in by_name.items()
        }
        return self.parameters | slots

    def copy_to(self, arrays: dict[str, np.ndarray]) -> None:
        """Copy all `variables` to arrays of their names and shapes, float32."""
        for name, variable in self.variables().items():
            np.copyto(arrays[name], np.asarray(variable.read_value()))  # on a CPU this is the only copy

    def broadcast(self, world: World) -> None:
        """Copy rank 0's parameters and slots to every rank."""
        if world.size > 1:
            for group, variables in {"parameters": self.parameters, **self.slots}.items():
                for name, variable in variables.items():
                    variable.assign(world.broadcast(tf.convert_to_tensor(variable), f"broadcast.{group}.{name}"))

    def hash(self) -> bytes:
        """SHA-256 over all parameters and slots, in a fixed order."""
        digest = hashlib.sha256()
        for variables in (self.parameters, *self.slots.values()):
            for variable in variables.values():
                digest.update(np.ascontiguousarray(variable.numpy()))
        return digest.digest()


def ranks_that_differ(world: World, digest: bytes, name: str) -> list[int]:
    """The ranks whose digest of `name` is not rank 0's; the same list on every rank."""
    own_digest = tf.constant(np.frombuffer(digest, np.uint8)[None])
    everyone = world.all_gather(own_digest, f"digest.{name}").numpy()
    return [rank for rank in range(len(everyone)) if (everyone[rank] != everyone[0]).any()]
