"""Exports a checkpoint: writes it to a temporary directory, checks it in a new process, then moves it into place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_horovod.batches.examples.labelled import LabelledRows, LabelledTexts, tokenised
from bert_horovod.batches.layout import SpecialIds, special_ids
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.errors import UserError
from bert_horovod.interchange.architectures import CLASSIFICATION, LABEL_ATTENTION_MODEL, SEVERAL_LABELS, Architecture
from bert_horovod.interchange.exported import ONNX_FILE, Arrays, Call, check_export
from bert_horovod.interchange.huggingface import Pretrained, write_configuration
from bert_horovod.interchange.onnx_file import quantise, require_onnx, write_onnx
from bert_horovod.interchange.saved_model import ANSWER_TOKENS, prompt_signatures, write_saved_model, write_text_model
from bert_horovod.interchange.sentence_transformers import VECTOR, vectors_of
from bert_horovod.interchange.serving_graph import Served, input_names, trained_outputs
from bert_horovod.interchange.suitability import require_vocabulary, tells_texts_apart
from bert_horovod.runs.opening import OpenCheckpoint
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.storage.writing import new_directory
from bert_horovod.tasks.text_head import ranks

_CHECKED_LENGTHS = ((12, 7, 1), (3,))  # for each of two calls, the tokens of each row; the rest of a row is padding
_WORDS = ((2, 1), (3, 2))  # numbers of words: of two first texts, and of their two second texts
_TEXT_LENGTH = 16


class Exported(NamedTuple):
    """A description of an export."""

    origin: str  # origin of the checkpoint, for people
    class_name: str  # Hugging Face's
    architecture: Architecture
    inputs: list[str]  # inputs of each signature, for people
    difference: float  # largest difference from the checkpoint, measured as for exported.TOLERANCE
    size_bytes: int


def export(
    checkpoint: OpenCheckpoint,
    output: Path,
    kind: str,
    architecture: str | None = None,
    with_tokenizer: bool = False,
    int8: Callable[[Path, int, float, str], None] | None = None,
) -> Exported:
    """Export a checkpoint as a directory: the model ("savedmodel" or "onnx"), config.json and the tokenizer's files.

    `architecture`: Hugging Face's name of a class whose parameters the checkpoint has; None: its own class.
    `with_tokenizer`: the SavedModel takes strings; see saved_model.write_text_model. `int8` makes the weights of an
    ONNX file 8 bits wide; then it is called with the directory, the bytes of the file before, and what
    onnx_file.quantise returns; what it raises leaves nothing.

    Raises UserError if the checkpoint has no vocabulary or not that architecture, or a package is missing, RunError if
    the export computes other numbers than the checkpoint: it is removed.
    """
    if kind == "onnx":
        require_onnx()
        if with_tokenizer:
            raise UserError("--with_tokenizer: an ONNX file holds no tokenizer; export a savedmodel, or leave it out")
    contents = checkpoint.reader.contents()
    known = {each.class_name(contents.model): each for each in reversed(contents.architectures)}
    chosen = contents.architectures[0] if architecture is None else known.get(architecture)
    if chosen is None:
        names = list(known)[::-1]
        raise UserError(
            f"--architecture {architecture}: {checkpoint} is {names[0]}, and has the parameters "
            f"of {' and '.join(names)} only"
        )
    pretrained = checkpoint.reader.read(chosen)
    require_vocabulary(checkpoint, pretrained.vocabulary)
    parameters = {name: pretrained.parameters[name] for name in chosen.parameters(pretrained.model)}
    served = Served(chosen, pretrained.model, parameters, tf.int64 if kind == "onnx" else tf.int32)
    signature = "tokens" if with_tokenizer else "serving_default"
    calls = _calls(chosen, pretrained, parameters, signature, served.signature[0].dtype)
    with new_directory(output) as temporary:
        if kind == "onnx":
            write_onnx(temporary, served)
        elif with_tokenizer:
            write_text_model(temporary, served, pretrained, checkpoint, checkpoint.reader.max_length)
            calls += _text_calls(chosen, pretrained, parameters)
        else:
            write_saved_model(temporary, served)
        tokenizer = pretrained.vocabulary, pretrained.tokenizer_settings, checkpoint.reader.max_length
        write_configuration(temporary, pretrained.model, chosen, *tokenizer)
        difference = check_export(temporary, calls)
        if int8:
            float_bytes = (temporary / ONNX_FILE).stat().st_size
            int8(temporary, float_bytes, *quantise(temporary, calls))
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    inputs = {call.signature: ", ".join(call.inputs) for call in calls}
    if kind != "onnx":  # which has no signatures
        inputs = {signature: f"{signature}({names})" for signature, names in inputs.items()}
    class_name = chosen.class_name(pretrained.model)
    return Exported(contents.origin, class_name, chosen, list(inputs.values()), difference, size)


def _special(pretrained: Pretrained) -> SpecialIds:
    return special_ids(pretrained.vocabulary, pretrained.tokenizer_settings)


def _calls(
    architecture: Architecture, pretrained: Pretrained, parameters: Arrays, signature: str, dtype: tf.DType
) -> list[Call]:
    """Two calls with random ids; their rows differ in number and length, and are padded."""
    random, pad = np.random.default_rng(0), _special(pretrained).pad
    calls = []
    for lengths in _CHECKED_LENGTHS:
        length = min(max(lengths), pretrained.model.max_position_embeddings)
        real = np.arange(length) < np.array(lengths)[:, None]
        rows = {
            "input_ids": np.where(real, random.integers(0, pretrained.model.vocab_size, real.shape), pad),
            "attention_mask": real,
            "token_type_ids": real & (np.arange(length) >= length // 2) & (pretrained.model.type_vocab_size > 1),
        }
        rows = {name: array.astype(np.int32) for name, array in rows.items()}
        by_token: np.ndarray | None = real
        if architecture.name == LABEL_ATTENTION_MODEL:
            rows = {name: np.stack((array, array[::-1]), 1) for name, array in rows.items()}  # two windows a document
            by_token = None
        outputs = trained_outputs(architecture, pretrained.model, parameters, rows)
        names = input_names(pretrained.model)
        inputs = {name: rows[name].astype(dtype.as_numpy_dtype) for name in names}
        calls.append(Call(signature, inputs, outputs, by_token))
    return calls


def _text_calls(architecture: Architecture, pretrained: Pretrained, parameters: Arrays) -> list[Call]:
    """Calls with texts of the vocabulary's words; expected outputs come from rows of this program's own tokenizer."""
    words = [token for token in pretrained.vocabulary if token.isalpha()] or ["a"]
    draw = np.random.default_rng(1).choice
    first, second = ([" ".join(draw(words, count)) for count in counts] for counts in _WORDS)
    if vectors := vectors_of(architecture.entries or {}):
        calls = []
        for signature, prompt in prompt_signatures(vectors).items():
            texts = [(prompt + text).lower() if vectors.lowercase else prompt + text for text in first]
            rows = _rows_of(pretrained, texts, most=vectors.max_seq_length or 512)
            expected = trained_outputs(architecture, pretrained.model, parameters, rows)[VECTOR]
            calls.append(Call(signature, {"text": np.array(first)}, {VECTOR: expected}))
        return calls
    rows = _rows_of(pretrained, first, second)
    if architecture.name == CLASSIFICATION:
        calls, inputs = [], [("serving_default", {"text": first}, _rows_of(pretrained, first))]
        if tells_texts_apart(pretrained.model, pretrained.tokenizer_settings):
            inputs.append(("pairs", {"text": first, "text_pair": second}, rows))
        for signature, names, batch in inputs:
            logits = trained_outputs(architecture, pretrained.model, parameters, batch)["logits"]
            shares = np.exp(logits - logits.max(-1, keepdims=True))
            outputs = {"probabilities": shares / shares.sum(-1, keepdims=True)}
            if architecture.problem == SEVERAL_LABELS:
                outputs = {"probabilities": 1 / (1 + np.exp(-logits))}
            elif len(architecture.labels) == 1:
                score = logits[:, 0]
                outputs = {"score": 1 / (1 + np.exp(-score)) if ranks(architecture.entries or {}) else score}
            calls.append(Call(signature, {name: np.array(texts) for name, texts in names.items()}, outputs))
        return calls
    logits = trained_outputs(architecture, pretrained.model, parameters, rows)
    starts, ends = logits["start_logits"], logits["end_logits"]
    inside = rows["token_type_ids"] * (rows["input_ids"] != _special(pretrained).sep) > 0
    best = [
        max(
            starts[i, start] + ends[i, end]
            for start in np.flatnonzero(places)
            for end in range(start, min(start + ANSWER_TOKENS, places.nonzero()[0][-1] + 1))
        )
        for i, places in enumerate(inside)
    ]
    outputs = {"score": np.array(best, np.float32), "null_score": starts[:, 0] + ends[:, 0]}
    return [Call("serving_default", {"question": np.array(first), "context": np.array(second)}, outputs)]


def _rows_of(
    pretrained: Pretrained, first: list[str], second: list[str] | None = None, most: int = _TEXT_LENGTH
) -> Arrays:
    """Model inputs for short texts or pairs of texts, made by this program's own tokenizer."""
    texts = LabelledTexts((first, second) if second else (first,), [0] * len(first))
    tokens = tokenised(texts, Tokenizer(pretrained.vocabulary, pretrained.tokenizer_settings))
    length = min(most, pretrained.model.max_position_embeddings)
    rows = LabelledRows(tokens, _special(pretrained), length, seed=0, packing=False)
    batch = rows.assemble(np.argsort(rows.members(np.arange(len(first)))[:, 0]))
    names = {"input_ids": "input_ids", "attention_mask": "sequence_ids", "token_type_ids": "token_type_ids"}
    return {name: batch[source] for name, source in names.items()}
