"""Reads and writes tokenizers of any kind: tokenizer.json, and the special tokens by their roles.

Roles are what tokenizer_config.json or special_tokens_map.json say (cls_token and so on). Older files of RoBERTa and
XLM-R do not say them, because their classes in transformers do; then the rows that the tokenizer makes tell the first
and the last token, and usual names of special tokens tell the others.
"""

import json
from pathlib import Path
from typing import Any

from bert_horovod.corpus.reading.tokenizer_settings import JsonTokenizer, SpecialTokens, library_at_work
from bert_horovod.errors import DamagedData, UserError
from bert_horovod.interchange.tokenizer_classes import GENERAL, tokenizer_of
from bert_horovod.interchange.tokenizer_json import require_sound, require_text_tokens
from bert_horovod.storage.reading import shown

# Keys of the roles in files of transformers.
ROLES = {"pad": "pad_token", "unknown": "unk_token", "cls": "cls_token", "sep": "sep_token", "mask": "mask_token"}
MOST_TOKENS = 1 << 24  # the limit of model.vocab_size
_USUAL_NAMES = {"pad": ("<pad>", "[PAD]"), "unknown": ("<unk>", "[UNK]"), "mask": ("<mask>", "[MASK]")}


def json_tokenizer(
    file: Path,
    content: dict[str, Any],
    stated: dict[str, Any],
    vocab_size: int | None,
    added: dict[str, Any],
    name: str | None,
) -> JsonTokenizer:
    """The tokenizer of a tokenizer.json; raises DamagedData if the tokenizers library cannot read it.

    Arguments are those of tokenizer_of; `vocab_size` is the model's number of rows for tokens, None: any.

    Raises UserError if a token has no role or no id, the tokenizer makes other rows of a text than [CLS] A [SEP], or
    the model has too few rows.
    """
    require_sound(file, content)
    damaged = f"{file} is damaged: the tokenizers library cannot read it"
    with library_at_work(damaged):
        tokenizer = tokenizer_of(content, stated, added, name)
        vocabulary, more = content["model"]["vocab"], tokenizer.get_added_tokens_decoder()
        most = max([len(vocabulary) - 1, *(vocabulary.values() if isinstance(vocabulary, dict) else ()), *more])
    if most >= MOST_TOKENS:  # one token with such an id would need gigabytes
        raise UserError(f"{file} has ids up to {most:,}; expected ids below {MOST_TOKENS:,}, the limit of a vocabulary")
    with library_at_work(damaged):
        settings = JsonTokenizer(text=tokenizer.to_str())
        vocabulary, special = settings.facts.vocabulary, settings.facts.special
        row = tokenizer.encode("a")
        without = tokenizer.encode("a", add_special_tokens=False)
    if len(row.ids) != len(without.ids) + 2 or row.ids[1:-1] != without.ids:
        raise UserError(
            f"{file}: of a text A it makes the row {' '.join(row.tokens)[:200]}; expected one token before A and one "
            "behind it, as [CLS] A [SEP]: without a post_processor, transformers adds no [CLS] and [SEP]"
        )
    names = {"cls": row.tokens[0], "sep": row.tokens[-1]}
    for role, usual in _USUAL_NAMES.items():
        names[role] = next((name for name in usual if name in special), "")
    for role, key in ROLES.items():
        token = stated.get(key)
        token = token.get("content") if isinstance(token, dict) else token
        if token is not None and type(token) is not str:
            raise DamagedData(f"{file.parent}: {key} is {shown(token)}: expected a token")
        if token and role in ("cls", "sep") and token != names[role]:
            raise UserError(
                f"{file}: of a text A it makes the row {' '.join(row.tokens)[:200]}, but {key} is {shown(token)}; "
                "expected [CLS] A [SEP] with these"
            )
        names[role] = token or names[role]
    known = set(vocabulary) - {""}  # which stands where no token has the id
    missing = [key for role, key in ROLES.items() if names[role] not in known and (names[role] or role != "unknown")]
    if missing:
        raise UserError(
            f"{file}: no token of it is {' or '.join(missing)}; expected each in tokenizer_config.json, as the name of "
            "a token that tokenizer.json has"
        )
    if vocab_size is not None and len(vocabulary) > vocab_size:
        raise UserError(
            f"{file} has ids up to {len(vocabulary) - 1}, but the model has vocab_size = {vocab_size}: expected the "
            "tokenizer that the model was trained with"
        )
    settings = JsonTokenizer(text=settings.text, special_tokens=SpecialTokens(**names))
    require_text_tokens(file, settings, tokenizer)
    return settings


def general_config(settings: JsonTokenizer, max_length: int | None = None) -> dict[str, Any]:
    """The content of tokenizer_config.json beside a tokenizer.json; max_length in tokens, None: of no model."""
    tokens, cut = settings.special_tokens._asdict(), json.loads(settings.text).get("pre_tokenizer") or {}
    # transformers 4 obeys this key, 5 tokenizer.json.
    prefix = {"add_prefix_space": cut["add_prefix_space"]} if cut.get("type") == "ByteLevel" else {}
    return {
        "tokenizer_class": GENERAL,
        **prefix,
        "clean_up_tokenization_spaces": False,
        **({"model_max_length": max_length} if max_length else {}),
        **{key: tokens[role] for role, key in ROLES.items() if tokens[role]},
    }
