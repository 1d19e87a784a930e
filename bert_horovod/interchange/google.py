"""Reads Google's TF1 checkpoints of BERT and ALBERT, as google-research/bert and google-research/albert write them.

    bert_model.ckpt.index, bert_model.ckpt.data-00000-of-00001     bert_config.json     vocab.txt
    model.ckpt-best.index, ...                                     albert_config.json   vocab.txt

A variable has the name of its scope (`bert/encoder/layer_0/output/dense/kernel`); kernels are [in, out], the transpose
of Hugging Face's. A training checkpoint also holds two moments of each parameter, which are not read.
"""

from __future__ import annotations

import dataclasses
import glob
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bert_horovod.errors import DamagedData, UserError
from bert_horovod.interchange import tokenizer_files
from bert_horovod.interchange.architectures import CLASSIFICATION, Architecture, Contents, part_of_a_head, whole_heads
from bert_horovod.interchange.huggingface import Pretrained, model_of, require_supported
from bert_horovod.interchange.safetensors_file import refuse_lfs_pointer
from bert_horovod.interchange.suitability import head_rows
from bert_horovod.interchange.tokenizer_files import TokenizerFound, read_json_object
from bert_horovod.model.architectures.base import Family
from bert_horovod.model.architectures.families import FAMILIES, family_of
from bert_horovod.model.parameters import (
    CLASSIFIER,
    DECODER_BIAS,
    LAYERS,
    PAIR_CLASSIFIER,
    SPAN_HEAD,
)
from bert_horovod.model.shapes import encoder_shapes, masked_token_head_shapes, pair_head_shapes, pretraining_shapes
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf

if TYPE_CHECKING:
    from bert_horovod.tasks.base import Task

_FAMILIES = [family for family in FAMILIES.values() if family.google_config_file]
CONFIGS = (*(family.google_config_file for family in _FAMILIES), "config.json")
_FILE = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
_OPTIMIZER = re.compile(r"(.*/)?(adam|lamb)_[mv]|(.*/)?beta[12]_power(_\d+)?|global_step")
_OBJECT_KEY = "/.ATTRIBUTES/VARIABLE_VALUE"  # suffix of each value's key in an object checkpoint of TF2
_WORD_EMBEDDINGS = "bert/embeddings/word_embeddings"
# Heads whose weight is not a dense kernel: it is [out, in] already.
_OUTPUT_WEIGHTS = {
    PAIR_CLASSIFIER: "cls/seq_relationship/output_",
    SPAN_HEAD: "cls/squad/output_",
    CLASSIFIER: "output_",
}


class Variables(NamedTuple):
    """The variables of a checkpoint."""

    parameters: dict[str, tuple[int, ...]]  # shapes as in this program, by the names of model/parameters.py
    optimizer: list[str]  # variables of the optimizer, and the step
    others: list[str]  # variables of unknown use


class Tf1:
    """Reads a TF1 checkpoint of Google's, as huggingface.HuggingFace a directory."""

    def __init__(self, prefix: Path) -> None:
        self.place = prefix

    @cached_property
    def model(self) -> Model:
        return read_model(self.place)

    @cached_property
    def configuration(self) -> dict[str, Any]:
        """As `import` would write config.json."""
        contents = self.contents()
        return contents.architectures[0].configuration(contents.model)

    max_length = None

    @cached_property
    def tokenizer(self) -> TokenizerFound:
        return read_tokenizer(self.place, self.model)

    def contents(self) -> Contents:
        variables = read_variables(self)
        shapes = variables.parameters | dict.fromkeys(variables.others, ())
        architectures = whole_heads(self.model, variables.parameters)
        origin = f"{self.place}, a TF1 checkpoint of Google's"
        return Contents(origin, self.model, shapes, architectures, variables.optimizer)

    def read(self, task: Task | Architecture | None = None, lowercase: bool | None = None) -> Pretrained:
        return read_checkpoint(self, task, lowercase)

    def weights(self) -> list[Path]:
        """The index, which has a checksum of each variable."""
        return [self.place.with_name(f"{self.place.name}.index")]


