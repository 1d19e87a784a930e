"""A classifier is fine-tuned by the real loop: layouts agree, resume is exact, the result loads in transformers."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
import torch
from transformers import AutoModelForSequenceClassification

from bert_horovod.batches.examples.labelled import LabelledTexts, tokenised
from bert_horovod.collectives.world import World
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED, TokenizerSettings
from bert_horovod.errors import UserError
from bert_horovod.finetuning.files import Files
from bert_horovod.finetuning.initialisation import Finetuning, Packed, StartingPoint, finetuning_recipe
from bert_horovod.finetuning.kinds.base import Request
from bert_horovod.finetuning.kinds.kinds import open_predictor, score
from bert_horovod.finetuning.kinds.texts import Texts
from bert_horovod.finetuning.outcome import Outcome
from bert_horovod.finetuning.text_data import OwnOptions, TextData, glue_data, own_data
from bert_horovod.inference.options import Options
from bert_horovod.interchange.huggingface import read_directory, write_directory
from bert_horovod.model.forward import Forward
from bert_horovod.model.parameters import initial_values
from bert_horovod.model.policy import ComputePolicy
from bert_horovod.model.weights import cast_weights
from bert_horovod.recipe_files.loading import differences
from bert_horovod.runs.checkpoint import path_of
from bert_horovod.runs.status_files import Command
from bert_horovod.tasks.classification import Classification
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.tasks.regression import Regression
from bert_horovod.training.job import Job
from bert_horovod.training.loop import train
from tests.horovod_runs import run_ranks
from tests.toy_glue import DEV, MODEL, TRAIN, WORDS, numbered, write_checkpoint, write_glue, write_labels, write_mnli
from tests.toy_runs import logged, metrics, newest

EPOCHS = 4
LABELS = ("blame", "film", "plot", "praise")  # of write_labels
STEPS, AN_EPOCH = 38, 10  # 95 rows an epoch hold the 320 examples; a step has 10 rows
FAST = (
    "phase.0.learning_rate=8e-3",
    "execution.xla='off'",
    "execution.log_steps=1",
    "execution.keep_checkpoints=9",
    "execution.tensorboard=false",
)


def classification_recipe(*sizes, epochs=3.0, **options):
    start = StartingPoint(Path("checkpoint"), sizes[0], Texts.phase | {"global_batch": 32})
    return finetuning_recipe(start, *sizes[1:], epochs, **options)


def finetuning(files: dict[str, Path]) -> Finetuning:
    return Finetuning(Texts(glue_data("sst2", Files(files["data_dir"]))), files["checkpoint"])


def job_of(files: dict[str, Path], output_dir: Path, *overrides: str, **options) -> Job:
    return finetuning(files).job(output_dir, EPOCHS, FAST + overrides, **options)


@pytest.fixture(scope="module")
def whole(files, tmp_path_factory) -> Path:
    """All epochs, one micro-batch of 10 rows."""
    output_dir = tmp_path_factory.mktemp("whole")
    train(job_of(files, output_dir), World())
    return output_dir


def own_values(output_dir: Path) -> list[tuple]:
    names = ("step", "epoch", "loss", "accuracy", "learning_rate", "gradient_norm")
    return [tuple(line[name] for name in names) for line in metrics(output_dir)]


def evaluations(output_dir: Path) -> list[dict]:
    lines = map(json.loads, (output_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if "held_out_accuracy" in line]


@pytest.mark.full
def test_it_learns_and_the_dev_set_is_evaluated_once_an_epoch(whole):
    lines, scores = metrics(whole), evaluations(whole)
    assert [line["step"] for line in scores] == [AN_EPOCH, 2 * AN_EPOCH, 3 * AN_EPOCH, STEPS]
    assert lines[-1]["step"] == STEPS
    assert scores[-1]["held_out_accuracy"] > 0.8 > 0.6 > scores[0]["held_out_accuracy"]
    assert all(math.isclose(line["loss"], line["label_loss"]) for line in lines)


@pytest.mark.full
def test_four_micro_batches_of_3_give_the_losses_of_one_of_10(files, whole, tmp_path):
    train(job_of(files, tmp_path, "execution.micro_batch=3", max_steps=12), World())
    pairs = list(zip(own_values(whole)[:12], own_values(tmp_path), strict=True))
    assert len(pairs) == 12
    for (_, _, loss, *_), (_, _, other, *_) in pairs:
        assert math.isclose(loss, other, rel_tol=1e-5)


@pytest.mark.full
def test_a_resumed_run_equals_one_that_was_not_stopped_bit_for_bit(files, whole, tmp_path):
    train(job_of(files, tmp_path, max_steps=5), World())
    assert own_values(tmp_path) == own_values(whole)[:5]
    train(job_of(files, tmp_path, max_steps=20), World())
    assert own_values(tmp_path) == own_values(whole)[:20]
    for file in ("model.safetensors", "training/optimizer.safetensors"):
        assert (path_of(tmp_path, 20) / file).read_bytes() == (path_of(whole, 20) / file).read_bytes()


def evaluate_rank(world: World, data_dir: Path, checkpoint: Path, scored: Path) -> dict[str, float]:
    """A job for two_ranks: the dev scores of a checkpoint, by all ranks together."""
    job = finetuning({"data_dir": data_dir, "checkpoint": checkpoint}).job(Path("unused"))
    run = SimpleNamespace(recipe=job.recipe, task=job.task, job=job, world=world, doing=lambda what: None)
    run.state = SimpleNamespace(progress=SimpleNamespace(step=0))
    run.phase = SimpleNamespace(number=0, held_out=job.dataset.open(0, "held_out"))
    return job.evaluator(run).evaluate(read_directory(scored, job.task).parameters)


def test_dev_scores_are_equal_to_the_last_digit_on_two_ranks(files, whole, two_ranks):
    expected = evaluations(whole)[1]
    assert expected["step"] == 2 * AN_EPOCH
    assert 0.5 < expected["held_out_accuracy"] < 1  # so that an example counted twice would show
    answers = two_ranks.run(evaluate_rank, *files.values(), path_of(whole, expected["step"]))
    assert [answer.value for answer in answers] == [{"accuracy": expected["held_out_accuracy"]}] * 2


def regression(directory: Path) -> TextData:
    files = Files(None, numbered(directory, 200), (numbered(directory, 37),), (numbered(directory, 5),))
    return own_data("regression", files, ("text",), "score")


@pytest.mark.slow
def test_correlations_of_1_2_and_3_ranks_are_equal_to_the_last_digit(files, tmp_path):
    job = Finetuning(Texts(regression(tmp_path)), files["checkpoint"]).job(tmp_path / "run", 1, FAST)
    job.output_dir.mkdir()
    train(job, World())
    expected = [line for line in logged(tmp_path / "run") if "held_out_pearson" in line][-1]
    script = f"""
