"""A model that grows from phase to phase: what new layers are, what trains, what is saved, how it resumes."""

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from bert_horovod.measuring.synthetic import phase_batch, synthetic_step
from bert_horovod.model.encoder import encode
from bert_horovod.model.forward import ComputePolicy, Forward, as_tensors
from bert_horovod.model.weights import cast_weights
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import recipe_from_table
from bert_horovod.training.hooks.base import Hook
from tests.model.reference import Reference, random_batch
from tests.toy_runs import assert_same_files, losses, metrics, train_rank, train_recipe
from tests.toys import TOY_STEP, toy_recipe_table

pytestmark = pytest.mark.full

STEPS = 3  # of each phase; a checkpoint lies inside each
PHASES = (
    {"num_hidden_layers": 1},
    {"grow": "stack", "trained_layers": 1},  # one new layer, which trains alone
    {},  # both
)
SOURCES = {1: [0, 0], 2: [0, 1]}  # by phase: of which layer of the phase before each is a copy
STAGED, JOINT = 1, 2  # phases
LAYER = "bert.encoder.layer."
HEADS = ("bert.pooler.", "cls.")


def recipe() -> Recipe:
    """A toy that grows, dropout on."""
    table = toy_recipe_table(
        model={"num_hidden_layers": 2},
        execution={"micro_batch": 16, "checkpoint_steps": 2, "keep_checkpoints": 99},
    )
    (phase,) = table["phase"]
    table["phase"] = [phase | {"steps": STEPS} | each for each in PHASES]
    return recipe_from_table(table)


RECIPE = recipe()


class Begun(NamedTuple):
    """The state with which a phase began."""

    parameters: dict[str, np.ndarray]
    slots: dict[str, dict[str, np.ndarray]]
    updates: int


class Watch(Hook):
    """Keeps what each phase began with."""

    begun: list[Begun]

    def phase(self) -> None:
        state = self.run.state
        slots = {slot: {name: x.numpy() for name, x in named.items()} for slot, named in state.slots.items()}
        parameters = {name: x.numpy() for name, x in state.parameters.items()}
        self.begun.append(Begun(parameters, slots, state.progress.updates))


class Grown(NamedTuple):
    """A run from beginning to end."""

    output_dir: Path
    begun: list[Begun]  # by phase

    def saved(self, phase: int) -> dict[str, np.ndarray]:
        """The parameters at the end of a phase."""
        return load_file(checkpoint(self.output_dir, (phase + 1) * STEPS) / "model.safetensors")


@pytest.fixture(scope="module")
def grown(store, tmp_path_factory) -> Grown:
    begun: list[Begun] = []
    watch = type("Watched", (Watch,), {"begun": begun})
    return Grown(train_recipe(RECIPE, store, tmp_path_factory.mktemp("grown") / "run", hooks=(watch,)), begun)


def left_at(grown: Grown, step: int, directory: Path) -> Path:
    """A copy of the run as if it had been killed after the checkpoint of this step."""
    copy = shutil.copytree(grown.output_dir, directory / "run")
    for path in (copy / "checkpoints").iterdir():
        if path.name > checkpoint(copy, step).name:
            shutil.rmtree(path)
    return copy


def checkpoint(output_dir: Path, step: int) -> Path:
    return output_dir / "checkpoints" / f"step-{step:08d}"


def with_layers(parameters: dict[str, np.ndarray], sources: list[int]) -> dict[str, np.ndarray]:
    """The parameters with the layers of these numbers, one on another."""
    stacked = {name: value for name, value in parameters.items() if not name.startswith(LAYER)}
    for layer, source in enumerate(sources):
        prefix = f"{LAYER}{source}."
        stacked |= {
            f"{LAYER}{layer}.{name.removeprefix(prefix)}": value
            for name, value in parameters.items()
            if name.startswith(prefix)
        }
    return stacked


@pytest.mark.parametrize("phase", [STAGED, JOINT])
def test_new_layers_are_copies_everything_else_stays_and_the_optimizer_starts_anew(phase, grown):
    expected = with_layers(grown.saved(phase - 1), SOURCES[phase])
    parameters = grown.begun[phase].parameters
    assert parameters.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(parameters[name], value, err_msg=name)
    assert grown.begun[phase].updates == 0
    assert not any(value.any() for named in grown.begun[phase].slots.values() for value in named.values())


def test_right_after_a_doubling_the_outputs_are_those_of_the_transcription_with_copied_weights(grown):
    model = dataclasses.replace(RECIPE.model, hidden_dropout_prob=0.0)
    batch = random_batch(((16,), (16,)))
    weights = cast_weights({name: tf.constant(value) for name, value in grown.begun[1].parameters.items()}, tf.float32)
    states = encode(Forward(model, weights, ComputePolicy()), {name: tf.constant(x) for name, x in batch.items()})
    reference = Reference(model, with_layers(grown.saved(0), SOURCES[1]))
    for row in range(2):
        expected = reference.encode(batch["input_ids"][row], batch["token_type_ids"][row])
        assert len(states) == len(expected) == 3
        np.testing.assert_allclose(states[-1][row].numpy(), expected[-1], atol=2e-5)


