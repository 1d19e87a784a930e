"""Two texts for RoBERTa and XLM-R: rows and outputs are transformers', alone, packed and in windows."""

from pathlib import Path

import numpy as np
import pytest

from bert_horovod.batches.examples.labelled import LabelledRows, LabelledTexts, tokenised, truncated_longest_first
from bert_horovod.batches.layout import special_ids
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.inference.options import Options
from bert_horovod.inference.span_predictor import SpanPredictor
from bert_horovod.inference.text_predictor import TextPredictor
from bert_horovod.interchange.tokenizer_files import read_tokenizer
from bert_horovod.runs.opening import find_checkpoint
from tests.toy_tokenizers import TEXT, write_kind

KINDS = {"robertas": "Roberta", "xlm_robertas": "XLMRoberta"}
FIRST = [TEXT[0], "The dog", TEXT[1], "a"]
SECOND = ["The cat sat.", TEXT[1], TEXT[2], "sat"]


@pytest.fixture(scope="module", params=KINDS)
def directory(request, tmp_path_factory, torch, transformers) -> Path:
    """A classifier with random parameters, its tokenizer beside."""
    path = write_kind(tmp_path_factory.mktemp(request.param) / "model", request.param)
    size = len(transformers.AutoTokenizer.from_pretrained(path))
    torch.manual_seed(0)
    config = getattr(transformers, f"{KINDS[request.param]}Config")(
        vocab_size=size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=130, type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5,
    )  # fmt: skip
    for name in ("SequenceClassification", "QuestionAnswering"):
        model = getattr(transformers, f"{KINDS[request.param]}For{name}")(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        target = path if name == "SequenceClassification" else write_kind(path.with_name("spans"), request.param)
        model.save_pretrained(target)
    return path


def rows_of(directory: Path, length: int) -> LabelledRows:
    found = read_tokenizer(directory, None)
    tokens = tokenised(LabelledTexts((FIRST, SECOND), [0] * 4), Tokenizer(found.vocabulary, found.settings))
    return LabelledRows(
        tokens, special_ids(found.vocabulary, found.settings), length, 0, False, truncated_longest_first
    )


@pytest.mark.parametrize("length", [128, 24])
def test_rows_are_those_of_transformers(directory, transformers, length):
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    rows = rows_of(directory, length)
    batch = rows.assemble(np.arange(rows.count))
    by_item = np.argsort(rows.places()[0])  # rows to items
    for row, item in enumerate(by_item):
        expected = theirs(FIRST[item], SECOND[item], truncation="longest_first", max_length=length)["input_ids"]
        count = rows.lengths[item]
        ids = batch["input_ids"][row, :count].tolist()
        assert ids == expected
        assert batch["position_ids"][row, :count].tolist() == list(range(count))
        assert not batch["token_type_ids"][row].any()


@pytest.mark.full
@pytest.mark.parametrize("packing", [False, True])
def test_the_logits_of_pairs_are_transformers(directory, torch, transformers, packing):
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(directory).eval()
    with torch.no_grad():
        inputs = tokenizer(FIRST, SECOND, padding=True, return_tensors="pt")
        expected = model(**inputs).logits.numpy()
    predictor = TextPredictor(find_checkpoint(directory), Options(sequence_length=128))
    np.testing.assert_allclose(predictor.logits((FIRST, SECOND), packing), expected, atol=1e-4)


@pytest.mark.full
def test_an_answer_is_the_best_of_transformers_logits_in_the_context(directory, torch, transformers):
    spans = directory.with_name("spans")
    question, context = "The dog sat?", TEXT[1]
    predictor = SpanPredictor(find_checkpoint(spans), Options(sequence_length=128))
    text, _, place = predictor.predict_line(f"{question}\t{context}").split("\t")
    begin, end = map(int, place.removeprefix("characters=").split("-"))
    assert context[begin:end] == text
    tokenizer = transformers.AutoTokenizer.from_pretrained(spans)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(spans).eval()
    inputs = tokenizer(question, context, return_offsets_mapping=True, return_tensors="pt")
    offsets = inputs.pop("offset_mapping")[0].numpy()
    with torch.no_grad():
        start, end_logits = (each[0].numpy().copy() for each in model(**inputs).to_tuple()[:2])
    inside = np.array([each == 1 for each in inputs.sequence_ids(0)])
    best = max(
        (start[i] + end_logits[j], i, j) for i in np.flatnonzero(inside) for j in range(i, min(i + 30, len(inside) - 1))
    )
    assert (begin, end) == (offsets[best[1]][0], offsets[best[2]][1])