from pathlib import Path
from types import SimpleNamespace
from bert_horovod.collectives.launched import launch
from bert_horovod.collectives.starting import connect
from bert_horovod.finetuning.initialisation import Finetuning
from bert_horovod.interchange.huggingface import read_directory
from tests.finetuning.test_classifier import FAST, regression
world = connect(launch())
job = Finetuning(Texts(regression(Path({str(tmp_path)!r}))), Path({str(files["checkpoint"])!r})).job(
    Path("unused"), 1, FAST, world.size)
run = SimpleNamespace(recipe=job.recipe, task=job.task, job=job, world=world, doing=lambda what: None)
run.state = SimpleNamespace(progress=SimpleNamespace(step=0))
run.phase = SimpleNamespace(number=0, held_out=job.dataset.open(0, "held_out"))
parameters = read_directory(Path({str(newest(tmp_path / "run"))!r}), job.task).parameters
print("SCORES", sorted(job.evaluator(run).evaluate(parameters).items()), flush=True)
world.shutdown()
"""
    wanted = str([(name, expected[f"held_out_{name}"]) for name in ("pearson", "spearman")])
    for ranks in (2, 3):
        done = run_ranks(ranks, script)
        assert done.returncode == 0, done.stdout + done.stderr
        scores = [line.partition("SCORES ")[2] for line in done.stdout.splitlines() if "SCORES" in line]
        assert scores == [wanted] * ranks


@pytest.mark.full
def test_a_regression_learns_and_its_checkpoint_is_one_of_transformers(files, tmp_path):
    data = regression(tmp_path)
    (tmp_path / "run").mkdir()
    job = Finetuning(Texts(data), files["checkpoint"]).job(tmp_path / "run", 6, FAST)
    train(job, World())
    lines = logged(tmp_path / "run")
    assert [line for line in lines if "held_out_pearson" in line][-1]["held_out_pearson"] > 0.7
    assert lines[0]["squared_error"] == lines[0]["loss"]
    theirs = AutoModelForSequenceClassification.from_pretrained(newest(tmp_path / "run"))
    assert (theirs.config.problem_type, theirs.config.num_labels) == ("regression", 1)
    written = (tmp_path / "run" / "predictions" / "test.tsv").read_text().splitlines()
    assert written[0] == "index\tprediction"
    rows = tokens_of(data.test["test"].examples.texts[0])
    with torch.no_grad():
        expected = [float(theirs.eval()(torch.tensor([row])).logits) for row in rows]
    np.testing.assert_allclose([float(line.split("\t")[1]) for line in written[1:]], expected, rtol=1e-4, atol=1e-4)


def tokens_of(texts: list[str]) -> list[list[int]]:
    """Each text's ids with [CLS] and [SEP]."""
    examples = tokenised(LabelledTexts((texts,), [0] * len(texts)), Tokenizer(WORDS, UNCASED))
    spans = zip(examples.starts[:, 0], examples.counts[:, 0], strict=True)
    return [[2, *examples.ids[start : start + count].tolist(), 3] for start, count in spans]


