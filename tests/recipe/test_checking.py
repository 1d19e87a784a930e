"""Settings that cannot go together, or that nothing reads, are refused by name: nothing is accepted and ignored."""

import dataclasses
import re

import pytest

from bert_horovod.errors import UserError
from bert_horovod.exchange.methods import METHODS
from bert_horovod.recipe.sections import Recipe, reductions
from bert_horovod.recipe_files.loading import (
    differences,
    load_recipe,
    recipe_from_table,
    recipe_to_table,
    recipe_to_toml,
)
from tests.toys import toy_recipe


def recipe(layers: int, *phases: dict, **sections: dict) -> Recipe:
    return recipe_from_table({"model": {"num_hidden_layers": layers}, "phase": list(phases), **sections})


def test_stacking_and_staged_training_are_read():
    stacking = recipe(8, {"num_hidden_layers": 2}, {"num_hidden_layers": 4, "grow": "stack"}, {"grow": "stack"})
    assert [stacking.in_phase(phase).model.num_hidden_layers for phase in stacking.phase] == [2, 4, 8]
    assert not stacking.whole
    assert recipe_from_table(recipe_to_table(stacking)) == stacking
    middle = stacking.of_phase(1)
    assert (middle.model.num_hidden_layers, middle.total_steps) == (4, stacking.phase[1].steps)
    assert recipe_from_table(recipe_to_table(middle)) == middle
    staged = recipe(3, {"num_hidden_layers": 2}, {"grow": "top", "trained_layers": 1}, {})
    assert staged.in_phase(staged.phase[2]) is staged
    assert not recipe(3, {"trained_layers": 1}).whole
    assert recipe(3, {"trained_layers": 3}, {"num_hidden_layers": 3}).whole


def test_the_phase_of_a_step_is_the_one_that_does_it():
    three = recipe(6, {"steps": 2}, {"steps": 1}, {"steps": 3})
    assert [three.phase_at(step) for step in range(8)] == [0, 0, 0, 1, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        (({}, {"num_hidden_layers": 3}), "phase.1.num_hidden_layers = 3: a model cannot shrink; expected at least"),
        (({"num_hidden_layers": 3},), "phase.0.num_hidden_layers = 3: the last phase .* model.num_hidden_layers = 6"),
        (({"num_hidden_layers": 8}, {}), "phase.1.num_hidden_layers = 6: a model cannot shrink"),
        (({"num_hidden_layers": 3}, {}), r"phase.1.num_hidden_layers = 6: .* expected phase.1.grow = 'stack' or"),
        (({"num_hidden_layers": 4}, {"grow": "stack"}), "phase.1.grow = 'stack' copies all 4 .* a multiple of 4"),
        (({"num_hidden_layers": 2}, {"grow": "top"}), "phase.1.grow = 'top' copies .* expected at most 4"),
        (({"grow": "stack"},), "phase.0.grow = 'stack': no layers are added, because the first phase"),
        (({}, {"grow": "top"}), "phase.1.grow = 'top': no layers are added, because phase.0 has 6 layers too"),
        (({"trained_layers": 7},), "phase.0.trained_layers = 7: the model has 6 layers in this phase"),
        (({"num_hidden_layers": 3, "trained_layers": 4}, {"grow": "stack"}), "phase.0.trained_layers = 4: .* 3 layers"),
        (({"end_learning_rate": 0.1},), "phase.0.end_learning_rate = 0.1: expected at most phase.0.learning_rate"),
    ],
)
def test_a_growth_that_cannot_be_is_refused(phases, expected):
    with pytest.raises(UserError, match=expected):
        recipe(6, *phases)


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"gradients"}))
@pytest.mark.parametrize("phases", [({"num_hidden_layers": 3}, {"grow": "stack"}), ({"trained_layers": 3},)])
def test_exchanges_that_keep_something_of_each_tensor_are_refused(method, phases):
    with pytest.raises(UserError, match=f"exchange.method = {method!r}: .*expected 'gradients'"):
        recipe(6, *phases, exchange={"method": method}, optimizer={"name": METHODS[method].optimizer or "adamw"})


@pytest.mark.parametrize(("name", "value"), [("shared_layers", 1), ("embedding_size", 64)])
@pytest.mark.parametrize("phases", [({"num_hidden_layers": 3}, {"grow": "stack"}), ({"trained_layers": 3},)])
def test_an_albert_is_refused(name, value, phases):
    with pytest.raises(UserError, match=f"model.{name} = {value}: an ALBERT trains as a whole; expected 0 with"):
        recipe_from_table({"model": {"num_hidden_layers": 6, name: value}, "phase": list(phases)})


