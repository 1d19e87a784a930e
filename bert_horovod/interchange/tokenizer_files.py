"""The vocabulary and the tokenizer's settings of a Hugging Face BERT directory."""

import os
from pathlib import Path
from typing import Any

from bert_horovod.errors import DamagedData, UserError, file_error
from bert_horovod.storage import reading
from bert_horovod.storage.reading import shown

SPECIAL_TOKENS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}


def tokenizer_settings(lowercase: bool, max_length: int) -> dict[str, Any]:
    """The content of tokenizer_config.json; max_length in tokens."""
    return {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": lowercase,
        "strip_accents": None,  # as do_lower_case says
        "tokenize_chinese_chars": True,
        "clean_up_tokenization_spaces": True,
        "model_max_length": max_length,
        **SPECIAL_TOKENS,
    }


def read_json(path: Path) -> dict[str, Any]:
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


def read_vocabulary(directory: Path, vocab_size: int, config: str = "config.json") -> list[str] | None:
    """Tokens by id, from vocab.txt, or from tokenizer.json if there is no vocab.txt; None without both.

    Args:
        directory: the directory of these files.
        vocab_size: the model's number of tokens.
        config: name of the file with vocab_size, for messages.

    Raises:
        UserError: the ids, including those of added tokens, are not exactly 0 to vocab_size - 1.
        DamagedData: a file is damaged.
    """
    tokens: dict[int, str] = {}
    source = directory / "vocab.txt"
    try:
        if os.path.lexists(source):
            lines = reading.read_text(source).split("\n")
            tokens.update(enumerate(lines[:-1] if lines[-1] == "" else lines))
        elif os.path.lexists(source := directory / "tokenizer.json"):
            tokenizer = read_json(source)
            if tokenizer["model"]["type"] != "WordPiece":
                raise UserError(f"{source}: its model is {shown(tokenizer['model']['type'])}: expected 'WordPiece'")
            tokens.update({index: token for token, index in tokenizer["model"]["vocab"].items()})
            tokens.update({listed["id"]: listed["content"] for listed in tokenizer.get("added_tokens", [])})
        else:
            return None
        tokens.update({index: token for token, index in _optional(directory / "added_tokens.json").items()})
        decoder = _optional(directory / "tokenizer_config.json").get("added_tokens_decoder", {})
        tokens.update({int(index): listed["content"] for index, listed in decoder.items()})
        wrong_entries = [listed for listed in tokens.items() if [type(part) for part in listed] != [int, str]]
        if wrong_entries:
            raise TypeError(f"expected a whole number and a token, found {shown(wrong_entries[0])}")
        ids = sorted(tokens)
    except OSError as error:
        raise file_error(error, f"cannot read {source}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedData(f"{source} or its added tokens are damaged: {shown(error)}") from error
    if len(ids) != vocab_size or ids[0] != 0 or ids[-1] != vocab_size - 1:
        raise UserError(
            f"{source} has {len(ids)} tokens (largest id {shown(ids[-1]) if ids else 'none'}), but {config} has "
            f"vocab_size = {vocab_size}: expected the vocabulary that the model was trained with"
        )
    return [tokens[index] for index in ids]


def read_lowercase(directory: Path) -> bool:
    """Whether the tokenizer lower-cases, as tokenizer_config.json or tokenizer.json says; True if neither says it.

    Raises DamagedData if their value is neither true nor false.
    """
    return read_stated_casing(directory) is not False


def read_casing(directory: Path, vocabulary: list[str] | None) -> tuple[bool | None, str]:
    """Whether text is lower-cased for a checkpoint whose format does not say so, and the source of this answer.

    The sources are, in this order: tokenizer_config.json or tokenizer.json; the directory's name, if it is like
    Google's (uncased_L-12_H-768_A-12, cased_..., multi_cased_..., chinese_...); the vocabulary: an uncased vocabulary
    has no capitals (except in up to 1 % of its tokens, for unusual characters). None if no source gives an answer.
    """
    stated = read_stated_casing(directory)
    if stated is not None:
        return stated, "as its tokenizer says"
    name = Path(directory).resolve().name.lower()
    for word, lowercase in (("uncased", True), ("cased", False), ("chinese", True)):
        if word in name:
            return lowercase, f"as its directory is called {name}"
    words = [token for token in vocabulary or () if not (token.startswith("[") and token.endswith("]"))]
    capitals = sum(token != token.lower() for token in words)
    if capitals > len(words) / 100:
        return False, f"as {capitals:,} tokens of its vocabulary have capitals"
    if any(token != token.upper() for token in words):
        return (
            True,
            "as its vocabulary has no capitals" if not capitals else "as its vocabulary has hardly any capitals",
        )
    return None, "nothing tells of it"


def read_stated_casing(directory: Path) -> bool | None:
    """Whether the tokenizer lower-cases, as tokenizer_config.json or tokenizer.json says; None if neither says it."""
    source = directory / "tokenizer_config.json"
    lowercase = _optional(source).get("do_lower_case")
    if lowercase is None:
        source = directory / "tokenizer.json"
        normalizer = _optional(source).get("normalizer") or {}
        lowercase = normalizer.get("lowercase") if isinstance(normalizer, dict) else normalizer
    if lowercase is not None and type(lowercase) is not bool:
        raise DamagedData(f"{source} is damaged: lower-casing is {shown(lowercase)}: expected true or false")
    return lowercase


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if os.path.lexists(path) else {}
