"""Reads and writes the files by which sentence-transformers and text-embeddings-inference know a checkpoint of vectors.

They stand beside Hugging Face's: modules.json, 1_Pooling/config.json, sentence_bert_config.json and
config_sentence_transformers.json. The names written are those of sentence-transformers 3, because
text-embeddings-inference reads no others; those of version 6 are read too.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from bert_horovod.errors import DamagedData, UserError
from bert_horovod.interchange.architectures import CLASSIFICATION
from bert_horovod.interchange.suitability import named_class, named_labels
from bert_horovod.interchange.tokenizer_files import read_json_object
from bert_horovod.model.parameters import CROSS_ENCODER, SENTENCE_VECTORS, SIGMOID
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime.lasting_log import warn_once
from bert_horovod.storage import reading
from bert_horovod.storage.reading import shown

MODULES, OF_TEXTS, OF_MODEL = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
VECTOR = "sentence_embedding"  # sentence-transformers' name of a text's vector, as an output
_FORMAT = "3.0.0"  # the first version with similarity_fn_name
_FIRST, _MEAN = "pooling_mode_cls_token", "pooling_mode_mean_tokens"
_OTHERS = [
    f"pooling_mode_{mode}" for mode in ("max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
]
_POOLINGS = {_MEAN: "mean", _FIRST: "first", "mean": "mean", "cls": "first"}  # the last two: values of version 6
_KINDS: dict[str, Any] = {
    "pooling": str,
    "normalised": bool,
    "prompts": dict,
    "default_prompt": str | None,
    "max_seq_length": int | None,
    "lowercase": bool,
    "dimensions": int | None,
    "similarity": str,
}
_MODULES = ["Transformer", "Pooling", "Normalize"]
_EXPECTED_MODULES = "expected Transformer, Pooling and perhaps Normalize, in this order"
_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
# Names of OF_TEXTS before version 2 of sentence-transformers, which looks for them in this order.
_OLD_OF_TEXTS = [
    f"sentence_{name}_config.json" for name in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]
_OLD_ACTIVATION = "sbert_ce_default_activation_function"  # key of config.json before version 4
_ENCODE = {"query": 0, "document": 1}  # prompts of encode_query and encode_document, and the columns they are of


class SentenceVectors(NamedTuple):
    """How a text's vector is made."""

    pooling: str = "mean"  # of the last layer's states at all tokens; "first": the state at [CLS]
    normalised: bool = True  # to the length 1
    prompts: dict[str, str] = {}  # noqa: RUF012 - read alone; what stands before a text, by names such as those of columns
    default_prompt: str | None = None  # the name of the prompt of texts that no other is asked for
    max_seq_length: int | None = None  # tokens of a text, special tokens included, at most; None: the model's positions
    lowercase: bool = False  # before the tokenizer does its own
    dimensions: int | None = None  # of the vector, the first ones; None: all
    similarity: str = "cosine"  # of two vectors, as their files name it for other programs

    def prompt_of(self, column: str, place: int) -> str:
        """What stands before a text of a column, by its name, else by its place: a query, then passages."""
        names = column, "query" if place == 0 else "document", self.default_prompt
        return next((self.prompts[name] for name in names if name in self.prompts), "")


def vector_files(model: Model, config: dict[str, Any]) -> dict[str, str]:
    """The texts of these files by their paths in a checkpoint; none if its config.json does not speak of vectors."""
    if not (vectors := vectors_of(config)):
        return {}
    kinds, positions = ["Transformer", "Pooling"], model.max_position_embeddings
    kinds += ["Normalize"] if vectors.normalised else []
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds[1:], 1))]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    modes = dict.fromkeys([_FIRST, _MEAN, *_OTHERS], False) | {_FIRST if vectors.pooling == "first" else _MEAN: True}
    # Without a prompt of its own name encode_document takes none, though there is one called passage.
    columns = config.get("text_columns") or []
    prompts = (
        vectors.prompts
        and {
            name: vectors.prompts[columns[number]]
            for name, number in _ENCODE.items()
            if columns[number : number + 1] and columns[number] in vectors.prompts
        }
        | vectors.prompts
    )
    contents: dict[str, Any] = {
        MODULES: modules,
        f"{paths[1]}/config.json": {"word_embedding_dimension": model.hidden_size, **modes, "include_prompt": True},
        OF_TEXTS: {
            "max_seq_length": min(vectors.max_seq_length or positions, positions),
            "do_lower_case": vectors.lowercase,
        },
        OF_MODEL: {
            "__version__": {"sentence_transformers": _FORMAT},
            "model_type": "SentenceTransformer",
            "prompts": prompts,
            "default_prompt_name": vectors.default_prompt,
            "similarity_fn_name": vectors.similarity,
            **({"truncate_dim": vectors.dimensions} if vectors.dimensions else {}),
        },
    }
    return {path: json.dumps(content, indent=2, ensure_ascii=False) + "\n" for path, content in contents.items()}