COSINE = '[[phase]]\ndecay = "cosine"\n'
LANS = '[optimizer]\nname = "lans"\n'
# A recipe's text, an override, and words of the refusal.
IDLE = [
    ("", "finetuning.class_weights=balanced", "finetuning.class_weights = 'balanced': pre-training does not read it"),
    ("", "objective.class_weights=balanced", "finetuning.class_weights = 'balanced': pre-training does not read it"),
    ("", "objective.label_attention=2", "finetuning.windows = 2: pre-training does not read it"),
    ("", "finetuning.head=label_attention", "'label_attention': pre-training does not read it; expected 'classifier'"),
    ('[optimizer]\nname = "sgd"\n', "optimizer.beta_1=0.5", "which 'sgd' and some exchanges have not"),
    (LANS, "optimizer.max_grad_norm=0.5", "optimizer.max_grad_norm = 0.5: it is read only with a rule that clips"),
    (LANS + "max_grad_norm = 0.5\n", "phase.0.steps=7", "optimizer.max_grad_norm = 0.5: it is read only with"),
    ("[optimizer]\nmax_grad_norm = 0\n", "optimizer.clipping=bucket", "only with optimizer.max_grad_norm above 0"),
    ("[[phase]]\nwarmup = 0.5\nhold = 0.5\n", "phase.0.end_learning_rate=1e-5", "= 1e-05: it is read only with a"),
    (COSINE, "phase.0.decay_power=0.5", "it is read only with decay = 'power'"),
    ("[[phase]]\nhold = 0.99\n", "phase.0.decay=one_minus_sqrt", "a decay: phase.N.warmup"),
    ("[finetuning]\nhead = 'label_attention'\n", "data.packing=false", "it is read only with finetuning.head other"),
    ("[[phase]]\nmixture = {own = 1}\n", "data.mixture={own = 2}", "data.mixture = {own = 2.0}: it is read only"),
    ("[data]\nmixture = {own = 1}\n", "data.mixture_temperature=0.3", "only with a phase whose mixture is 'size'"),
    ("[[phase]]\nhold = 0.99\n", "phase.0.decay_power=0.5", "in a phase whose warmup + hold is below 1"),
]