def find_prefix(path: Path) -> Path | None:
    """The prefix of the checkpoint that a path means; the path may be a prefix, one of its files, or its directory.

    Returns None if there is no checkpoint. Of several checkpoints in a directory it takes bert_model.ckpt, else the one
    that TensorFlow's file `checkpoint` names, and raises UserError if neither exists.
    """
    prefix = path.with_name(_FILE.sub("", path.name)) if path.name else path
    if not path.is_dir():
        return prefix if _index(prefix).is_file() else None
    prefixes = sorted(index.with_suffix("") for index in path.glob("*.index") if index.is_file())
    if len(prefixes) < 2:
        return prefixes[0] if prefixes else None
    state = tf.train.get_checkpoint_state(str(path)) if (path / "checkpoint").is_file() else None
    for name in ("bert_model.ckpt", Path(state.model_checkpoint_path).name if state else ""):
        if path / name in prefixes:
            return path / name
    raise UserError(
        f"{path} holds several checkpoints ({', '.join(prefix.name for prefix in prefixes[:4])}"
        f"{', ...' if len(prefixes) > 4 else ''}); name one of them, as in {prefixes[-1]}"
    )


def read_variables(files: Tf1) -> Variables:
    """The variables of a checkpoint; reads no values; raises DamagedData if its index cannot be read.

    Raises UserError if it is another kind of checkpoint, incomplete, without its data files, or does not fit its
    bert_config.json.
    """
    prefix = files.place
    shapes = _shapes(prefix)
    _require_data(prefix, shapes)
    model = files.model
    family = family_of(model)
    known = {_variable(family, name): name for name in _possible(family, model)}
    variables, unknown = Variables({}, [], []), []
    for variable, shape in sorted(shapes.items()):
        if name := known.get(variable):
            variables.parameters[name] = tuple(shape[::-1] if _is_kernel(variable) else shape)
        elif _OPTIMIZER.fullmatch(variable) or _is_slot(variable, shapes):
            variables.optimizer.append(variable)
        elif variable.startswith("bert/"):
            unknown.append(variable)
        else:
            variables.others.append(variable)
    missing = [name for name in encoder_shapes(model, pooler=False) if name not in variables.parameters]
    missing += [name] if (name := part_of_a_head(model, variables.parameters)) else []
    if unknown:
        raise UserError(_about_unknown(prefix, model, unknown, [_variable(family, name) for name in missing]))
    if missing:
        raise UserError(
            f"{prefix} is part of a checkpoint: {_variable(family, missing[0])} is missing"
            f"{f', and {len(missing) - 1} more' if missing[1:] else ''}; expected all that {_config(prefix).name} "
            f"describes ({model.num_hidden_layers} layers), and whole heads"
        )
    return variables


def _is_slot(variable: str, shapes: dict[str, list[int]]) -> bool:
    """Whether a variable lies below the name of another, as an optimizer's slots do: bert/pooler/dense/bias/Adam_1."""
    return any(variable[: match.start()] in shapes for match in re.finditer("/", variable))


def _about_unknown(prefix: Path, model: Model, unknown: list[str], missing: list[str]) -> str:
    """The message about variables of the encoder that have no place in this model."""
    config, named = _config(prefix).name, set()
    one_layer = dataclasses.replace(model, num_hidden_layers=1, shared_layers=0)
    for family in _FAMILIES:
        named.update(_variable(family, name) for name in _possible(family, one_layer))
    for variable in unknown:
        if re.sub(r"(layer|group)_\d+", r"\1_0", variable) in named:
            return (
                f"{prefix}: {variable[:200]} is no part of the encoder that {config} describes "
                f"({model.num_hidden_layers} layers); copy the one there that belongs to the checkpoint"
            )
    more = f" and {len(unknown) - 1} more" if unknown[1:] else ""
    lacking = f", and has no {missing[0]}" if missing else ""
    return (
        f"{prefix} has {unknown[0][:200]}{more}{lacking}; expected the names of google-research/bert or "
        f"google-research/albert: another program wrote the checkpoint ({config} is not the cause)"
    )