@pytest.mark.full
def test_the_checkpoint_gives_the_same_logits_in_transformers(files, whole):
    directory = newest(whole)
    theirs, loading = AutoModelForSequenceClassification.from_pretrained(directory, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    job = job_of(files, whole)
    source = job.dataset.open(0, "held_out")
    texts = glue_data("sst2", Files(files["data_dir"])).dev[""].examples.texts[0]
    with torch.no_grad():
        expected = np.concatenate([theirs.eval()(torch.tensor([row])).logits.numpy() for row in tokens_of(texts)])
    parameters = {name: tf.constant(value) for name, value in read_directory(directory, job.task).parameters.items()}
    forward = Forward(MODEL, cast_weights(parameters, tf.float32), ComputePolicy())
    rows = {name: tf.constant(values) for name, values in source.assemble(np.arange(source.count)).items()}
    logits = source.by_item(job.task.outputs(forward, rows)["logits"].numpy())
    assert source.count < DEV  # several share a row
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    assert (expected.argmax(-1) == source.labels).mean() == evaluations(whole)[-1]["held_out_accuracy"]


@pytest.mark.full
def test_the_dev_predictions_of_a_run_have_its_scores(files, whole):
    scores = score("sst2", Request(whole / "predictions" / "dev.tsv", files["data_dir"]))
    assert scores == {"accuracy": evaluations(whole)[-1]["held_out_accuracy"]}


@pytest.mark.full
def test_both_dev_sets_of_mnli_are_scored_and_its_test_sets_predicted_with_the_diagnostic_one(files, tmp_path, capsys):
    data_dir = write_mnli(tmp_path / "glue")
    (tmp_path / "run").mkdir()
    job = Finetuning(Texts(glue_data("mnli", Files(data_dir))), files["checkpoint"]).job(tmp_path / "run", 2, FAST)
    train(job, World())
    last = evaluations(tmp_path / "run")[-1]
    predictions = tmp_path / "run" / "predictions"
    for split, name in (("dev", "held_out_accuracy"), ("dev_mismatched", "held_out_accuracy_mismatched")):
        gold = data_dir / ("dev_matched.tsv" if split == "dev" else "dev_mismatched.tsv")
        assert score("mnli", Request(predictions / f"{split}.tsv", dev_file=gold)) == {"accuracy": last[name]}
    for title, count in (("MNLI-m", 5), ("MNLI-mm", 3), ("AX", 4)):
        header, *rows = (predictions / f"{title}.tsv").read_text().splitlines()
        assert header == "index\tprediction"
        assert [row.split("\t")[0] for row in rows] == [str(number) for number in range(count)]
        assert {row.split("\t")[1] for row in rows} <= {"contradiction", "entailment", "neutral"}
    output = capsys.readouterr().out
    assert "labels: contradiction, entailment, neutral" in output
    assert "dev_mismatched.tsv: accuracy" in output
    train(job, World())  # it is finished
    again = capsys.readouterr().out
    assert "nothing to do" in again
    scores = [line for line in output.splitlines() if "tsv: accuracy" in line]
    assert len(scores) == 2
    assert all(line in again for line in scores)


@pytest.mark.full
def test_a_run_may_start_from_a_classifier_of_the_same_labels(files, whole, tmp_path):
    from_itself = files | {"checkpoint": whole}
    assert job_of(from_itself, tmp_path).init_checkpoint == newest(whole)


def notices(files: dict[str, Path]) -> str:
    return "\n".join(said_at_start(finetuning(files)))


def said_at_start(tuning: Finetuning) -> tuple[str, ...]:
    """The notices about data, head and tokenizer, without those about rows and steps."""
    job = tuning.job(Path("unused"), overrides=FAST)
    (notices,) = (hook.args[-1] for hook in job.hooks if getattr(hook, "func", None) is Outcome)
    return notices[:-3]


@pytest.mark.full
@pytest.mark.parametrize(
    ("task", "said"),
    [
        (Classification(("positive", "negative")), "in another order; it is put into this one by name"),
        (Classification(("good", "bad")), "the head starts afresh: the checkpoint is a BertForSequenceClassification"),
        (Classification(("a", "b", "c")), "the head starts afresh"),
        (Regression(), "the head starts afresh"),
        (Pretraining(True), "the head starts afresh: the checkpoint is a BertForPreTraining"),
    ],
)
def test_what_becomes_of_the_checkpoints_head_is_said(files, tmp_path, task, said):
    other = write_checkpoint(tmp_path / "other", task)
    assert said in notices(files | {"checkpoint": other})
    assert job_of(files | {"checkpoint": other}, tmp_path / "out").init_checkpoint == other


@pytest.mark.full
def test_labels_and_tokenizer_are_said_and_the_head_only_where_it_is_not_kept(files, whole):
    messages = notices(files | {"checkpoint": whole})
    assert messages == "labels: negative, positive\ntokenizer: the checkpoint's, uncased"


@pytest.mark.full
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


@pytest.mark.full
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


@pytest.mark.full
def test_dropout_may_differ_from_the_checkpoints(files, tmp_path):
    job = job_of(files, tmp_path, "model.hidden_dropout_prob=0.3")
    assert job.recipe.model == replace(MODEL, hidden_dropout_prob=0.3)


@pytest.mark.full
@pytest.mark.parametrize("epochs", [0.0, -1.0, math.inf, math.nan])
def test_epochs_that_are_none_are_refused(files, tmp_path, epochs):
    with pytest.raises(UserError, match=r"--epochs .*expected more than 0"):
        finetuning(files).job(tmp_path, epochs)


@pytest.mark.full
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


@pytest.mark.full
@pytest.mark.parametrize("ranks", [2, 10])
def test_neither_rate_nor_batch_nor_steps_depend_on_the_number_of_ranks(files, tmp_path, ranks):
    one, several = job_of(files, tmp_path).recipe, job_of(files, tmp_path, world_size=ranks).recipe
    assert differences(one, several) == []
    assert several.phase[0].learning_rate == 8e-3
    assert several.execution.micro_batch == 10 // ranks < one.execution.micro_batch


@pytest.mark.full
def test_predict_answers_with_what_evaluation_wrote(files, whole, tmp_path):
    open_predictor(whole, Options()).predict_file(files["data_dir"] / "dev.tsv", tmp_path / "out.tsv", lambda *_: None)
    written, predicted = (
        path.read_text().splitlines() for path in (whole / "predictions" / "dev.tsv", tmp_path / "out.tsv")
    )
    numbers = {"negative": "0", "positive": "1"}
    assert [numbers[line.split("\t")[1]] for line in predicted[1:]] == [line.split("\t")[1] for line in written[1:]]
    assert len(predicted) == 1 + DEV


@pytest.mark.full
@pytest.mark.parametrize("lowercase", [True, False])
def test_the_tokenizers_own_setting_decides_of_case_not_the_name(files, tmp_path, lowercase):
    task = Classification(("negative", "positive"), ("sentence",))
    directory = tmp_path / ("cased" if lowercase else "uncased")
    parameters = initial_values(task.parameters(MODEL), 0.2, 1)
    write_directory(directory, MODEL, task, parameters, WORDS, TokenizerSettings(lowercase))
    tuning = finetuning(files | {"checkpoint": directory})
    assert tuning.job(tmp_path / "out").dataset.tokenizer_settings == TokenizerSettings(lowercase)
    assert ("tokenizer: the checkpoint's, " + ("uncased" if lowercase else "cased")) in said_at_start(tuning)
    predictor = open_predictor(directory, Options())
    assert (predictor.predict_line("GOOD film") == predictor.predict_line("good film")) == lowercase
    assert (predictor.predict_line("GOOD film") == predictor.predict_line("zzz film")) != lowercase


@pytest.mark.full
def test_why_a_step_has_more_examples_than_usual_is_said(files, tmp_path):
    packed = Packed(340, 100, 32, "examples")
    assert packed.step_notice(job_of(files, tmp_path).recipe, 1) == ("a step of 10 rows has about 34 examples")
    assert packed.step_notice(job_of(files, tmp_path, world_size=20).recipe, 20) == (
        "a step of 20 rows has about 68 examples, more than the usual 32, because each of the 20 ranks needs a row"
    )


@pytest.mark.full
def test_a_step_has_about_32_examples_however_they_are_packed(files, tmp_path):
    packed, alone = job_of(files, tmp_path).recipe, job_of(files, tmp_path, "data.packing=false").recipe
    assert (packed.phase[0].global_batch, packed.phase[0].steps) == (10, STEPS)
    assert (alone.phase[0].global_batch, alone.phase[0].steps) == (32, EPOCHS * TRAIN // 32)


@pytest.mark.full
def test_the_dev_files_are_in_the_datas_hash_so_that_ranks_compare_them(files, tmp_path):
    other = tmp_path / "glue"
    shutil.copytree(files["data_dir"], other)
    lines = (other / "dev.tsv").read_text().splitlines()
    (other / "dev.tsv").write_text("\n".join([lines[0], *lines[:0:-1]]) + "\n")
    assert finetuning(files).job(tmp_path).dataset.hash == finetuning(files).job(tmp_path).dataset.hash
    changed = finetuning(files | {"data_dir": other}).job(tmp_path)
    assert changed.dataset.hash != finetuning(files).job(tmp_path).dataset.hash


@pytest.mark.full
def test_checkpoints_that_cannot_serve_are_refused(files, tmp_path):
    with pytest.raises(UserError, match="--checkpoint: there is none at"):
        job_of(files | {"checkpoint": tmp_path / "absent"}, tmp_path)
    without = tmp_path / "without"
    shutil.copytree(files["checkpoint"], without)
    (without / "vocab.txt").unlink()
    with pytest.raises(UserError, match=r"has no vocabulary; expected vocab\.txt"):
        job_of(files | {"checkpoint": without}, tmp_path)


@pytest.mark.full
def test_a_checkpoint_with_one_type_of_token_takes_no_pairs(files, tmp_path):
    one = write_checkpoint(tmp_path / "one", model=replace(MODEL, type_vocab_size=1))
    assert job_of(files | {"checkpoint": one}, tmp_path).recipe.model.type_vocab_size == 1
    with pytest.raises(
        UserError, match="type_vocab_size = 1, so that it cannot tell the first text and the second apart"
    ):
        Finetuning(Texts(glue_data("mnli", Files(write_mnli(tmp_path / "glue")))), one)


@pytest.mark.full
def test_a_checkpoint_without_pooler_serves_and_vocabulary_and_case_are_its_own(files, tmp_path):
    without = write_checkpoint(tmp_path / "model", Pretraining(False))
    job = job_of(files | {"checkpoint": without}, tmp_path)
    assert (job.dataset.vocabulary, job.dataset.tokenizer_settings) == (WORDS, UNCASED)
    assert job.recipe.model == MODEL


@pytest.mark.full
def test_any_number_of_labels_is_learned_predicted_and_scored_with_the_dev_sets_threshold(files, tmp_path):
    data = own_data("multilabel", write_labels(tmp_path / "files"), ("text",), "labels", OwnOptions(threshold=None))
    job = Finetuning(Texts(data), files["checkpoint"]).job(tmp_path / "run", EPOCHS, FAST)
    job.output_dir.mkdir()
    train(job, World())
    lines = [line for line in map(json.loads, (job.output_dir / "metrics.jsonl").open()) if "held_out_micro_f1" in line]
    assert lines[-1]["held_out_micro_f1"] > lines[0]["held_out_micro_f1"]
    assert metrics(job.output_dir)[-1]["label_loss"] < 0.6 < metrics(job.output_dir)[0]["label_loss"]
    config = json.loads((newest(job.output_dir) / "config.json").read_text())
    assert config["label_threshold"] == lines[-1]["held_out_threshold"] != 0.5
    theirs = AutoModelForSequenceClassification.from_pretrained(newest(job.output_dir))
    assert theirs.config.problem_type == "multi_label_classification"

    dev = data.dev[""].path
    predicted = tmp_path / "answers.csv"
    predictor = open_predictor(job.output_dir, Options(keep=None))
    predictor.predict_file(dev, predicted, lambda done, of: None)
    header = predicted.read_text().splitlines()[0]
    assert header == "index,prediction," + ",".join(f"probability_{label}" for label in LABELS) + ",text,labels"
    for written in (predicted, job.output_dir / "predictions" / "dev.tsv"):
        scores = score("multilabel", Request(written, dev_file=dev, label_column="labels"))
        for name, value in scores.items():
            assert math.isclose(value, lines[-1][f"held_out_{name}"], abs_tol=1e-3), name
        assert scores["micro_f1"] == lines[-1]["held_out_micro_f1"]
    predictor.predict_file(dev, tmp_path / "answers.jsonl", lambda done, of: None)
    answer = json.loads((tmp_path / "answers.jsonl").read_text().splitlines()[0])
    assert isinstance(answer["prediction"], list)
    strict = open_predictor(job.output_dir, Options(threshold=0.999999))
    assert strict.predict_line("good film").startswith("\tblame=0.")
    train(job, World())  # says the scores again


@pytest.mark.parametrize(
    ("words", "before", "now", "message"),
    [
        ([], 0.5, None, "--threshold dev: .*run was begun with 0.5, .*give --threshold 0.5"),
        (["--threshold", "0.30"], 0.3, None, "--threshold dev: .*run was begun with 0.30, "),
        (["--threshold=dev"], None, 0.3, "--threshold 0.3: .*run was begun with dev, "),
    ],
    ids=["usual", "fixed", "dev"],
)
def test_a_run_goes_on_with_its_threshold_alone(files, tmp_path, words, before, now, message):
    def job(threshold: float | None) -> None:
        options = OwnOptions(threshold=threshold)
        data = own_data("multilabel", files_of_labels, ("text",), "labels", options)
        Finetuning(Texts(data), files["checkpoint"]).job(tmp_path / "run", EPOCHS, FAST)

    files_of_labels = write_labels(tmp_path / "files")
    (tmp_path / "run").mkdir()
    Command(["finetune", *words], "/", str(tmp_path / "run"), None, 1).write(tmp_path / "run")
    job(before)
    with pytest.raises(UserError, match=message):
        job(now)
