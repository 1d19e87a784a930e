"""The vocabulary and the tokenizer's settings of a Hugging Face BERT directory."""

import json
from pathlib import Path
from typing import Any

from bert_horovod.errors import UserError

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
    """The JSON object in a file; raises UserError for anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged: expected JSON: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: expected a JSON object")
    return content


def read_vocabulary(directory: Path, vocab_size: int) -> list[str] | None:
    """Tokens by id, from vocab.txt, or from tokenizer.json where that is all there is; None without either.

    Raises:
        UserError: the ids, those of added tokens included, are not exactly 0 to vocab_size - 1.
    """
    tokens: dict[int, str] = {}
    source = directory / "vocab.txt"
    try:
        if source.is_file():
            lines = source.read_text(encoding="utf-8").split("\n")
            tokens.update(enumerate(lines[:-1] if lines[-1] == "" else lines))
        elif (source := directory / "tokenizer.json").is_file():
            tokenizer = read_json(source)
            if tokenizer["model"]["type"] != "WordPiece":
                raise UserError(f"{source}: its model is {tokenizer['model']['type']}: expected WordPiece")
            tokens.update({index: token for token, index in tokenizer["model"]["vocab"].items()})
            tokens.update({entry["id"]: entry["content"] for entry in tokenizer.get("added_tokens", [])})
        else:
            return None
        added = directory / "added_tokens.json"
        if added.is_file():
            tokens.update({index: token for token, index in read_json(added).items()})
        decoder = _optional(directory / "tokenizer_config.json").get("added_tokens_decoder", {})
        tokens.update({int(index): entry["content"] for index, entry in decoder.items()})
        ids = sorted(tokens)
    except OSError as error:
        raise UserError(f"cannot read {source}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{source} or its added tokens are damaged: {error!r}") from error
    if ids != list(range(vocab_size)):
        raise UserError(
            f"{source} has {len(ids)} tokens (largest id {ids[-1] if ids else 'none'}), but config.json has "
            f"vocab_size = {vocab_size}: expected the vocabulary that the model was trained with"
        )
    return [tokens[index] for index in ids]


def read_lowercase(directory: Path) -> bool:
    """Whether the tokenizer lower-cases, as tokenizer_config.json or tokenizer.json says; True where neither does."""
    found = _optional(directory / "tokenizer_config.json").get("do_lower_case")
    if found is None:
        found = (_optional(directory / "tokenizer.json").get("normalizer") or {}).get("lowercase", True)
    return bool(found)


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
