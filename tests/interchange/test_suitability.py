"""A checkpoint that does not suit a command is refused by name; a classifier's head is matched with labels by name."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from bert_horovod.commands.prepare import named_tokenizer
from bert_horovod.errors import DamagedData, UserError
from bert_horovod.finetuning.kinds.kinds import open_predictor
from bert_horovod.inference.masked_tokens import MaskedTokenPredictor
from bert_horovod.inference.options import Options
from bert_horovod.interchange.suitability import classifier_labels, head_rows
from bert_horovod.runs.exporting import export
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.tasks.span import Span
from bert_horovod.tasks.text_head import Classification, Multilabel, Regression
from tests.interchange.conftest import random_model
from tests.toy_glue import MODEL, WORDS, write_checkpoint
from tests.toy_squad import squad, write_squad

TASK = Classification(("no", "maybe", "yes"))
ONE_SEGMENT = dataclasses.replace(MODEL, type_vocab_size=1)
# A vocabulary with what checkpoints of others have: a token twice, an empty line, accents; three rows have no token.
OTHERS = [*WORDS, "bad", "", "é", "e", "日", "本", "##本", "fine"]
PADDED = dataclasses.replace(MODEL, vocab_size=len(OTHERS) + 3)


def change(directory: Path, name: str, **values) -> Path:
    """Change values in one of a checkpoint's JSON files; None removes a value."""
    content = json.loads((directory / name).read_text(encoding="utf-8")) | values
    content = {key: value for key, value in content.items() if value is not None}
    (directory / name).write_text(json.dumps(content), encoding="utf-8")
    return directory


@pytest.mark.parametrize(
    ("config", "labels"),
    [
        ({}, ("LABEL_0", "LABEL_1")),
        ({"num_labels": 3}, ("LABEL_0", "LABEL_1", "LABEL_2")),
        ({"id2label": {"1": "b", "0": "a"}, "problem_type": "single_label_classification"}, ("a", "b")),
        ({"id2label": {"0": "score"}, "problem_type": "regression"}, ("score",)),
    ],
)
def test_labels_are_those_of_transformers(config, labels):
    assert classifier_labels(Path("x"), config) == labels
    assert tuple(transformers.BertConfig(**config).id2label[number] for number in range(len(labels))) == labels


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"problem_type": "ranking"}, UserError, "problem_type = 'ranking' is not supported"),
        ({"problem_type": "regression"}, UserError, "problem_type = 'regression' with . outputs is not"),
        ({"id2label": {"1": "a", "2": "b"}}, DamagedData, "expected names by numbers from 0"),
        ({"id2label": {}}, DamagedData, "expected names by numbers from 0"),
        ({"id2label": ["a"]}, DamagedData, "expected names by numbers from 0"),
        ({"id2label": {"0": "a", "1": "a", "2": "b"}}, DamagedData, "expected names by numbers from 0, once each"),
    ],
)
def test_other_problems_than_labels_or_one_number_are_refused(tmp_path, config, error, message):
    with pytest.raises(error, match=message):
        classifier_labels(Path("x"), config)
    checkpoint = change(write_checkpoint(tmp_path / "classifier", TASK), "config.json", **config)
    with pytest.raises(error, match=message):
        open_predictor(find_checkpoint(checkpoint), Options())
    with pytest.raises(error, match=message):
        find_checkpoint(checkpoint).reader.contents()
    find_checkpoint(checkpoint).reader.read()  # fine-tuning may start from its encoder


def test_a_classifier_of_more_outputs_than_labels_is_refused(tmp_path):
    checkpoint = change(write_checkpoint(tmp_path / "classifier", TASK), "config.json", id2label={"0": "a", "1": "b"})
    with pytest.raises(DamagedData, match=r"config.json names 2 labels, the classifier has 3 outputs"):
        find_checkpoint(checkpoint).reader.contents()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("BertForTokenClassification", "has the label 'LABEL_0'; expected O and tags as B-PER"),
        ("BertForMultipleChoice", "is a 'BertForMultipleChoice'; expected BertForSequenceClassification or"),
    ],
)
def test_a_classifier_of_something_else_is_no_classifier_of_texts(tmp_path, kind, message):
    random_model(kind).save_pretrained(tmp_path)
    assert "BertForSequenceClassification" not in [
        kind.name for kind in find_checkpoint(tmp_path).reader.contents().architectures
    ]
    with pytest.raises(UserError, match=message):
        open_predictor(find_checkpoint(tmp_path), Options())


def test_two_texts_need_two_segment_types(tmp_path):
    classifier = write_checkpoint(tmp_path / "classifier", TASK, ONE_SEGMENT)
    predictor = open_predictor(find_checkpoint(classifier), Options())
    assert predictor.predict_line("a good film").startswith(("no", "maybe", "yes"))
    with pytest.raises(UserError, match="type_vocab_size = 1, so that it cannot tell the first text and the second"):
        predictor.predict_line("a good film\ta bad film")
    answers = write_checkpoint(tmp_path / "answers", Span(), ONE_SEGMENT)
    message = "has type_vocab_size = 1, so that it cannot tell question and context apart; expected 2"
    with pytest.raises(UserError, match=message):
        open_predictor(find_checkpoint(answers), Options())
    with pytest.raises(UserError, match=message):
        export(find_checkpoint(answers), tmp_path / "exported", "savedmodel", with_tokenizer=True)
    assert not (tmp_path / "exported").exists()
    with pytest.raises(UserError, match=message):
        squad(answers, write_squad(tmp_path / "squad", train=1, dev=1))