def with_activation(directory: Path, config: dict[str, Any]) -> dict[str, Any]:
    """A config.json's content, with a CrossEncoder's activation where version 5 of sentence-transformers has it.

    A directory says that it is a CrossEncoder's by this key, before version 4 by another one, since version 6 in
    OF_MODEL. If it names no activation, one label has a sigmoid, as CrossEncoder takes it. A classifier with one label
    that says nothing of the kind, and has no problem_type, is a regression, with a warning. Raises UserError for what
    this program does not do, DamagedData if the key holds no object.
    """
    of_model, mark = _read_first(directory, OF_MODEL), config.get(CROSS_ENCODER, {})
    labels = named_labels(config)
    one = isinstance(labels, dict) and len(labels) == 1
    if of_model.get("model_type") == "CrossEncoder":
        _require_plain(directory, of_model)
    elif config.keys().isdisjoint((CROSS_ENCODER, _OLD_ACTIVATION)):
        if one and config.get("problem_type") is None and named_class(config) == CLASSIFICATION:
            warn_once(
                f"{directory}: nothing says whether its one output is a number or a CrossEncoder's score; it is taken "
                "for a number. CrossEncoder gives its sigmoid, and so does predict if config.json has "
                f'"{CROSS_ENCODER}": {json.dumps(SIGMOID)}; a number has "problem_type": "regression"'
            )
        return config
    else:
        of_model = {}
    if not isinstance(mark, dict):
        raise DamagedData(f"{directory / 'config.json'}: {CROSS_ENCODER} = {shown(mark)}; expected an object")
    named = of_model.get("activation_fn") or mark.get("activation_fn") or config.get(_OLD_ACTIVATION)
    if named is None:
        return config | {CROSS_ENCODER: mark | SIGMOID} if one else config
    if not str(named).endswith((".Sigmoid", ".Identity")):
        raise UserError(f"{directory}: the activation {shown(named)} is not supported; expected Sigmoid or Identity")
    return config | {CROSS_ENCODER: mark | {"activation_fn": named}}


def _require_plain(directory: Path, of_model: dict[str, Any]) -> None:
    """Raise UserError if a CrossEncoder of version 6 is more than a classifier of Hugging Face's."""
    kinds = [kind for _, kind in _modules(directory / MODULES)] if (directory / MODULES).is_file() else []
    if kinds not in ([], _MODULES[:1]):
        raise UserError(f"{directory / MODULES}: its modules are {', '.join(kinds)}; expected Transformer alone")
    default = of_model.get("default_prompt_name")
    if default is not None:
        raise UserError(
            f"{directory / OF_MODEL}: default_prompt_name = {shown(default)} is not supported of a CrossEncoder; "
            "expected null"
        )
    if _read_first(directory, OF_TEXTS).get("do_lower_case"):
        raise UserError(f"{directory / OF_TEXTS}: do_lower_case is not supported of a CrossEncoder; expected false")


def length_of_texts(directory: Path) -> Any:
    """Tokens of a row, or of a text of a sentence encoder, at most, as the files have it; None: they do not say."""
    of_texts = _read_first(directory, OF_TEXTS, *_OLD_OF_TEXTS) if (directory / MODULES).is_file() else {}
    return of_texts.get("max_seq_length") or _read_first(directory, "tokenizer_config.json").get("model_max_length")


def _read_first(directory: Path, *names: str) -> dict[str, Any]:
    """The content of the first of these files that is there; empty if none is."""
    return next((read_json_object(directory / name) for name in names if (directory / name).is_file()), {})