def written(tmp_path, text):
    path = tmp_path / "recipe.toml"
    path.write_text(text if "[[phase]]" in text else f"{text}[[phase]]\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(("text", "override", "words"), IDLE, ids=[override for _, override, _ in IDLE])
def test_an_override_that_nothing_reads_is_refused_by_name(tmp_path, text, override, words):
    with pytest.raises(UserError, match=re.escape(words)):
        load_recipe(written(tmp_path, text), [override])


def test_a_recipe_that_nothing_reads_in_part_is_refused_and_its_default_is_not(tmp_path):
    with pytest.raises(UserError, match="it is read only with a rule that clips"):
        load_recipe(written(tmp_path, LANS + "max_grad_norm = 0.5\n"))
    assert load_recipe(written(tmp_path, LANS + "max_grad_norm = 1.0\n")).notes == ()


def test_what_an_override_makes_idle_is_told(tmp_path):
    path = written(tmp_path, "[optimizer]\nbeta_1 = 0.8\n")
    assert load_recipe(path).notes == ()
    (note,) = load_recipe(path, ["optimizer.name=sgd"]).notes
    assert note.startswith("optimizer.beta_1 = 0.8: it is read only with a rule with a first moment")


def test_values_that_do_hardly_anything_are_told(tmp_path):
    steps = ["phase.0.steps=900", "phase.0.warmup=0.05", "execution.replay_steps=500"]
    assert load_recipe(written(tmp_path, ""), steps).notes == ()
    notes = load_recipe(written(tmp_path, ""), [*steps, "phase.0.decay_power=1e9", "execution.replay_steps=901"]).notes
    assert notes[0] == "phase.0.decay_power = 1e+09: the last 854 of 900 steps have the learning rate 0"
    assert notes[1].startswith("execution.replay_steps = 901: the run has 900 steps, so gradients are checked before")


def test_settings_of_a_method_that_an_override_replaces_are_left_out_and_told(tmp_path):
    path = written(tmp_path, '[exchange]\nmethod = "powersgd"\nrank = 8\n')
    recipe = load_recipe(path, ["exchange.method=gradients"])
    assert recipe.exchange.method == "gradients"
    (note,) = recipe.notes
    assert note.startswith("exchange.rank = 8 of the recipe is left out: exchange.method = 'gradients' has no such")
    with pytest.raises(UserError, match=re.escape("exchange.method = 'gradients' has no such setting")):
        load_recipe(path, ["exchange.method=gradients", "exchange.rank=2"])


def test_the_file_of_a_run_lists_all_settings_and_is_read_whatever_is_idle(tmp_path):
    idle = load_recipe(written(tmp_path, "[optimizer]\nbeta_1 = 0.8\n"), ["optimizer.name=sgd"])
    again = load_recipe(written(tmp_path, recipe_to_toml(idle)))
    assert again == idle
    assert len(again.notes) == 1


@pytest.mark.parametrize(
    ("wire", "execution", "expected"),
    [
        ("float32", {"bucket_bytes": "auto"}, ("ring",)),
        ("float16", {"bucket_bytes": "auto"}, ("ring", "two_step")),
        ("float16", {"bucket_bytes": 1000}, ("ring",)),
        ("float16", {"bucket_bytes": 1000, "reduction": "two_step"}, ("two_step",)),
        ("float16", {"bucket_bytes": "auto", "reduction": "ring"}, ("ring",)),
        ("int8", {"bucket_bytes": 1000}, ("two_step",)),
    ],
)
def test_ways_to_sum_are_open_where_they_are_measured_and_the_recipe_names_none(wire, execution, expected):
    assert reductions(toy_recipe(numerics={"wire": wire}, execution=execution)) == expected


def modernbert(model: dict | None = None, phases: tuple[dict, ...] = ({},), **sections: dict) -> Recipe:
    objective = sections.pop("objective", {"pair": "none"})
    table = {"model": {"architecture": "modernbert"} | (model or {}), "objective": objective, "phase": list(phases)}
    return recipe_from_table(table | sections)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"objective": {"pair": "next_sentence"}}, "objective.pair = 'next_sentence': a ModernBERT has no segment"),
        ({"model": {"hidden_size": 36}}, r"model.num_attention_heads = 12: its heads of 3 numbers cannot be turned"),
        ({"model": {"attention_output_dropout_prob": 0.001}}, r"attention_output_dropout_prob = 0.001: expected 0, or"),
        ({"model": {"type_vocab_size": 3}}, r"model.type_vocab_size = 3: model.architecture = 'modernbert' has no"),
        ({"model": {"shared_layers": 1}}, r"model.shared_layers = 1: model.architecture = 'modernbert' has no such"),
        ({"model": {"local_attention": 1}}, r"model.local_attention = 1: expected at least 2"),
        ({"phases": ({"num_hidden_layers": 6}, {"grow": "stack"})}, "its layers are not alike .* expected no"),
        ({"phases": ({"trained_layers": 2},)}, "its layers are not alike"),
        ({"phases": ({"global_rope_theta": 0.5},)}, r"phase.0.global_rope_theta = 0.5: expected more than 1, or 0"),
        ({"phases": ({"sequence_length": 8193},)}, r"expected at most model.max_position_embeddings = 8192"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        modernbert(**arguments)


def test_other_models_have_none_of_its_settings():
    with pytest.raises(UserError, match=r"model.local_attention = 64: model.architecture = 'bert' has no such setting"):
        recipe_from_table({"model": {"local_attention": 64}})
    with pytest.raises(UserError, match=r"or model.architecture = bert$"):
        recipe_from_table({"model": {"architecture": "modernbert", "shared_layers": 1}})
    with pytest.raises(UserError, match=r"phase.0.global_rope_theta = 10000: model.architecture = 'bert' has no"):
        recipe_from_table({"phase": [{"global_rope_theta": 10_000.0}]})


def test_a_phase_may_have_a_theta_of_its_own():
    two = modernbert({"global_rope_theta": 10_000.0}, ({}, {"global_rope_theta": 160_000.0}))
    assert two.whole
    assert two.in_phase(two.phase[0]) is two
    longer = two.of_phase(1)
    assert longer.model.global_rope_theta == 160_000.0
    assert [longer.model.theta(layer) for layer in range(4)] == [160_000.0, 10_000.0, 10_000.0, 160_000.0]
    assert recipe_from_table(recipe_to_table(longer)) == longer
    assert recipe_from_table(recipe_to_table(two)) == two
    assert differences(two, dataclasses.replace(two, phase=longer.phase * 2))[0] == (
        "phase.0.global_rope_theta: 0.0 -> 160000.0"
    )


def test_a_window_is_computed_in_blocks_where_that_is_worth_it():
    model = modernbert({"local_attention": 128}).model
    assert [model.blocks(length) for length in (128, 383, 384, 1000, 8192)] == [1, 1, 6, 16, 128]
    assert [model.score_blocks(layer, 1024) for layer in (0, 1)] == [(1, 1024, 1024), (16, 64, 192)]
