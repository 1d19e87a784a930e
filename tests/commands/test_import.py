"""The import command, and that every other command takes a checkpoint of Google's as it is."""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.corpus.reading.tokenizer_settings import CASED
from bert_horovod.corpus.store import open_store
from bert_horovod.interchange.huggingface import read_directory
from tests.commands.conftest import command
from tests.google_checkpoints import (
    ALBERT_CONFIG,
    ALBERT_PRETRAINING,
    ENCODER,
    PRETRAINING,
    write_checkpoint,
)
from tests.interchange.conftest import VOCABULARY, random_model
from tests.toy_glue import write_glue
from tests.toy_squad import write_squad


@pytest.fixture
def google(tmp_path) -> Path:
    """A pre-training checkpoint of Google's, with the optimizer's variables."""
    write_checkpoint(tmp_path / "uncased", adam=True)
    return tmp_path / "uncased"


def test_a_checkpoint_of_googles_becomes_a_directory(google, tmp_path, capsys):
    directory = tmp_path / "new" / "made"
    assert command("import", google, directory) == 0
    assert capsys.readouterr().out == (
        f"read        {google / 'bert_model.ckpt'}, a TF1 checkpoint of Google's\n"
        "model       2 layers, 12 wide, 3 attention heads, 24 positions, gelu\n"
        "heads       pooler, masked tokens, sentence pair\n"
        f"left out    {2 * len(PRETRAINING) + 1} variables of the optimizer\n"
        f"tokenizer   {len(VOCABULARY)} tokens, cased (as 1 tokens of its vocabulary have capitals)\n"
        f"written     {directory}, BertForPreTraining of transformers\n"
    )
    names = {"config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"}
    assert {path.name for path in directory.iterdir()} == names
    pretrained = read_directory(directory)
    assert (pretrained.vocabulary, pretrained.tokenizer_settings, pretrained.pairs) == (VOCABULARY, CASED, True)


def test_an_alberts_summary_tells_of_shared_layers_and_narrow_embeddings(tmp_path, capsys):
    write_checkpoint(tmp_path / "chinese", ALBERT_PRETRAINING, name="model.ckpt-best", config=ALBERT_CONFIG)
    assert command("import", tmp_path / "chinese", tmp_path / "made") == 0
    output = capsys.readouterr().out
    assert "4 layers with the parameters of 2, 12 wide (embeddings 8), 3 attention heads, 24 positions, gelu_" in output
    assert f"written     {tmp_path / 'made'}, AlbertForPreTraining of transformers" in output
    assert read_directory(tmp_path / "made").model.shared_layers == 2


@pytest.mark.full
def test_a_directory_of_pytorchs_file_becomes_one_of_safetensors(tmp_path, torch):
    directory = tmp_path / "bert-cased"
    model = random_model("BertForSequenceClassification", num_labels=2, id2label={0: "no", 1: "yes"})
    model.save_pretrained(directory)
    (directory / "model.safetensors").unlink()
    torch.save(model.state_dict() | {"extra.weight": torch.zeros(2)}, directory / "pytorch_model.bin")
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    assert command("import", directory, tmp_path / "made", "--cased") == 0
    assert read_directory(tmp_path / "made").tokenizer_settings.lowercase is False
    again = type(model).from_pretrained(tmp_path / "made").state_dict()
    assert again.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(again[name].numpy(), value.numpy(), err_msg=name)
    assert type(model).from_pretrained(tmp_path / "made").config.id2label == {0: "no", 1: "yes"}


def test_the_summary_names_what_was_left_out(tmp_path, capsys):
    others = {name: [2] for name in ("a/b", "c", "d", "e", "f/g")}
    write_checkpoint(tmp_path / "uncased", ENCODER | others)
    assert command("import", tmp_path / "uncased", tmp_path / "made") == 0
    assert "left out    a/b, c, d, e and 1 more\n" in capsys.readouterr().out


def test_nothing_is_left_of_a_checkpoint_that_cannot_be_read(google, tmp_path, capsys):
    data = google / "bert_model.ckpt.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:2000])
    assert command("import", google, tmp_path / "made") == 1
    assert "is damaged at" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["uncased"]


def prepare(checkpoint: Path, directory: Path, *more: object) -> int:
    """Make a store of toy text with a checkpoint's vocabulary."""
    (directory / "text").mkdir(exist_ok=True)
    for number in range(30):
        text = "The cat sat on a mat. " * (2 + number % 5) + "A cat sat. " * number
        (directory / "text" / f"{number:02d}.txt").write_text(text)
    words = ("--input", directory / "text", "--output_dir", directory / "store", "--held_out", 0.5, "--workers", 1)
    return command("prepare", *words, "--vocab", checkpoint, *more)


