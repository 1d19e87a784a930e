"""What a fine-tuning of texts begins with: its recipe, its checkpoint's head and tokenizer, and what it refuses."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bert_horovod.collectives.world import World
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED, TokenizerSettings
from bert_horovod.errors import UserError
from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.initialisation import Finetuning, Packed, finetuning_recipe
from bert_horovod.finetuning.kinds.kinds import open_predictor
from bert_horovod.finetuning.kinds.texts import Texts
from bert_horovod.finetuning.outcome import Outcome
from bert_horovod.finetuning.text_data import glue_data
from bert_horovod.inference.options import Options
from bert_horovod.interchange.huggingface import write_directory
from bert_horovod.model.parameters import initial_values
from bert_horovod.recipe_files.loading import differences
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.tasks.text_head import Classification, Regression
from bert_horovod.training.job import Job
from bert_horovod.training.loop import train
from tests.toy_glue import FAST, MODEL, TRAIN, WORDS, write_checkpoint, write_glue
from tests.toy_runs import metrics

pytestmark = pytest.mark.full

EPOCHS = 4
STEPS = 38  # 95 rows an epoch hold the 320 examples; a step has 10 rows


def classification_recipe(model, *rows, epochs=3.0, overrides=(), world_size=1):
    phase = Texts.phase | {"global_batch": 32}
    return finetuning_recipe(Path("checkpoint"), model, phase, rows, epochs, overrides, world_size)


def finetuning(files: dict[str, Path]) -> Finetuning:
    return Finetuning(Texts(glue_data("sst2", Files(files["data_dir"]))), find_checkpoint(files["checkpoint"]))


def job_of(files: dict[str, Path], output_dir: Path, *overrides: str, **options) -> Job:
    return finetuning(files).job(output_dir, EPOCHS, FAST + overrides, **options)


def notices(files: dict[str, Path]) -> str:
    return "\n".join(said_at_start(finetuning(files)))


def said_at_start(tuning: Finetuning) -> tuple[str, ...]:
    """The notices about data, head and tokenizer, without those about rows and steps."""
    job = tuning.job(Path("unused"), overrides=FAST)
    ((notices, of_head),) = (hook.args[-2:] for hook in job.hooks if getattr(hook, "func", None) is Outcome)
    return (*notices[:-3], *of_head)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (Classification(("negative", "positive")), ""),  # nothing: it is kept
        (Classification(("positive", "negative")), "in another order; it is put into this one by name"),
        (Classification(("good", "bad")), "the head starts afresh: the checkpoint is a BertForSequenceClassification"),
        (Classification(("a", "b", "c")), "the head starts afresh"),
        (Regression(), "the head starts afresh"),
        (Pretraining(True), "the head starts afresh: the checkpoint is a BertForPreTraining"),
    ],
)
def test_what_becomes_of_the_checkpoints_head_is_said(files, tmp_path, task, said):
    other = write_checkpoint(tmp_path / "other", task)
    assert (said or "labels: negative, positive\ntokenizer: the checkpoint's, uncased") in notices(
        files | {"checkpoint": other}
    )
    assert job_of(files | {"checkpoint": other}, tmp_path / "out").initial.checkpoint.directory == other


def test_steps_follow_from_epochs_and_batch_and_overrides_come_last():
    recipe = classification_recipe(MODEL, 67349, 872)
    assert (recipe.phase[0].steps, recipe.phase[0].global_batch) == (6314, 32)
    assert (recipe.execution.evaluate_rows, recipe.execution.evaluate_steps) == (872, 2105)
    assert recipe.phase[0].sequence_length == MODEL.max_position_embeddings == 32
    other = classification_recipe(MODEL, 67349, 872, epochs=1, overrides=["phase.0.global_batch=128"], world_size=8)
    assert (other.phase[0].steps, other.execution.micro_batch) == (527, 16)
    assert classification_recipe(MODEL, 67349, 872, overrides=["phase.0.steps=7"]).phase[0].steps == 7
    large = replace(MODEL, max_position_embeddings=512)
    assert classification_recipe(large, 67349, 872).phase[0].sequence_length == 128


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (["model.hidden_size=32"], r"--set model\.hidden_size=32: the checkpoint .* has 16; only hidden_dropout_prob"),
        (["model.vocab_size=30"], r"--set model\.vocab_size=30: the checkpoint .* has 20"),
        (["phase.0.sequence_length=64"], r"sequence_length = 64: expected at most model.max_position_embeddings = 32"),
        (["phase.0.steps=0"], "steps = 0: expected at least 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(files, tmp_path, overrides, match):
    with pytest.raises(UserError, match=match):
        job_of(files, tmp_path, *overrides)


def test_dropout_may_differ_from_the_checkpoints(files, tmp_path):
    job = job_of(files, tmp_path, "model.hidden_dropout_prob=0.3")
    assert job.recipe.model == replace(MODEL, hidden_dropout_prob=0.3)


def test_a_step_has_at_least_a_row_for_each_rank_where_no_batch_is_set(files, tmp_path):
    for ranks, rows in ((1, 10), (10, 10), (11, 11), (95, 95)):
        assert job_of(files, tmp_path, world_size=ranks).recipe.phase[0].global_batch == rows
    match = r"320 train examples, in 95 rows of about 3\.4 each, but 96 ranks.*at most 95 ranks, or data\.packing=false"
    with pytest.raises(UserError, match=match):
        job_of(files, tmp_path, world_size=96)
    assert job_of(files, tmp_path, "data.packing=false", world_size=96).recipe.phase[0].global_batch == 96
    with pytest.raises(UserError, match="320 train examples, but 321 ranks, and each needs a row; start at most 320"):
        job_of(files, tmp_path, "data.packing=false", world_size=321)
    match = r"phase\.0\.global_batch=8: a step has 8 rows .* there are 11 ranks.*leave it out, set it to 11 or more"
    with pytest.raises(UserError, match=match):
        job_of(files, tmp_path, "phase.0.global_batch=8", world_size=11)


def train_few(world: World, data_dir: Path, checkpoint: Path, output_dir: Path) -> None:
    """A job for two_ranks."""
    output_dir.mkdir(parents=True, exist_ok=True)
    files = {"data_dir": data_dir, "checkpoint": checkpoint}
    train(job_of(files, output_dir, world_size=world.size, max_steps=2), world)


@pytest.mark.slow
def test_two_ranks_share_a_train_set_of_two_rows(files, two_ranks, tmp_path):
    few = write_glue(tmp_path / "glue", 6, 5)
    answers = two_ranks.run(train_few, few, files["checkpoint"], tmp_path / "run")
    assert "6 train examples in 2 rows (3.00 a row)" in answers[0].said
    assert "a step of 2 rows has about 6 examples" in answers[0].said
    assert [line["step"] for line in metrics(tmp_path / "run")] == [1, 2]
    written = (tmp_path / "run" / "predictions" / "dev.tsv").read_text().splitlines()
    assert len(written) == 1 + 5


@pytest.mark.parametrize("ranks", [2, 10])
def test_neither_rate_nor_batch_nor_steps_depend_on_the_number_of_ranks(files, tmp_path, ranks):
    one, several = job_of(files, tmp_path).recipe, job_of(files, tmp_path, world_size=ranks).recipe
    assert differences(one, several) == []
    assert several.phase[0].learning_rate == 8e-3
    assert several.execution.micro_batch == 10 // ranks < one.execution.micro_batch


@pytest.mark.parametrize("lowercase", [True, False])
def test_the_tokenizers_own_setting_decides_of_case_not_the_name(files, tmp_path, lowercase):
    task = Classification(("negative", "positive"), ("sentence",))
    directory = tmp_path / ("cased" if lowercase else "uncased")
    parameters = initial_values(task.parameters(MODEL), 0.2, 1)
    write_directory(directory, MODEL, task, parameters, WORDS, TokenizerSettings(lowercase))
    tuning = finetuning(files | {"checkpoint": directory})
    assert tuning.job(tmp_path / "out").dataset.tokenizer_settings == TokenizerSettings(lowercase)
    assert ("tokenizer: the checkpoint's, " + ("uncased" if lowercase else "cased")) in said_at_start(tuning)
    predictor = open_predictor(find_checkpoint(directory), Options())
    assert (predictor.predict_line("GOOD film") == predictor.predict_line("good film")) == lowercase
    assert (predictor.predict_line("GOOD film") == predictor.predict_line("zzz film")) != lowercase


def test_why_a_step_has_more_examples_than_usual_is_said(files, tmp_path):
    packed = Packed(340, 100, 32, "examples")
    assert packed.step_notice(job_of(files, tmp_path).recipe, 1) == ("a step of 10 rows has about 34 examples")
    assert packed.step_notice(job_of(files, tmp_path, world_size=20).recipe, 20) == (
        "a step of 20 rows has about 68 examples, more than the usual 32, because each of the 20 ranks needs a row"
    )


def test_a_step_has_about_32_examples_however_they_are_packed(files, tmp_path):
    packed, alone = job_of(files, tmp_path).recipe, job_of(files, tmp_path, "data.packing=false").recipe
    assert (packed.phase[0].global_batch, packed.phase[0].steps) == (10, STEPS)
    assert (alone.phase[0].global_batch, alone.phase[0].steps) == (32, EPOCHS * TRAIN // 32)


def test_the_dev_files_are_in_the_datas_hash_so_that_ranks_compare_them(files, tmp_path):
    other = tmp_path / "glue"
    shutil.copytree(files["data_dir"], other)
    lines = (other / "dev.tsv").read_text().splitlines()
    (other / "dev.tsv").write_text("\n".join([lines[0], *lines[:0:-1]]) + "\n")
    assert finetuning(files).job(tmp_path).dataset.hash == finetuning(files).job(tmp_path).dataset.hash
    changed = finetuning(files | {"data_dir": other}).job(tmp_path)
    assert changed.dataset.hash != finetuning(files).job(tmp_path).dataset.hash


def test_a_checkpoint_without_pooler_serves_and_vocabulary_and_case_are_its_own(files, tmp_path):
    without = write_checkpoint(tmp_path / "model", Pretraining(False))
    job = job_of(files | {"checkpoint": without}, tmp_path)
    assert (job.dataset.vocabulary, job.dataset.tokenizer_settings) == (WORDS, UNCASED)
    assert job.recipe.model == MODEL