def with_vectors(directory: Path, config: dict[str, Any]) -> dict[str, Any]:
    """A config.json's content, with what the files beside it say of vectors; raises ReportedError for a damaged one.

    The entry has "refused", the reason, if the vectors are of a kind that this program does not make.
    """
    if not (directory / MODULES).is_file():
        return config
    of_model, of_texts = (_read_first(directory, *names) for names in ((OF_MODEL,), (OF_TEXTS, *_OLD_OF_TEXTS)))
    if of_model.get("model_type") == "CrossEncoder":
        return config
    modules = _modules(directory / MODULES)
    kinds = [kind for _, kind in modules]
    entry: dict[str, Any] = {}
    if unknown := next((kind for kind in kinds if kind not in _MODULES), None):
        refused = f"{directory / MODULES}: the module {shown(unknown)} is not supported; {_EXPECTED_MODULES}"
    elif kinds not in (_MODULES[:2], _MODULES):
        refused = f"{directory / MODULES}: its modules are {', '.join(kinds)}; {_EXPECTED_MODULES}"
    else:
        pooling, refused = _pooling(directory, modules[1][0], config)
        prompts, similarity = of_model.get("prompts") or {}, of_model.get("similarity_fn_name") or "cosine"
        if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
            raise DamagedData(f"{directory / OF_MODEL}: prompts = {shown(prompts)}; expected texts by names")
        default = of_model.get("default_prompt_name")
        if default is not None and default not in prompts:
            refused = f"{directory / OF_MODEL}: default_prompt_name = {shown(default)} is none of its prompts"
        if similarity not in _SIMILARITIES:
            expected = " or ".join(_SIMILARITIES)
            refused = f"{directory / OF_MODEL}: similarity_fn_name = {shown(similarity)}; expected {expected}"
        entry = {
            "pooling": pooling,
            "normalised": len(kinds) > 2,
            "prompts": {name: text for name, text in prompts.items() if text},
            "default_prompt": default,
            "max_seq_length": length_of_texts(directory),
            "lowercase": bool(of_texts.get("do_lower_case")),
            "dimensions": of_model.get("truncate_dim"),
            "similarity": similarity,
        }
    ours = config.get(SENTENCE_VECTORS)
    entry |= {"refused": refused} if refused else {}
    return config | {SENTENCE_VECTORS: (ours if isinstance(ours, dict) else {}) | entry}


def _pooling(directory: Path, path: str, config: dict[str, Any]) -> tuple[str, str]:
    """How the files of the module Pooling at `path` pool, and why that is refused, or ""; raises ReportedError."""
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise UserError(f"{directory / MODULES}: the path {shown(path)} leads out of the directory")
    file = directory / path / "config.json"
    says = read_json_object(file)
    named = [name for name in (_FIRST, _MEAN, *_OTHERS) if name in says]
    modes = says.get("pooling_mode") or ([name for name in named if says[name]] if named else [_MEAN])
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or not all(isinstance(mode, str) for mode in modes):
        raise DamagedData(f"{file}: pooling_mode = {shown(modes)}; expected mean or cls")
    width = says.get("word_embedding_dimension", says.get("embedding_dimension"))
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        return "mean", f"{file}: the pooling {shown(modes)} is not supported; expected mean or cls"
    if says.get("include_prompt") is False:
        return "mean", f"{file}: include_prompt = false is not supported; expected true"
    if width not in (None, config.get("hidden_size")):
        hidden = config.get("hidden_size")
        return "mean", f"{file}: word_embedding_dimension = {shown(width)}; expected {shown(hidden)}, the hidden_size"
    return _POOLINGS[modes[0]], ""


def vectors_of(config: dict[str, Any]) -> SentenceVectors | None:
    """How vectors are made, by the content of a config.json (see `with_vectors`); None: it does not say.

    Raises UserError if this program does not make such vectors, DamagedData if a value is of another kind than
    expected.
    """
    entry = config.get(SENTENCE_VECTORS)
    if entry is None:
        return None
    if isinstance(entry, dict) and entry.get("refused"):
        raise UserError(str(entry["refused"]))
    for key, kind in _KINDS.items():
        if isinstance(entry, dict) and not isinstance(entry.get(key, SentenceVectors._field_defaults[key]), kind):
            raise DamagedData(f"{SENTENCE_VECTORS}: {key} = {shown(entry[key])}; expected {kind}")
    if not isinstance(entry, dict) or entry.get("pooling", "mean") not in _POOLINGS.values():
        raise DamagedData(f"{SENTENCE_VECTORS} is {shown(entry)}; expected an object with the pooling mean or first")
    return SentenceVectors(**{key: entry[key] for key in _KINDS if key in entry})


def _modules(path: Path) -> list[tuple[str, str]]:
    """Path and kind, such as Pooling, of each module; raises ReportedError."""
    try:
        modules = reading.read_json(path)
        if not isinstance(modules, list) or not modules:
            raise ValueError(f"it is {shown(modules)}")
        return [(str(module["path"]), str(module["type"]).rpartition(".")[2]) for module in modules]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DamagedData(f"{path} is damaged: expected a list of modules with path and type: {error}") from error