def test_prepare_fill_mask_and_evaluate_take_it_as_it_is(google, tmp_path, capsys):
    store = tmp_path / "store"
    (google / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    assert prepare(google, tmp_path, "--cased") == 2
    assert "which lower-cases (as its tokenizer says); leave --cased out" in capsys.readouterr().err
    assert prepare(google / "bert_model.ckpt", tmp_path) == 0
    assert open_store(store).manifest["vocabulary"]["lowercase"] is True
    assert open_store(store).vocabulary == VOCABULARY

    assert command("fill-mask", "--checkpoint", google, "The [MASK] sat.") == 0
    capsys.readouterr()
    words = ("--data_dir", store, "--sequence_length", 16, "--rows", 4, "--micro_batch", 2)
    assert command("evaluate", "--checkpoint", google, *words, "--json") == 0
    evaluation = json.loads(capsys.readouterr().out)
    assert (evaluation["rows"], evaluation["sequence_length_from"]) == (4, "flag")


@pytest.mark.slow
def test_pretrain_finetune_and_export_take_it_as_it_is(google, tmp_path, capsys):
    assert prepare(google, tmp_path) == 0
    recipe, store = tmp_path / "recipe.toml", tmp_path / "store"
    recipe.write_text(
        f"[model]\nvocab_size = {len(VOCABULARY)}\nhidden_size = 12\nnum_hidden_layers = 2\nnum_attention_heads = 3\n"
        "intermediate_size = 20\nmax_position_embeddings = 24\n"
        "[[phase]]\nsequence_length = 16\nsteps = 1\nglobal_batch = 2\nlearning_rate = 1e-4\n"
    )
    settings = ("xla='off'", "trackers=[]", "micro_batch=2", "threads=1")
    fast = [word for setting in settings for word in ("--set", f"execution.{setting}")]
    start = ("--recipe", recipe, "--data_dir", store, "--init_checkpoint", google)
    assert command("pretrain", *start, "--output_dir", tmp_path / "run", *fast) == 0
    assert f"starting from {google}" in capsys.readouterr().out

    glue = write_glue(tmp_path / "glue", 8, 4)
    start = ("--task", "sst2", "--data_dir", glue, "--checkpoint", google, "--max_steps", 1)
    assert command("finetune", *start, "--output_dir", tmp_path / "tuned", *fast) == 0
    [checkpoint] = (tmp_path / "tuned" / "checkpoints").iterdir()
    assert read_directory(checkpoint).vocabulary == VOCABULARY

    write_squad(tmp_path / "squad", train=8, dev=4)
    start = ("--task", "squad", "--data_dir", tmp_path / "squad", "--checkpoint", google, "--max_steps", 1)
    assert command("finetune", *start, "--output_dir", tmp_path / "answers", *fast) == 0
    assert "the head starts afresh: the checkpoint is a BertForPreTraining without one for" in capsys.readouterr().out

    words = ("--format", "savedmodel", "--output", tmp_path / "exported")
    assert command("export", "--checkpoint", google / "bert_model.ckpt", *words) == 0
    assert "exported    BertForPreTraining, pooler, masked tokens, sentence pair" in capsys.readouterr().out


def test_prepare_takes_a_checkpoints_casing_and_asks_for_a_vocabulary(tmp_path, capsys):
    write_checkpoint(tmp_path / "cased")
    (tmp_path / "text.txt").write_text("The Cat sat.")
    words = ("--input", tmp_path / "text.txt", "--workers", 1, "--vocab", tmp_path / "cased")
    assert command("prepare", *words, "--output_dir", tmp_path / "store") == 0
    assert open_store(tmp_path / "store").manifest["vocabulary"]["lowercase"] is False
    (tmp_path / "cased" / "vocab.txt").unlink()
    assert command("prepare", *words, "--output_dir", tmp_path / "other") == 2
    assert "has no vocabulary; expected vocab.txt or tokenizer.json beside its configuration" in capsys.readouterr().err
    (tmp_path / "cased").rename(tmp_path / "tiny")
    (tmp_path / "tiny" / "vocab.txt").write_text("\n".join([*VOCABULARY[:5], *map(str, range(len(VOCABULARY) - 5))]))
    assert command("prepare", *words[:-1], tmp_path / "tiny", "--output_dir", tmp_path / "other") == 2
    assert "nothing tells whether text is to be lower-cased for it; bert-horovod import" in capsys.readouterr().err
