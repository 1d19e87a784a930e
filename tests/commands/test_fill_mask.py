"""The fill-mask command, as it is typed."""

import os

import numpy as np
import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
from bert_horovod.inference.masked_tokens import MaskedTokenPredictor
from bert_horovod.interchange.huggingface import write_directory
from bert_horovod.model.parameters import initial_values
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.tasks.pretraining import Pretraining
from tests.commands.conftest import MODEL, WORDS


def command(checkpoint, *words):
    return dispatch(parse(["bert-horovod", "fill-mask", "--checkpoint", str(checkpoint), *words]))


def test_the_likeliest_word_comes_first(toys, capsys):
    parameters = initial_values(pretraining_shapes(MODEL, True), MODEL.initializer_range, 0)
    parameters["cls.predictions.bias"][[WORDS.index("cat"), WORDS.index("dog")]] = 12.0, 11.0
    write_directory(toys.checkpoint, MODEL, Pretraining(True), parameters, WORDS, UNCASED)
    assert command(toys.checkpoint, "The [MASK] sat.", "A [MASK] [MASK]", "--top", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [lines[0], lines[2]] == ["The [MASK] sat.", "A [MASK] [MASK]"]
    guesses = [lines[i].split() for i in (1, 3, 4)]
    assert len(lines) == 5
    assert all((words[0], words[2]) == ("cat", "dog") for words in guesses)
    assert all(float(words[1].rstrip("%")) == pytest.approx(73, abs=2) for words in guesses)


def test_probabilities_are_those_of_transformers(toys, monkeypatch):
    monkeypatch.setenv("USE_TF", "0")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    text = "The [MASK] sat on\na [MASK]."
    tokenizer = transformers.BertTokenizer.from_pretrained(toys.checkpoint)
    model = transformers.BertForMaskedLM.from_pretrained(toys.checkpoint).eval()
    encoded = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        probabilities = model(**encoded).logits.softmax(-1)[0].numpy()
    expected = probabilities[(encoded["input_ids"][0] == tokenizer.mask_token_id).numpy()]
    [positions] = MaskedTokenPredictor(toys.checkpoint).guess([text], len(WORDS) + 5)
    for guesses, row in zip(positions, expected, strict=True):
        by_word = {guess.token: guess.probability for guess in guesses}
        np.testing.assert_allclose([by_word[word] for word in WORDS], row, rtol=1e-4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("The cat sat.",), "no [MASK] in the text 'The cat sat.'"),
        (("[MASK] sat", "The [mask] sat."), "no [MASK] in the text 'The [mask] sat.'"),
        (("[MASK] " + "a cat " * 15,), "a text has 33 tokens, [CLS] and [SEP] included, the model at most 32"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(toys, capsys, words, message):
    assert command(toys.checkpoint, *words) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert not captured.out


def test_as_many_tokens_as_there_are_positions_are_accepted(toys):
    assert command(toys.checkpoint, "[MASK]" + " a cat" * 14 + " sat") == 0


def test_bytes_that_are_no_text_are_left_out(toys, capsys):
    assert command(toys.checkpoint, os.fsdecode(b"The \xff [MASK]"), "The [MASK]") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "The \ufffd [MASK]"
    assert lines[1] == lines[3]


def test_a_checkpoint_without_vocabulary_is_refused(toys, capsys):
    (toys.checkpoint / "vocab.txt").unlink()
    assert command(toys.checkpoint, "The [MASK] sat.") == 2
    assert "has no vocabulary; expected vocab.txt" in capsys.readouterr().err
