"""Reads and writes Hugging Face directories: config.json, model.safetensors, vocab.txt and so on.

The program itself uses the parameter names and layout of Hugging Face's BERT, so nothing is transposed on writing, and
only other architectures are renamed (model/architectures/). Their directories get a WordPiece vocabulary too:
tokenizer_config.json names BertTokenizer, which AutoTokenizer then uses, for an ALBERT instead of AlbertTokenizer
(SentencePiece).
"""

from __future__ import annotations

import dataclasses
import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bert_horovod.batches.layout import require_padding
from bert_horovod.corpus.reading.tokenizer_settings import JsonTokenizer, TokenizerSettings, token_ids
from bert_horovod.errors import DamagedData, UserError
from bert_horovod.interchange.any_tokenizer import ROLES, general_config
from bert_horovod.interchange.architectures import (
    ANSWER_KEYS,
    ANSWERS,
    ENCODER,
    LABEL_ATTENTION_MODEL,
    LABEL_SEPARATOR,
    LABEL_THRESHOLD,
    LABEL_WINDOWS,
    LABELLED,
    SEVERAL_LABELS,
    TAGS,
    WORDS_AFTER_BLANKS,
    Architecture,
    Contents,
    whole_heads,
)
from bert_horovod.interchange.safetensors_file import WEIGHTS_FILE, as_float32, map_weights, weight_files, write_file
from bert_horovod.interchange.sentence_transformers import (
    length_of_texts,
    vector_files,
    vectors_of,
    with_activation,
    with_vectors,
)
from bert_horovod.interchange.suitability import (
    class_of_classifier,
    classifier_labels,
    head_rows,
    named_class,
    words_after_blanks,
)
from bert_horovod.interchange.tokenizer_classes import BERT_TOKENS
from bert_horovod.interchange.tokenizer_files import TokenizerFound, read_json_object, read_tokenizer, tokenizer_config
from bert_horovod.interchange.tokenizer_json import tokenizer_json
from bert_horovod.model.architectures.base import Family
from bert_horovod.model.architectures.families import MODELS, by_model_type, family_of, name_of_bert, names_of_heads
from bert_horovod.model.parameters import (
    BERT,
    CLASSIFIER,
    CROSS_ENCODER,
    DECODER_BIAS,
    DECODER_BIAS_COPY,
    DECODER_WEIGHT_COPY,
    LABEL_ATTENTION,
    MORE_CLASSIFIERS,
    SENTENCE_VECTORS,
    WORD_EMBEDDINGS,
    Shapes,
)
from bert_horovod.model.shapes import encoder_shapes, pretraining_shapes
from bert_horovod.recipe import sections
from bert_horovod.recipe.checking import check_model
from bert_horovod.recipe.fields import OneOf, section_from_table
from bert_horovod.recipe.settings import Objective
from bert_horovod.runtime.lasting_log import warn_once
from bert_horovod.storage.reading import shown
from bert_horovod.storage.writing import sync

if TYPE_CHECKING:
    from bert_horovod.tasks.base import Task


class Pretrained(NamedTuple):
    """The content of a checkpoint of any format."""

    model: sections.Model
    parameters: dict[str, np.ndarray]  # float32, [out, in]; the whole encoder, and heads and pooler if present
    vocabulary: list[str] | None  # tokens by id; None if the directory has none
    tokenizer_settings: TokenizerSettings

    @property
    def pairs(self) -> bool:
        """Whether the checkpoint has the whole pooler and the whole sentence-pair head."""
        return pretraining_shapes(self.model, True).keys() - pretraining_shapes(self.model, False).keys() <= set(
            self.parameters
        )


class HuggingFace:
    """Reads a Hugging Face directory: what its files say once, and when it is asked for; raises ReportedError."""

    def __init__(self, directory: Path) -> None:
        self.place = directory

    @cached_property
    def config(self) -> dict[str, Any]:
        """The content of config.json."""
        return read_config(self.place)

    @cached_property
    def model(self) -> sections.Model:
        return read_model(self.place / "config.json", self.config)

    @cached_property
    def configuration(self) -> dict[str, Any]:
        """All that the directory says of itself: config.json with heads and labels, and the files of vectors."""
        return with_vectors(self.place, with_activation(self.place, self.config))

    @cached_property
    def tokenizer(self) -> TokenizerFound:
        return read_tokenizer(self.place, self.model.vocab_size, of_model=self.config)

    @cached_property
    def max_length(self) -> int | None:
        """Tokens of a row at most, as the files say that CrossEncoder and transformers' pipelines follow."""
        length = length_of_texts(self.place)
        return length if type(length) is int and length > 0 else None

    def contents(self) -> Contents:
        model, shapes, architectures = describe_directory(self.place, self)
        return Contents(f"{self.place}, a Hugging Face directory", model, shapes, architectures, [])

    def read(self, task: Task | Architecture | None = None, lowercase: bool | None = None) -> Pretrained:
        """The checkpoint with the heads of pre-training and of `task`, if it has them; checks no hashes."""
        pretrained = read_directory(self.place, task, self)
        return pretrained._replace(tokenizer_settings=pretrained.tokenizer_settings.cased_as(lowercase))

    def weights(self) -> list[Path]:
        return weight_files(self.place)


