"""Reads and writes the tokenizer of a checkpoint: vocab.txt, tokenizer.json, tokenizer_config.json, added tokens.

A BertTokenizer is read as transformers reads it, or refused by the name of the setting that this program does not have;
tokenizers of other classes are read from tokenizer.json (any_tokenizer.py). All commands read them here.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from bert_horovod.corpus.reading.tokenizer_settings import Added, TokenizerSettings, token_ids
from bert_horovod.corpus.reading.vocabulary import casing, read_vocabulary_lines, require_special_tokens, require_tokens
from bert_horovod.errors import DamagedData, UserError, file_error
from bert_horovod.interchange.any_tokenizer import MOST_TOKENS, json_tokenizer
from bert_horovod.interchange.tokenizer_classes import BERT_TOKENS, DEFAULTS, GENERAL, GENERAL_5, content_of
from bert_horovod.interchange.tokenizer_json import read_tokenizer_json
from bert_horovod.runtime.lasting_log import warn_once
from bert_horovod.storage import reading
from bert_horovod.storage.reading import shown

_CLASSES = ("BertTokenizer", "BertTokenizerFast")  # transformers reads both with one class
_FROM_JSON = (GENERAL, GENERAL_5)
# Settings that change ids whatever the class is, and the values that do not.
_REQUIRED_OF_ALL = {
    "auto_map": None,
    "fast_tokenizer_files": ["tokenizer.json"],
    "init_inputs": [],
    "split_special_tokens": False,
    "truncation_side": "right",
}
# Other settings that change ids, in classes or versions of transformers, and the values that BertTokenizer has.
_REQUIRED = {
    **_REQUIRED_OF_ALL,
    "clean_text": True,
    "do_basic_tokenize": True,
    "do_subword_tokenize": True,
    "do_word_tokenize": True,
    "never_split": [],
    "subword_tokenizer_type": "wordpiece",
    "word_tokenizer_type": "basic",
    "wordpieces_prefix": "##",
}


class TokenizerFound(NamedTuple):
    """The tokenizer of a checkpoint."""

    vocabulary: list[str] | None  # tokens by id, none at a place with ""; None if there is no vocabulary
    settings: TokenizerSettings
    reason: str | None  # what tells whether text is lower-cased, for people; None: nothing does


def tokenizer_config(
    settings: TokenizerSettings, vocabulary: list[str], max_length: int, segments: bool = True
) -> dict[str, Any]:
    """The content of tokenizer_config.json; max_length in tokens; `segments`: whether the model has segment types."""
    ids = token_ids(vocabulary)
    fields = {"single_word": False, "lstrip": False, "rstrip": False}
    added = {
        str(ids[token.content]): {
            "content": token.content,
            "normalized": token.normalized,
            "special": not token.normalized,
            **fields,
        }
        for token in settings.added
    }
    return {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": settings.lowercase,
        "strip_accents": settings.strip_accents,  # null: as do_lower_case says
        "tokenize_chinese_chars": settings.chinese_apart,
        "clean_up_tokenization_spaces": True,
        "model_max_length": max_length,
        **BERT_TOKENS,
        **({} if segments else {"model_input_names": ["input_ids", "attention_mask"]}),
        **({"added_tokens_decoder": added} if added else {}),
    }


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; raises ReportedError for anything else."""
    try:
        content = reading.read_json(path)
    except OSError as error:
        raise file_error(error, f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise DamagedData(f"{path} is damaged: expected JSON: {error}") from error
    if not isinstance(content, dict):
        raise DamagedData(f"{path} is damaged: expected a JSON object")
    return content


def read_tokenizer(
    directory: Path,
    vocab_size: int | None,
    config: str = "config.json",
    by_vocabulary: bool = False,
    of_model: dict[str, Any] | None = None,
) -> TokenizerFound:
    """Read the tokenizer of a checkpoint as transformers does.

    `vocab_size` is the model's number of rows for tokens, maybe more than the vocabulary has; None: as the file
    `config` says, if there is one. `by_vocabulary`: if no file says whether text is lower-cased, the vocabulary tells,
    instead of transformers' default (which is to lower-case). `of_model`: the content of `config`, if it is read.

    Raises UserError if the tokenizer has a setting that this program does not have, or more tokens than the model, or
    two files contradict each other, DamagedData if a file is damaged.
    """
    of_model = _optional(directory / config) if of_model is None else of_model
    if vocab_size is None and type(of_model.get("vocab_size")) is int:
        vocab_size = of_model["vocab_size"]
    found = _read(directory, of_model, vocab_size, config, by_vocabulary)
    tokens = len(list(filter(None, found.vocabulary or [])))
    if vocab_size and found.vocabulary and tokens < vocab_size / 2:
        warn_once(
            f"{directory}: the tokenizer has {tokens:,} tokens, but {config} has vocab_size = {vocab_size:,}: is it "
            "the tokenizer that the model was trained with?"
        )
    return found


def _read(
    directory: Path, of_model: dict[str, Any], vocab_size: int | None, config: str, by_vocabulary: bool
) -> TokenizerFound:
    settings, file = _optional(directory / "tokenizer_config.json"), directory / "tokenizer.json"
    name, model_type = settings.get("tokenizer_class") or of_model.get("tokenizer_class"), of_model.get("model_type")
    unnamed = name is None and (not of_model or (model_type or "bert") != "bert")
    if not os.path.lexists(file) or not (unnamed or name not in (None, *_CLASSES)):
        return _read_bert(directory, vocab_size or MOST_TOKENS, config, by_vocabulary)
    if unnamed or name in _FROM_JSON:  # it may be BERT's
        with suppress(UserError):
            return _read_bert(directory, vocab_size or MOST_TOKENS, config, by_vocabulary)
    _refuse_other_settings(directory / "tokenizer_config.json", settings, _REQUIRED_OF_ALL)
    special = _optional(directory / "special_tokens_map.json") if "added_tokens_decoder" not in settings else {}
    name = "RobertaTokenizer" if name is None and model_type == "roberta" else name
    added = _optional(directory / "added_tokens.json")
    tokenizer = json_tokenizer(file, read_json_object(file), settings | special, vocab_size, added, name)
    return TokenizerFound(tokenizer.facts.vocabulary, tokenizer, "as its tokenizer says")


def _read_bert(directory: Path, vocab_size: int, config: str, by_vocabulary: bool) -> TokenizerFound:
    """As read_tokenizer, of a BertTokenizer."""
    config_file, json_file = directory / "tokenizer_config.json", directory / "tokenizer.json"
    settings = _optional(config_file)
    from_json = _class_from_json(directory, settings, config)
    special = _optional(directory / "special_tokens_map.json") if "added_tokens_decoder" not in settings else {}
    _refuse_other_settings(config_file, settings, _REQUIRED)
    for source, values in ((config_file, settings), (directory / "special_tokens_map.json", special)):
        _refuse_other_special_tokens(source, values)
    flags, stated = {key: settings.get(key, default) for key, default in DEFAULTS.items()}, "do_lower_case" in settings
    vocabulary, added_records = None, {}
    if os.path.lexists(json_file):
        contents = read_tokenizer_json(json_file, read_json_object(json_file), vocab_size)
        vocabulary, added_records = contents.vocabulary, contents.added
        if from_json and not contents.makes_rows:
            raise UserError(
                f"{json_file}: without a post_processor, transformers adds no [CLS] and [SEP]; "
                "expected tokenizer_class = 'BertTokenizer' in tokenizer_config.json, or a post_processor"
            )
        for key, value in contents.flags.items():
            if from_json:
                flags[key] = value
            elif key not in settings and value != DEFAULTS[key]:
                raise UserError(
                    f"{json_file}: its normalizer has {key} = {_json(value)}, but {config_file.name} does not, and "
                    f"transformers takes {_json(DEFAULTS[key])} then; write {key} into {config_file.name}"
                )
        stated = stated or "do_lower_case" in contents.flags
    elif os.path.lexists(directory / "vocab.txt"):
        vocabulary = read_vocabulary_lines(directory / "vocab.txt")
    _check_flags(config_file, flags)
    added: tuple[Added, ...] = ()
    source = json_file if os.path.lexists(json_file) else directory / "vocab.txt"
    if vocabulary is not None:
        records = [*_added(directory, settings, added_records), *_named(settings, special)]
        added = _add(vocabulary, records, source)
        _check_vocabulary(vocabulary, source, vocab_size, config)
    reason = "as its tokenizer says" if stated else "transformers' default"
    if by_vocabulary and not stated and vocabulary is not None:
        flags["do_lower_case"], reason = casing(vocabulary)
    return TokenizerFound(
        vocabulary,
        TokenizerSettings(flags["do_lower_case"], flags["strip_accents"], flags["tokenize_chinese_chars"], added),
        reason,
    )


def _class_from_json(directory: Path, settings: dict[str, Any], config: str) -> bool:
    """Whether the tokenizer is all as tokenizer.json says; raises UserError for another class than BertTokenizer."""
    source, name = directory / "tokenizer_config.json", settings.get("tokenizer_class")
    if name is None:
        source = directory / config
        name = _optional(source).get("tokenizer_class")
    if name in _FROM_JSON and os.path.lexists(directory / "tokenizer.json"):
        return True
    if name is not None and name not in _CLASSES:
        raise UserError(
            f"{source}: tokenizer_class = {shown(name)} is not supported without tokenizer.json: write that file in "
            "Python with transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR), or take another "
            "checkpoint if the class has none (is_fast is false, as for BertJapaneseTokenizer)"
        )
    return False


def _refuse_other_settings(source: Path, settings: dict[str, Any], required: dict[str, Any]) -> None:
    for key, expected in required.items():
        value = settings.get(key)
        if value is not None and value != expected:
            raise UserError(f"{source}: {key} = {shown(value)} is not supported: expected {_json(expected)}")


def _refuse_other_special_tokens(source: Path, settings: dict[str, Any]) -> None:
    for key, expected in BERT_TOKENS.items():
        if key in settings and (token := content_of(settings[key])) != expected:
            raise UserError(f"{source}: {key} = {shown(token)} is not supported: expected {expected!r}")


def _check_flags(source: Path, flags: dict[str, Any]) -> None:
    for key, value in flags.items():
        if type(value) is not bool and not (key == "strip_accents" and value is None):
            raise DamagedData(f"{source} is damaged: {key} is {shown(value)}: expected true or false")


def _added(
    directory: Path, settings: dict[str, Any], of_json: dict[int, dict[str, Any]]
) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """The added tokens that have an id, by id: from added_tokens_decoder, or else from the two other files."""
    others = dict(of_json)
    source = directory / "added_tokens.json"
    try:
        for token, number in _optional(source).items():
            others[_id(number)] = {"normalized": True, **others.get(number, {}), "content": _string(token)}
        if "added_tokens_decoder" not in settings:
            yield from sorted(others.items())
            return
        source = directory / "tokenizer_config.json"
        listed = {_id(int(number)): token for number, token in settings["added_tokens_decoder"].items()}
        contents = {_string(token["content"]) for token in listed.values()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DamagedData(f"{source} or its added tokens are damaged: {shown(error)}") from error
    for token in others.values():
        if token["content"] not in contents:
            raise UserError(
                f"{directory}: the added token {shown(token['content'])} is not in added_tokens_decoder of "
                "tokenizer_config.json, so versions of transformers differ about it; save the tokenizer again"
            )
    yield from sorted(listed.items())


def _named(settings: dict[str, Any], special: dict[str, Any]) -> Iterator[tuple[None, dict[str, Any]]]:
    """The special tokens that other settings name, without ids."""
    for values in (settings, special):
        for key, value in values.items():
            if key in ("additional_special_tokens", "extra_special_tokens"):
                tokens = list(value.values()) if isinstance(value, dict) else [] if value is None else value
            elif key.endswith("_token") and key not in BERT_TOKENS and isinstance(value, str | dict):
                tokens = [value]
            else:
                continue
            if not isinstance(tokens, list) or not all(isinstance(content_of(token), str) for token in tokens):
                raise DamagedData(f"tokenizer_config.json is damaged: {key} is {shown(value)}: expected tokens")
            for content in map(content_of, tokens):
                yield None, {"content": content, "special": True}


def _add(vocabulary: list[str], records: list[tuple[int | None, dict[str, Any]]], source: Path) -> tuple[Added, ...]:
    """Append added tokens to the vocabulary, as transformers does; returns those that are found in text."""
    ids, free, added = token_ids(vocabulary), len(set(vocabulary)), {}
    for number, record in records:
        content = record["content"]
        if content not in ids:
            if free != len(vocabulary):
                raise UserError(
                    f"{source} has {len(vocabulary)} places for {free} different tokens, so transformers gives the "
                    f"added token {shown(content)} an id that is taken; expected each token once"
                )
            ids[content], free = len(vocabulary), free + 1
            vocabulary.append(content)
        if number is not None and number != ids[content]:
            raise UserError(
                f"{source.parent}: the added token {shown(content)} has the id {shown(number)}, but the place of "
                f"transformers for it is {ids[content]}; expected added tokens at the end of the vocabulary's ids"
            )
        if record.get("single_word"):
            raise UserError(
                f"{source.parent}: the added token {shown(content)} has single_word = true, which is not supported: "
                "expected false"
            )
        if content not in BERT_TOKENS.values():
            special = bool(record.get("special"))
            added.setdefault(content, Added(content, bool(record.get("normalized", not special))))
    return tuple(added.values())


def _check_vocabulary(vocabulary: list[str], source: Path, vocab_size: int, config: str) -> None:
    """Raise UserError if the model has no row for a token, or a special one is missing; cut empty lines at the end."""
    while vocabulary and not vocabulary[-1]:
        vocabulary.pop()
    if len(vocabulary) > vocab_size:
        raise UserError(
            f"{source} has {len(vocabulary)} tokens, but {config} has vocab_size = {vocab_size}: expected the "
            "vocabulary that the model was trained with"
        )
    require_tokens(vocabulary, str(source), "id")
    require_special_tokens(vocabulary, str(source))


def _id(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise TypeError(f"expected an id, found {shown(number)}")
    return number


def _string(token: Any) -> str:
    if type(token) is not str or not token:
        raise TypeError(f"expected a token, found {shown(token)}")
    return token


def _json(value: Any) -> str:
    return {True: "true", False: "false", None: "null"}[value] if value is None or type(value) is bool else repr(value)


def _optional(path: Path) -> dict[str, Any]:
    return read_json_object(path) if os.path.lexists(path) else {}