def test_what_trains_and_has_slots_are_the_upper_layers_and_the_heads(grown):
    everything = set(grown.begun[JOINT].parameters)
    for slot in ("m", "v"):
        assert set(grown.begun[0].slots[slot]) == set(grown.begun[0].parameters)
        assert set(grown.begun[STAGED].slots[slot]) == {
            name for name in everything if name.startswith((f"{LAYER}1.", *HEADS))
        }
        assert set(grown.begun[JOINT].slots[slot]) == everything


def test_frozen_tensors_are_bit_equal_after_their_phase_and_the_others_are_not(grown):
    before, trained, after = grown.begun[STAGED].parameters, set(grown.begun[STAGED].slots["m"]), grown.saved(STAGED)
    changed = {name for name, value in before.items() if (after[name] != value).any()}
    assert changed <= trained
    assert trained - changed <= {f"{LAYER}1.attention.self.key.bias"}  # softmax drops it: its gradient is rounding
    word_embeddings = "bert.embeddings.word_embeddings.weight"
    assert (grown.saved(JOINT)[word_embeddings] != after[word_embeddings]).any()


@pytest.mark.parametrize(
    ("xla", "recompute"),
    [("off", "layer"), *(pytest.param("layers", each, marks=pytest.mark.slow) for each in ("none", "layer"))],
)
def test_gradients_of_upper_layers_are_those_of_the_whole_model(xla, recompute):
    outputs = []
    for trained_layers in (0, 1):
        phase = {"sequence_length": 32, "trained_layers": trained_layers}
        execution = TOY_STEP["execution"] | {"xla": xla, "recompute": recompute}
        recipe = recipe_from_table(TOY_STEP | {"phase": [phase], "execution": execution})
        batch = phase_batch(recipe, recipe.phase[0])
        synthetic = synthetic_step(recipe, batch)
        forward_backward = tf.function(synthetic.step.forward_backward, autograph=False)
        outputs.append(forward_backward(as_tensors(batch), tf.constant(0, tf.uint64), synthetic.inputs()))
    (whole, _, whole_sums), (upper, lookups, upper_sums) = outputs
    np.testing.assert_array_equal(upper_sums, whole_sums)  # dropout is on in layers that do not train
    assert not lookups
    assert upper.keys() < whole.keys()
    for name, gradient in upper.items():
        np.testing.assert_allclose(gradient, whole[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("step", "layers", "slots"), [(2, 1, 1), (3, 1, 1), (4, 2, 1), (6, 2, 1), (8, 2, 2)])
def test_a_checkpoint_is_a_whole_directory_of_its_phases_depth(step, layers, slots, grown):
    directory = checkpoint(grown.output_dir, step)
    assert json.loads((directory / "config.json").read_text(encoding="utf-8"))["num_hidden_layers"] == layers
    parameters = load_file(directory / "model.safetensors")
    assert {name.split(".")[3] for name in parameters if name.startswith(LAYER)} == set(map(str, range(layers)))
    saved = load_file(directory / "training" / "optimizer.safetensors")
    assert len({name.split(".")[3] for name in saved if name.startswith(f"m/{LAYER}")}) == slots


@pytest.mark.parametrize(
    "step",
    [pytest.param(STEPS + 1, id="in a phase"), pytest.param(2 * STEPS, id="at a border", marks=pytest.mark.slow)],
)
def test_a_run_that_ended_in_a_phase_or_at_a_border_resumes_bit_for_bit_across_the_next_one(
    step, grown, store, tmp_path
):
    output_dir = train_recipe(RECIPE, store, left_at(grown, step, tmp_path))
    assert losses(output_dir) == losses(grown.output_dir)
    assert_same_files(output_dir, grown.output_dir)


@pytest.mark.slow
def test_two_ranks_go_on_from_the_border_of_one_and_send_what_trains(grown, store, two_ranks, tmp_path):
    output_dir = left_at(grown, STAGED * STEPS, tmp_path)
    two_ranks.run(train_rank, store.path, output_dir, RECIPE, max_steps=(STAGED + 1) * STEPS)
    lines = metrics(output_dir)
    assert len(lines) == (STAGED + 1) * STEPS
    for one, two in zip(metrics(grown.output_dir), lines, strict=False):
        assert math.isclose(one["loss"], two["loss"], rel_tol=1e-5), one["step"]
    trains = grown.begun[STAGED].slots["m"].values()
    assert lines[-1]["wire_bytes"] == 4 * sum(math.prod(value.shape) for value in trains)