def read_checkpoint(files: Tf1, task: Task | Architecture | None = None, lowercase: bool | None = None) -> Pretrained:
    """Read a checkpoint, with the heads of pre-training and of `task`, if it has them.

    TF1 checkpoints have no label names: labels are LABEL_0 and so on, and a classifier is left out if the task has
    other labels. `lowercase`: whether the tokenizer lower-cases; None: as read_tokenizer finds.
    Raises the errors of read_variables and read_tokenizer, UserError if nothing tells whether text is lower-cased, and
    DamagedData if its data are damaged, or not finite.
    """
    prefix, variables, model = files.place, read_variables(files), files.model
    wanted_shapes = pretraining_shapes(model, pairs=True) | (task.parameters(model) if task else {})
    if task and not _labels_are(model, variables, task):
        wanted_shapes = {name: shape for name, shape in wanted_shapes.items() if not name.startswith(f"{CLASSIFIER}.")}
    reader, parameters = _reader(prefix), {}
    for name, shape in wanted_shapes.items():
        if name not in variables.parameters:
            continue
        variable = _variable(family_of(model), name)
        if variables.parameters[name] != shape:
            raise UserError(
                f"{prefix}: {variable} makes {name} {list(variables.parameters[name])}, expected {list(shape)} as "
                f"{_config(prefix).name} {'and the task say' if task else 'says'}"
            )
        try:
            array = reader.get_tensor(variable)
        except _reader_errors() as error:
            raise DamagedData(f"{prefix} is damaged at {variable}: {_first_line(error)}; copy it again") from error
        array = np.ascontiguousarray(array.T if _is_kernel(variable) else array, np.float32)
        if not np.isfinite(array).all():
            raise DamagedData(f"{prefix}: {variable} has values that are not finite")
        parameters[name] = array
    tokenizer = files.tokenizer
    if lowercase is None and tokenizer.reason is None:
        raise UserError(
            f"{prefix}: nothing tells whether text is to be lower-cased for it; say so once, and use what it makes: "
            f"bert-horovod import {prefix} DIR --cased (or --uncased)"
        )
    return Pretrained(model, parameters, tokenizer.vocabulary, tokenizer.settings.cased_as(lowercase))


def _labels_are(model: Model, variables: Variables, task: Task | Architecture) -> bool:
    classifiers = [
        architecture for architecture in whole_heads(model, variables.parameters) if architecture.name == CLASSIFICATION
    ]
    our_configuration = task.configuration(model)
    return any(
        head_rows(architecture.configuration(model), our_configuration) is not None for architecture in classifiers
    )


def read_tokenizer(prefix: Path, model: Model) -> TokenizerFound:
    """The tokenizer beside a checkpoint; raises the errors of tokenizer_files.read_tokenizer.

    If no file says whether text is lower-cased, the vocabulary tells; the reason is None if it does not tell.
    """
    return tokenizer_files.read_tokenizer(prefix.parent, model.vocab_size, _config(prefix).name, by_vocabulary=True)


def _variable(family: Family, name: str) -> str:
    """The TF1 variable's name of a parameter."""
    if name == DECODER_BIAS:
        return "cls/predictions/output_bias"
    layer, kind = name.rsplit(".", 1)
    if layer in _OUTPUT_WEIGHTS:
        return _OUTPUT_WEIGHTS[layer] + {"weight": "weights", "bias": "bias"}[kind]
    if layer.startswith(LAYERS):
        number, part = layer.removeprefix(LAYERS).split(".", 1)
        path = family.google_scope(int(number), part)
    else:
        path = layer.replace(".", "/")
    if path.endswith("_embeddings"):
        return path
    return f"{path}/{_KINDS[path.endswith(('LayerNorm', 'LayerNorm_1')), kind]}"


