"""What a ModernBERT's checkpoint is for: the commands, as they are typed, and transformers' answers to the same."""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.interchange.architectures import ANSWERS, CLASSIFICATION, MASKED_TOKENS, Architecture
from bert_horovod.interchange.exported import load_export
from bert_horovod.model.architectures.modernbert_settings import ModernBertModel
from tests.commands.conftest import command
from tests.commands.test_predict import assert_guesses_of_transformers
from tests.toy_glue import WORDS, write_checkpoint, write_glue
from tests.toy_runs import newest
from tests.toys import TOY_MODEL

SIZES = TOY_MODEL | {"vocab_size": len(WORDS), "num_hidden_layers": 5, "max_position_embeddings": 512}
MODEL = ModernBertModel(**SIZES, local_attention=8)
FAST = ("--set", "execution.xla='off'", "--set", "execution.threads=1", "--set", "phase.0.sequence_length=64")
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("modernbert") / "c", Architecture(MASKED_TOKENS, False), MODEL)


def test_fill_mask_guesses_as_transformers_does(checkpoint):
    assert_guesses_of_transformers(checkpoint, f"{WORDS[9]} [MASK] {WORDS[10]} {WORDS[11]}", WORDS)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (MASKED_TOKENS, "onnx"),
        (ANSWERS, "savedmodel"),
        pytest.param(CLASSIFICATION, "onnx", marks=pytest.mark.slow),  # a savedmodel with its tokenizer below
        pytest.param(MASKED_TOKENS, "savedmodel", marks=pytest.mark.slow),
        pytest.param(ANSWERS, "onnx", marks=pytest.mark.slow),
    ],
)
def test_exports_compute_the_checkpoint(tmp_path, capsys, name, kind):
    if kind == "onnx":
        pytest.importorskip("tf2onnx")
        pytest.importorskip("onnxruntime")
    architecture = Architecture(name, False, ("no", "yes") if name == CLASSIFICATION else ())
    made = write_checkpoint(tmp_path / "checkpoint", architecture, MODEL)
    assert command("export", "--checkpoint", made, "--output", tmp_path / "made", "--format", kind) == 0
    assert f"exported    {name.replace('Bert', 'ModernBert')}, " in capsys.readouterr().out
    ids = np.array([[2, 5, 7, 9, 10, 11, 12, 13, 3], [2, 6, 3, 0, 0, 0, 0, 0, 0]])
    dtype = np.int64 if kind == "onnx" else np.int32
    inputs = {"input_ids": ids.astype(dtype), "attention_mask": (ids > 0).astype(dtype)}
    outputs = load_export(tmp_path / "made")("serving_default", inputs)
    assert all(np.isfinite(output).all() for output in outputs.values())
    assert {"config.json", "tokenizer.json"} <= {path.name for path in (tmp_path / "made").iterdir()}


def test_a_classifier_with_its_tokenizer_takes_texts_and_pairs(tmp_path, capsys):
    made = write_checkpoint(tmp_path / "checkpoint", Architecture(CLASSIFICATION, False, ("no", "yes")), MODEL)
    words = ("--checkpoint", made, "--output", tmp_path / "made", "--format", "savedmodel", "--with_tokenizer")
    assert command("export", *words) == 0
    assert "serving_default(text), pairs(text, text_pair)" in capsys.readouterr().out


def test_evaluate_reads_rows_longer_than_a_berts(tmp_path, checkpoint, capsys):
    text, store = tmp_path / "text.txt", tmp_path / "store"
    lines = np.random.default_rng(0).choice(WORDS[9:], (400, 12))
    text.write_text("\n".join(" ".join(line) + "." for line in lines))
    words = ("--input", text, "--vocab", checkpoint, "--output_dir", store, "--held_out", 0.5)
    assert command("prepare", *words) == 0
    capsys.readouterr()
    words = ("--checkpoint", checkpoint, "--data_dir", store, "--json")
    assert command("evaluate", *words, "--sequence_length", 512, "--rows", 4, "--micro_batch", 2) == 0
    evaluation = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (evaluation["sequence_length"], evaluation["pair"]) == (512, "none")
    assert np.isfinite(evaluation["held_out_mlm_loss"])


def test_a_classifier_is_learned_and_transformers_gives_its_logits(tmp_path, checkpoint):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    data = write_glue(tmp_path / "glue", 64, 16)
    run, answers = tmp_path / "out", tmp_path / "o.tsv"
    words = ("--task", "sst2", "--data_dir", data, "--checkpoint", checkpoint, "--output_dir", run, *FAST)
    assert command("finetune", *words, "--set", "phase.0.learning_rate=3e-3", "--epochs", 2) == 0
    assert command("predict", "--checkpoint", run, "--input", data / "dev.tsv", "--output", answers) == 0
    header, *lines = [line.split("\t") for line in answers.read_text().splitlines()]
    last = max(place for place, name in enumerate(header) if name.startswith("probability_"))
    shares = [float(line[last]) for line in lines]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(newest(run)).eval()
    assert type(model).__name__ == "ModernBertForSequenceClassification"
    texts = [line.split("\t")[0] for line in (data / "dev.tsv").read_text().splitlines()[1:]]
    encoded = transformers.AutoTokenizer.from_pretrained(newest(run))(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        expected = model(**encoded).logits.softmax(-1)[:, 1].numpy()
    np.testing.assert_allclose(shares, expected, atol=2e-4)
