"""Makes the tokenizer of a tokenizer.json and of the files beside it, whatever class of transformers these name.

The file is taken as it is written, with the added tokens that the other files name. Versions of transformers make some
parts anew for some classes, each other ones; the settings that all of them write into the file are written here, too.
"""

import json
from typing import Any

import tokenizers
from tokenizers import AddedToken

Json = dict[str, Any]
GENERAL, GENERAL_5 = "PreTrainedTokenizerFast", "TokenizersBackend"  # of transformers 4 and 5: all is as in the file
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_ROLES = _NAMED[2:]
# BertTokenizer's settings by their names in tokenizer.json, their defaults, and its special tokens.
FLAGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
DEFAULTS = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
BERT_TOKENS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
# Classes whose settings FLAGS, or add_prefix_space, are obeyed in all versions; the fast classes of DPR obey none.
_BERTS = ("DistilBert", "Electra", "LayoutLM", "Lxmert", "MobileBert", "MPNet", "SqueezeBert")
_OBEY_FLAGS = {f"{name}Tokenizer{fast}" for name in _BERTS for fast in ("", "Fast")}
_OBEY_FLAGS |= {f"DPR{part}Tokenizer" for part in ("ContextEncoder", "QuestionEncoder", "Reader")}
_ROBERTAS = ("Bart", "Deberta", "GPT2", "LED", "Longformer", "Mvp", "Roberta")
_OBEY_PREFIX = {f"{name}Tokenizer{fast}" for name in _ROBERTAS for fast in ("", "Fast")}


def tokenizer_of(content: Json, stated: Json, added: Json, name: str | None) -> tokenizers.Tokenizer:
    """The tokenizer of a tokenizer.json (`content`), beside which a class of transformers may be named.

    `stated` is tokenizer_config.json, maybe with special_tokens_map.json; `added` is added_tokens.json.
    """
    stated = {key: value for key, value in stated.items() if value is not None}
    content = content | _settings(content, stated, name)
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content, ensure_ascii=False))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    named = [stated[key] for key in _NAMED if key in stated]
    named += [value for key, value in stated.items() if key.endswith("_token") and key not in _NAMED]
    extra = stated.get("extra_special_tokens") or stated.get("additional_special_tokens") or []
    named += extra.values() if isinstance(extra, dict) else extra
    named = [token for token in named if isinstance(token, str | dict)]
    file_tokens = {token["id"]: token for token in content.get("added_tokens") or []}
    if "added_tokens_decoder" in stated:
        listed = {int(number): token for number, token in stated["added_tokens_decoder"].items()}
    else:
        special = set(map(content_of, named))
        listed = {number: {"content": token, "special": token in special} for token, number in added.items()}
        listed |= file_tokens
    tokens = [listed[number] for number in sorted(listed)]
    known = {content_of(token) for token in [*tokens, *file_tokens.values()]}
    known |= {content_of(stated.get(key)) for key in _ROLES} & _pieces(content)  # settings.library adds these
    for token in named:
        if content_of(token) not in known:
            known.add(content_of(token))
            tokens.append({**({"content": token} if isinstance(token, str) else token), "special": True})
    fields = ("single_word", "lstrip", "rstrip", "normalized", "special")
    tokenizer.add_tokens(
        [AddedToken(token["content"], **{key: token[key] for key in fields if key in token}) for token in tokens]
    )
    return tokenizer


def _settings(content: Json, stated: Json, name: str | None) -> Json:
    """Parts of a tokenizer.json into which the class writes settings."""
    cut, normalizer = content.get("pre_tokenizer") or {}, content.get("normalizer") or {}
    if name in _OBEY_PREFIX and cut.get("type") == "ByteLevel":
        return {"pre_tokenizer": cut | {"add_prefix_space": stated.get("add_prefix_space", False)}}
    if name in _OBEY_FLAGS and normalizer.get("type") == "BertNormalizer":
        flags = {FLAGS[key]: stated.get(key, default) for key, default in DEFAULTS.items()}
        return {"normalizer": normalizer | flags}
    return {}


def _pieces(content: Json) -> set[str]:
    """The tokens of the model of a tokenizer.json."""
    vocabulary = content["model"]["vocab"]
    return set(vocabulary if isinstance(vocabulary, dict) else (piece[0] for piece in vocabulary))


def content_of(token: Any) -> Any:
    """The text of a token in a file of transformers, which is a text or an added token's fields."""
    return token.get("content") if isinstance(token, dict) else token
