"""A setting that nothing reads is refused, or told where an override made it idle: nothing is accepted and ignored."""

import re

import pytest

from bert_horovod.errors import UserError
from bert_horovod.recipe_files.loading import load_recipe, recipe_to_toml

COSINE = '[[phase]]\ndecay = "cosine"\n'
LANS = '[optimizer]\nname = "lans"\n'
POWERSGD = '[exchange]\nmethod = "powersgd"\n'
# A recipe's text, an override, and words of the refusal.
IDLE = [
    (
        "",
        "numerics.initial_loss_scale=1024",
        "numerics.initial_loss_scale = 1024.0: it is read only with numerics.precision",
    ),
    ("", "numerics.loss_scale_growth_steps=7", "'float16'; expected 2000, or that"),
    ("", "objective.orthogonality=0.5", "objective.orthogonality = 0.5: pre-training does not read it; expected 1.0"),
    ("", "objective.heads=3", "objective.heads = 3: pre-training does not read it; expected 1"),
    ("", "objective.class_weights=balanced", "objective.class_weights = 'balanced': pre-training does not read it"),
    ("", "objective.label_attention=2", "objective.label_attention = 2: pre-training does not read it"),
    (
        '[optimizer]\nname = "sgd"\n',
        "optimizer.beta_1=0.5",
        "which 'sgd' and exchange.method = 'mt_dao' have not; expected 0.9",
    ),
    (LANS, "optimizer.max_grad_norm=0.5", "optimizer.max_grad_norm = 0.5: it is read only with a rule that clips"),
    (LANS + "max_grad_norm = 0.5\n", "phase.0.steps=7", "optimizer.max_grad_norm = 0.5: it is read only with"),
    ("[optimizer]\nmax_grad_norm = 0\n", "optimizer.clipping=bucket", "only with optimizer.max_grad_norm above 0"),
    (
        "[[phase]]\nwarmup = 0.5\nhold = 0.5\n",
        "phase.0.end_learning_rate=1e-5",
        "= 1e-05: it is read only with a decay",
    ),
    (COSINE, "phase.0.decay_power=0.5", "it is read only with decay = 'power'"),
    ("[[phase]]\nhold = 0.99\n", "phase.0.decay=one_minus_sqrt", "a decay: phase.N.warmup"),
    ("[[phase]]\nhold = 0.99\n", "phase.0.decay_power=0.5", "in a phase whose warmup + hold is below 1"),
]


def test_rows_of_documents_are_not_packed_so_that_packing_is_idle(tmp_path):
    words = "data.packing = False: it is read only with objective.label_attention = 0"
    with pytest.raises(UserError, match=re.escape(words)):
        load_recipe(written(tmp_path, "[objective]\nlabel_attention = 2\n"), ["data.packing=false"])


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