@pytest.mark.slow
def test_a_classifier_with_one_segment_type_is_served_without_pairs(tmp_path):
    classifier = write_checkpoint(tmp_path / "classifier", TASK, ONE_SEGMENT)
    exported = export(find_checkpoint(classifier), tmp_path / "exported", "savedmodel", with_tokenizer=True)
    assert exported.difference < 1e-5


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"strip_accents": False},
        {"tokenize_chinese_chars": False},
        {"do_lower_case": False, "added_tokens_decoder": {str(len(OTHERS)): {"content": "Bad", "special": False}}},
    ],
)
def test_predictions_are_those_of_transformers_with_its_tokenizer(tmp_path, settings):
    checkpoint = write_checkpoint(tmp_path / "classifier", TASK, PADDED, OTHERS)
    if "added_tokens_decoder" in settings:  # transformers counts different tokens
        once = [*WORDS, "é", "e", "日", "本", "##本"]
        settings = settings | {"added_tokens_decoder": {str(len(once)): {"content": "Bad"}}}
        (checkpoint / "vocab.txt").write_text("\n".join(once), encoding="utf-8")
    change(checkpoint, "tokenizer_config.json", **settings)
    texts = ["É bad e\u0301", "日本 fine", "Bad é film", "a badBad film"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(checkpoint).eval()
    with torch.no_grad():
        expected = [model(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0].numpy() for text in texts]
    predictor = open_predictor(find_checkpoint(checkpoint), Options())
    for text, shares in zip(texts, expected, strict=True):
        _, *said = predictor.predict_line(text).split("\t")
        np.testing.assert_allclose([float(word.partition("=")[2]) for word in said], shares, atol=1e-4)


def test_masked_tokens_are_never_rows_without_a_token(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "model", model=PADDED, words=OTHERS)
    (guesses,) = MaskedTokenPredictor(find_checkpoint(checkpoint)).guess(["a [MASK] film"], PADDED.vocab_size)[0]
    assert sorted(guess.token for guess in guesses) == sorted(OTHERS)


def test_prepare_takes_the_whole_tokenizer_of_a_checkpoint(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "model", model=PADDED, words=OTHERS)
    change(checkpoint, "tokenizer_config.json", strip_accents=False, tokenize_chinese_chars=False)
    _, vocabulary, settings = named_tokenizer(str(checkpoint), cased=False)
    assert (vocabulary, settings.strip_accents, settings.chinese_apart) == (OTHERS, False, False)
    peer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    (checkpoint / "vocab.txt").unlink()
    peer.save_pretrained(checkpoint)  # transformers 5 saves tokenizer.json alone
    assert not (checkpoint / "vocab.txt").exists()
    _, again, same_settings = named_tokenizer(str(checkpoint), cased=False)
    assert same_settings == settings
    assert {token: i for i, token in enumerate(again) if token} == {t: i for i, t in enumerate(OTHERS) if t} | {
        token: number for token, number in peer.get_vocab().items() if token
    }


def test_a_classifier_of_others_for_any_number_of_labels_answers_with_our_defaults(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "classifier", TASK)
    change(checkpoint, "config.json", problem_type="multi_label_classification")
    task = open_predictor(find_checkpoint(checkpoint), Options()).task
    assert task == Multilabel(TASK.labels, task.text_columns, ",", 0.5)


OURS = Classification(("contradiction", "entailment", "neutral"))
HUB = Classification(("entailment", "neutral", "contradiction"))  # the order of most models on the hub
WEIGHT, BIAS = "classifier.weight", "classifier.bias"


@pytest.mark.parametrize(
    ("theirs", "changes", "ours", "rows"),
    [
        (OURS, {}, OURS, [0, 1, 2]),
        (HUB, {}, OURS, [2, 0, 1]),
        (Classification(("a", "b", "c")), {}, OURS, None),
        (Classification(("contradiction", "entailment")), {}, OURS, None),
        (Regression(), {}, OURS, None),
        (OURS, {}, Regression(), None),
        (Regression("grade"), {}, Regression("score"), [0]),
        (HUB, {"id2label": None}, OURS, None),
        (HUB, {"id2label": {"0": "a", "2": "b", "3": "c"}}, OURS, None),
        (HUB, {"architectures": None}, OURS, None),
    ],
)
def test_rows_go_by_name(theirs, changes, ours, rows):
    assert head_rows(theirs.configuration(MODEL) | changes, ours.configuration(MODEL)) == rows


def test_names_that_transformers_does_not_write_are_those_that_it_gives():
    ours = Classification(("LABEL_1", "LABEL_0")).configuration(MODEL)
    assert head_rows({"architectures": ["BertForSequenceClassification"]}, ours) == [1, 0]
    assert head_rows({"architectures": ["BertForSequenceClassification"], "num_labels": 3}, ours) is None