def write_directory(
    directory: Path,
    model: sections.Model,
    task: Task | Architecture,
    parameters: dict[str, np.ndarray],
    vocabulary: list[str],
    settings: TokenizerSettings,
    max_length: int | None = None,
) -> str:
    """Write a directory that `AutoModel.from_pretrained` and `AutoTokenizer.from_pretrained` load.

    Every file is synced to disk. To make the directory appear at once, write to a temporary directory and rename it.
    The task decides Hugging Face's class; `parameters` are exactly its own, saved as float32. `max_length`: tokens of a
    row, at most, for programs that cut texts; None: the model's positions. Returns the SHA-256 of model.safetensors, in
    hexadecimal. Raises ValueError if parameters or vocabulary are not those of the model,
    OSError.
    """
    _check_parameters(parameters, task.parameters(model))
    (kind,) = task.configuration(model)["architectures"]
    heads, name_in_file = names_of_heads(model, name_of_bert(kind)), family_of(model).name_in_file
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    write_configuration(directory, model, task, vocabulary, settings, max_length)
    in_file = {heads.get(name) or name_in_file(name): array for name, array in parameters.items()}
    digest = write_file(directory / WEIGHTS_FILE, in_file)
    sync(directory)
    return digest


def write_configuration(
    directory: Path,
    model: sections.Model,
    task: Task | Architecture,
    vocabulary: list[str],
    settings: TokenizerSettings,
    max_length: int | None = None,
) -> None:
    """Write config.json and the tokenizer's files; arguments and errors as in write_directory."""
    _check_vocabulary(vocabulary, model.vocab_size, settings)
    of_task = task.configuration(model)
    config = _hugging_face_config(model, vocabulary, settings) | of_task
    if settings.joint and [name_of_bert(name) for name in of_task["architectures"]] == [TAGS]:
        config.setdefault(WORDS_AFTER_BLANKS, True)
    for path, text in {"config.json": _json(config), **vector_files(model, of_task)}.items():
        (directory / path).parent.mkdir(exist_ok=True)
        _write_text(directory / path, text)
    segments, positions = family_of(model).segments, model.max_position_embeddings
    max_length = min(max_length or positions, positions)
    if isinstance(settings, JsonTokenizer):
        tokenizer, text = general_config(settings, max_length), settings.text
    else:
        tokenizer = tokenizer_config(settings, vocabulary, max_length, segments)
        _write_text(directory / "vocab.txt", "".join(f"{token}\n" for token in vocabulary))
        # AutoTokenizer reads tokenizer.json for a ModernBERT, whatever tokenizer_class says.
        text = "" if segments else _json(tokenizer_json(settings, vocabulary, BERT_TOKENS.values()))
    if text:
        _write_text(directory / "tokenizer.json", text)
    _write_text(directory / "tokenizer_config.json", _json(tokenizer))