_KINDS = {(True, "weight"): "gamma", (True, "bias"): "beta", (False, "weight"): "kernel", (False, "bias"): "bias"}


def _is_kernel(variable: str) -> bool:
    return variable.endswith("/kernel")


def _possible(family: Family, model: Model) -> list[str]:
    pretraining = pair_head_shapes(model) | masked_token_head_shapes(model)
    heads = [f"{head}.{kind}" for head in (SPAN_HEAD, CLASSIFIER) for kind in ("weight", "bias")]
    return [*family.encoder_shapes(model, pooler=True), *pretraining, *heads]


def _shapes(prefix: Path) -> dict[str, list[int]]:
    """The shape of every variable; raises UserError if the checkpoint is not of Google's BERT or ALBERT."""
    try:
        shapes = _reader(prefix).get_variable_to_shape_map()
    except _reader_errors() as error:
        raise DamagedData(f"{_index(prefix)} is damaged: {_first_line(error)}; copy it again") from error
    if any(variable.endswith(_OBJECT_KEY) for variable in shapes):
        raise UserError(
            f"{prefix} is an object checkpoint of TF2, as TensorFlow's Model Garden and NVIDIA's TF2 BERT write them, "
            "expected one of TF1 (google-research/bert); convert it first, with "
            "convert_bert_original_tf2_checkpoint_to_pytorch.py of transformers 4, and take the directory that it makes"
        )
    if _WORD_EMBEDDINGS not in shapes:
        raise UserError(
            f"{prefix} has no {_WORD_EMBEDDINGS} (it has {', '.join(sorted(shapes)[:3])}, ...); expected a checkpoint "
            "of google-research/bert or google-research/albert"
        )
    return shapes


def _reader_errors() -> tuple[type[Exception], ...]:
    return (tf.errors.OpError, ValueError, LookupError, RuntimeError)  # TensorFlow translates some by their text


def _reader(prefix: Path) -> tf.train.CheckpointReader:
    refuse_lfs_pointer(_index(prefix))
    return tf.train.load_checkpoint(str(prefix))


def _require_data(prefix: Path, shapes: dict[str, list[int]]) -> None:
    """Raise UserError unless all data files, which hold the values, are present."""
    files = sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}.data-[0-9]*-of-[0-9]*"))
    expected = int(files[0].name[-5:]) if files else 1
    if len(files) < expected or not files:
        have = {file.name for file in files}
        names = (f"{prefix.name}.data-{number:05d}-of-{expected:05d}" for number in range(expected))
        megabytes = 4 * sum(int(np.prod(shape)) for shape in shapes.values()) / 1e6
        raise UserError(
            f"{prefix} is an index alone: {next(name for name in names if name not in have)}, which holds the values "
            f"(about {megabytes:,.0f} MB), is missing; copy it to "
            f"{prefix.parent} too"
        )
    for file in files:
        refuse_lfs_pointer(file)


def read_model(prefix: Path) -> Model:
    path = _config(prefix)
    config = read_json_object(path)
    for family in _FAMILIES:
        config = family.google_configuration(config)
    if config.get("model_type", "bert") not in [family.model_type for family in _FAMILIES]:
        raise UserError(f"{path}: model_type = {config['model_type']!r}: expected a BERT's or an ALBERT's")
    require_supported(path, config)
    return model_of(path, config)


def _config(prefix: Path) -> Path:
    for name in CONFIGS:
        if (prefix.parent / name).is_file():
            return prefix.parent / name
    raise UserError(
        f"{prefix.parent} has no {CONFIGS[0]}, which gives the sizes of {prefix.name}; copy the one there that the "
        "model was trained with (--bert_config_file)"
    )


def _index(prefix: Path) -> Path:
    return prefix.with_name(f"{prefix.name}.index")


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]
