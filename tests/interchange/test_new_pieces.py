"""A checkpoint with an extended vocabulary: old rows stay, and each new piece has the mean of its old pieces' rows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED, Added
from bert_horovod.corpus.reading.vocabulary import write_vocabulary
from bert_horovod.errors import UserError
from bert_horovod.interchange.huggingface import Pretrained, read_directory, write_directory
from bert_horovod.interchange.new_pieces import find_new_pieces, with_vocabulary
from bert_horovod.model.parameters import DECODER_BIAS, WORD_EMBEDDINGS
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.tasks.pretraining import Pretraining
from tests import toy_glue

OLD = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "car", "##dio", "##gram", "gram", "a", "##a", "."]
NEW = [OLD[0], "cardiogram", *OLD[2:], "##diogram", "grama", "éa"]
ORIGINS = {1: ["car", "##dio", "##gram"], 13: ["##dio", "##gram"], 14: ["gram", "##a"], 15: ["[UNK]"]}
MODEL = replace(toy_glue.MODEL, vocab_size=len(OLD))


def pretrained(vocab_size: int = len(OLD)) -> Pretrained:
    draw, model = np.random.default_rng(0), replace(MODEL, vocab_size=vocab_size)
    shapes = pretraining_shapes(model, True)
    values = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return Pretrained(model, values, OLD, UNCASED)


@pytest.mark.parametrize("vocab_size", [len(OLD), len(OLD) + 1, len(OLD) + 9])
def test_new_rows_are_means_of_old_ones_and_all_others_stay(vocab_size):
    old = pretrained(vocab_size)
    made, new = with_vocabulary(old, NEW, "it")
    assert made.model == replace(old.model, vocab_size=max(vocab_size, len(NEW)))
    assert (made.vocabulary, made.tokenizer_settings) == (NEW, UNCASED)
    assert (new.behind, new.unknown) == (3, 1)
    for name, array in made.parameters.items():
        if name not in (WORD_EMBEDDINGS, DECODER_BIAS):
            assert array is old.parameters[name]
            continue
        assert (len(array), array.dtype) == (made.model.vocab_size, np.float32)
        rows = old.parameters[name].astype(np.float64)
        for number in range(len(array)):
            if number in ORIGINS:
                mean = sum(rows[OLD.index(piece)] for piece in ORIGINS[number]) / len(ORIGINS[number])
                np.testing.assert_allclose(array[number], mean, rtol=1e-6, atol=1e-7)
            elif number < vocab_size:
                assert (array[number] == old.parameters[name][number]).all()


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (OLD[:-1], r"has nothing at id 12, where the checkpoint has '\.'"),
        ([*OLD[:6], "##dio", "car", *OLD[8:]], "has '##dio' at id 6, where the checkpoint has 'car'.*vocab --extend"),
        ([*OLD, "car"], "has 'car' twice"),
    ],
)
def test_a_vocabulary_in_another_order_is_refused(vocabulary, message):
    with pytest.raises(UserError, match=message):
        find_new_pieces(OLD, vocabulary, "it")


def test_a_token_that_the_tokenizer_looks_for_in_text_may_not_be_replaced():
    old = pretrained()
    old = old._replace(tokenizer_settings=replace(UNCASED, added=(Added("[unused0]", False),)))
    with pytest.raises(UserError, match=r"replaces '\[unused0\]'"):
        with_vocabulary(old, NEW, "it")


def test_the_command_writes_a_directory_with_the_new_vocabulary(tmp_path: Path, capsys):
    old = pretrained()
    write_directory(tmp_path / "base", MODEL, Pretraining(True), old.parameters, OLD, UNCASED)
    write_vocabulary(tmp_path / "v.txt", NEW)
    words = ["import", tmp_path / "base", tmp_path / "made", "--vocab", tmp_path / "v.txt"]
    assert dispatch(parse(["bert-horovod", *map(str, words)])) == 0
    assert (
        "new pieces  4, 1 in places of [unused...] tokens and 3 behind; each has the mean of its old pieces' "
        "embeddings; 1 of them were [UNK]\n"
    ) in capsys.readouterr().out
    made = read_directory(tmp_path / "made")
    assert made.vocabulary == NEW
    for name, array in with_vocabulary(old, NEW, "it")[0].parameters.items():
        assert (made.parameters[name] == array).all()
    write_vocabulary(tmp_path / "w.txt", OLD[::-1])
    words = ["import", tmp_path / "base", tmp_path / "other", "--vocab", tmp_path / "w.txt"]
    assert dispatch(parse(["bert-horovod", *map(str, words)])) == 2
    assert f"--vocab {tmp_path / 'w.txt'} has '.' at id 0" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


@pytest.mark.full
def test_transformers_reads_the_new_pieces(tmp_path, transformers):
    made, _ = with_vocabulary(pretrained(), NEW, "it")
    write_directory(tmp_path / "made", made.model, Pretraining(True), made.parameters, NEW, UNCASED)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "made")
    assert tokenizer.tokenize("cardiogram grama a.") == ["cardiogram", "grama", "a", "."]
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "made")
    rows = model.get_input_embeddings().weight.detach().numpy()
    assert (rows == made.parameters[WORD_EMBEDDINGS]).all()