def read_directory(
    directory: Path, task: Task | Architecture | None = None, files: HuggingFace | None = None
) -> Pretrained:
    """Read a Hugging Face directory, with the heads of pre-training and of `task`, if it has them.

    It may be of BertModel, BertForMaskedLM, BertForPreTraining or another task's model. Tensors of other heads are left
    out, and so is a decoder that is tied to the word embeddings. A classifier with the task's labels in another order
    is reordered; a classifier with other labels is left out. `files`: of what has been read already. Raises UserError
    if it is none of these, or not supported, a file is missing, or its vocabulary does not fit, DamagedData for a
    damaged file or a wrong tensor.
    """
    files = files or HuggingFace(Path(directory))
    directory, model = files.place, files.model
    mapped, name_in_file = _map_parameters(files), family_of(model).name_in_file
    shapes = pretraining_shapes(model, pairs=True) | (task.parameters(model) if task else {})
    labels = head_rows(files.config, task.configuration(model)) if task else None
    copies = {DECODER_WEIGHT_COPY: shapes[WORD_EMBEDDINGS], DECODER_BIAS_COPY: shapes[DECODER_BIAS]}
    tensors = {}
    for name, array in mapped.items():
        if name.startswith((f"{CLASSIFIER}.", LABEL_ATTENTION)) and name in shapes:
            if labels is not None:
                their_shape = (len(labels), *shapes[name][1:])
                tensors[name] = np.ascontiguousarray(_checked_tensor(directory, name, array, their_shape)[labels])
        elif name.startswith(MORE_CLASSIFIERS) and array.shape != shapes.get(name):
            continue  # a head of a training with another number of heads
        elif name in shapes or name in copies:
            tensors[name] = _checked_tensor(directory, name, array, (shapes | copies)[name])
        elif name.startswith(BERT):
            raise UserError(
                f"{directory}: {name_in_file(name)[:200]} is no part of the encoder that config.json describes "
                f"({model.layer_groups} layers{' that have parameters' if model.shared_layers else ''})"
            )
    _tie_decoder(directory, tensors)
    missing = [name for name in encoder_shapes(model, pooler=False) if name not in tensors]
    if missing:
        raise DamagedData(
            f"{directory}: {len(missing)} encoder tensors are missing, the first is {name_in_file(missing[0])}"
        )
    tokenizer = files.tokenizer
    if tokenizer.vocabulary is not None:
        require_padding(model, tokenizer.vocabulary, tokenizer.settings, str(directory))
    return Pretrained(
        model=model,
        parameters={name: tensors[name] for name in shapes if name in tensors},
        vocabulary=tokenizer.vocabulary,
        tokenizer_settings=tokenizer.settings,
    )


def describe_directory(
    directory: Path, files: HuggingFace | None = None
) -> tuple[sections.Model, dict[str, tuple[int, ...]], list[Architecture]]:
    """The sizes, shapes and classes, the named one first, of a directory, without values; raises as read_directory."""
    files = files or HuggingFace(Path(directory))
    directory, model, config = files.place, files.model, files.configuration
    shapes = {name: array.shape for name, array in _map_parameters(files).items()}
    if DECODER_BIAS_COPY in shapes:
        shapes.setdefault(DECODER_BIAS, shapes[DECODER_BIAS_COPY])
    named, architectures = named_class(config), []
    for architecture in whole_heads(model, shapes, class_of_classifier(config)):
        windows = config.get(LABEL_WINDOWS) if architecture.name == LABEL_ATTENTION_MODEL else 0
        if architecture.name in LABELLED or windows:
            labels, count = classifier_labels(directory, config), len(architecture.labels)
            if len(labels) != count:
                raise DamagedData(
                    f"{directory}: config.json names {len(labels)} labels, the classifier has {count} outputs"
                )
            architecture = dataclasses.replace(
                architecture,
                labels=labels,
                problem=SEVERAL_LABELS if config.get("problem_type") == SEVERAL_LABELS else None,
                threshold=config.get(LABEL_THRESHOLD),
                windows=windows,
                blanks=architecture.name != TAGS or words_after_blanks(config),
                entries=_entries(config, CROSS_ENCODER, LABEL_SEPARATOR, "text_columns"),
            )
        elif architecture.name == ANSWERS:
            architecture = dataclasses.replace(architecture, entries=_entries(config, *ANSWER_KEYS))
        elif architecture.name == ENCODER and vectors_of(config):  # then its own class, whatever heads there are
            entries = _entries(config, SENTENCE_VECTORS, "text_columns")
            architecture, named = dataclasses.replace(architecture, entries=entries), architecture.name
        architectures.append(architecture)
    architectures.sort(key=lambda architecture: name_of_bert(architecture.class_name(model)) != named)  # a stable sort
    return model, shapes, architectures


def _entries(config: dict[str, Any], *keys: str) -> dict[str, Any] | None:
    """Those of a configuration's entries, without which `predict` would answer otherwise."""
    return {key: config[key] for key in keys if key in config} or None


def _map_parameters(files: HuggingFace) -> dict[str, np.ndarray]:
    """All tensors of the weight files, memory-mapped, by the program's parameter names."""
    family, kind = family_of(files.model), named_class(files.config)
    heads = {theirs: ours for ours, theirs in names_of_heads(files.model, kind or "").items()}
    return map_weights(files.place, lambda name: heads.get(name) or family.name_of_parameter(name))


def _hugging_face_config(model: sections.Model, vocabulary: list[str], settings: TokenizerSettings) -> dict[str, Any]:
    family, ids = family_of(model), token_ids(vocabulary)
    names = {ROLES[role]: token for role, token in settings.special_tokens._asdict().items()}
    special = {key: ids[names[name]] for key, name in family.token_ids.items()}
    # Without it, transformers takes the default of the class for the id of padding.
    padding = {"pad_token_id": ids[names["pad_token"]]} if isinstance(settings, JsonTokenizer) else {}
    return family.configuration(model) | padding | special


def read_config(directory: Path) -> dict[str, Any]:
    """The content of config.json; raises ReportedError."""
    if not (directory / "config.json").is_file():
        raise UserError(
            f"{directory} has no config.json: expected a Hugging Face directory of BERT, ALBERT, RoBERTa or ModernBERT"
        )
    return read_json_object(directory / "config.json")


def read_model(path: Path, config: dict[str, Any]) -> sections.Model:
    """The sizes in a config.json (`config`: its content); raises UserError if this program does not support it."""
    if config.get("model_type") not in tuple(by_model_type()):
        raise UserError(
            f"{path}: model_type = {shown(config.get('model_type'))}: expected "
            f"{' or '.join(map(repr, by_model_type()))}"
        )
    require_supported(path, config)
    return model_of(path, config)


def require_supported(path: Path, config: dict[str, Any]) -> None:
    """Raise UserError if a configuration (`config`: its content) has a value that this program does not support."""
    for key, expected in _family(config).required.items():
        if config.get(key, expected) != expected:
            raise UserError(f"{path}: {key} = {shown(config[key])} is not supported: expected {expected!r}")
    if dropouts := [f"{key} = {shown(config[key])}" for key in _family(config).unused if config.get(key)]:
        warn_once(f"{path}: {', '.join(dropouts)} is passed over: training here has no such dropout")


def model_of(path: Path, config: dict[str, Any]) -> sections.Model:
    """The sizes in a config.json or bert_config.json (`config`: its content); raises UserError if they are wrong."""
    try:
        model = section_from_table(OneOf("architecture", MODELS), _family(config).settings(config), "model")
        around = sections.Recipe(
            model=model,
            objective=Objective(pair="none"),
            finetuning=sections.Head(),
            optimizer=sections.Optimizer(),
            exchange=sections.ExchangeMethod(),
        )
        check_model(around)
        return model
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _family(config: dict[str, Any]) -> Family:
    return by_model_type()[config.get("model_type", "bert")]


def _tie_decoder(directory: Path, tensors: dict[str, np.ndarray]) -> None:
    """Remove the decoder from `tensors`; raises UserError unless it is a copy of the word embeddings and the bias."""
    weight, bias = tensors.pop(DECODER_WEIGHT_COPY, None), tensors.pop(DECODER_BIAS_COPY, None)
    if weight is not None and not np.array_equal(weight, tensors.get(WORD_EMBEDDINGS), equal_nan=True):
        raise UserError(f"{directory}: {DECODER_WEIGHT_COPY} differs from {WORD_EMBEDDINGS}: expected tied embeddings")
    if bias is not None and not np.array_equal(bias, tensors.setdefault(DECODER_BIAS, bias), equal_nan=True):
        raise UserError(f"{directory}: {DECODER_BIAS_COPY} differs from {DECODER_BIAS}: expected one bias")


def _checked_tensor(directory: Path, name: str, mapped: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The tensor in float32; raises DamagedData for a wrong shape (before memory is allocated), nan or inf."""
    array = mapped
    if array.shape != shape:
        raise DamagedData(f"{directory}: {name} has shape {list(array.shape)}: config.json says {list(shape)}")
    array = as_float32(mapped)
    if not np.isfinite(array).all():
        raise DamagedData(f"{directory}: {name} has {np.count_nonzero(~np.isfinite(array))} values that are not finite")
    return array


def _check_parameters(parameters: dict[str, np.ndarray], shapes: Shapes) -> None:
    if parameters.keys() != shapes.keys():
        missing, unknown = sorted(shapes.keys() - parameters.keys()), sorted(parameters.keys() - shapes.keys())
        raise ValueError(f"parameters are not the model's: missing {missing}, unknown {unknown}")
    for name, array in parameters.items():
        if array.shape != shapes[name]:
            raise ValueError(f"{name} has shape {list(array.shape)}: expected {list(shapes[name])}")


def _check_vocabulary(vocabulary: list[str], vocab_size: int, settings: TokenizerSettings) -> None:
    if len(vocabulary) > vocab_size:
        raise ValueError(f"the vocabulary has {len(vocabulary)} tokens: expected at most vocab_size = {vocab_size}")
    if missing := set(filter(None, settings.special_tokens)).difference(vocabulary):
        raise ValueError(f"the vocabulary lacks {', '.join(sorted(missing))}")
    if isinstance(settings, JsonTokenizer):
        return
    if broken := [token for token in vocabulary if "\n" in token or "\r" in token]:
        raise ValueError(f"a token holds a line break: {broken[0]!r}")


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
    sync(path)
