"""Makes of a tokenizer.json, and of the settings beside it, the tokenizer that transformers makes of them, or refuses.

transformers 4 (tried: 4.57) takes the file, and changes in it what the class obeys. transformers 5 (tried: 5.24) takes
the vocabulary and merges alone, and makes the other parts anew, as the class has them, except for its general class.
Both tokenizers are made here; where they give other ids, the files do not say which tokenizer the model was trained
with.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, processors

from bert_horovod.errors import UserError
from bert_horovod.storage.reading import shown

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
_ROBERTA_TOKENS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
_ALBERT_TOKENS = BERT_TOKENS | {"bos_token": "[CLS]", "eos_token": "[SEP]", "unk_token": "<unk>", "pad_token": "<pad>"}
# Rows of two texts, by the tokens CLS and SEP.
_BERT_PAIR, _ROBERTA_PAIR = "CLS $A SEP $B:1 SEP:1", "CLS $A SEP SEP $B SEP"
# Texts on which tokenizers with other parts are compared, beside those of the vocabulary's tokens.
_TEXTS = (
    *("The CAT's lakes, 25 of 1,871.50!", " leading", "two  blanks   ", "a\tb\nc\r\nd  \n e", "Übungen É é e\u0301 ß"),
    *(
        "日本語です。全角\u3000ＡＢＣ",
        "ﬁ ² \u200b 🙂 \u00a0x\u2028y",
        "a\x00b\x07c \ufffd",
        "▁x ▁ ▁▁y",
        "``a'' \u0130ı",
    ),
    *("x" * 101, "", " ", "don't we'll I'M", "नमस्ते สวัสดี 한국어 مرحبا", "soft\u00adhyphen", "[a] <b> (c) {d}"),
)
_WORDS = 2000  # tokens of the vocabulary in such texts


class _Class(NamedTuple):
    """A class of transformers."""

    parts: Callable[[Json, Json], Json] | None = None  # of version 5, of settings and file; None: those of the file
    pair: str | None = None  # rows of two texts in version 5; None: as the file's
    flags: tuple[str, ...] = ()  # settings that version 4 writes into the file's normalizer
    tokens: Json = {}  # noqa: RUF012 - default special tokens
    deaf: tuple[str, ...] = ()  # settings that version 5 does not obey


def _bert(stated: Json, _file: Json) -> Json:
    flags = {name: stated.get(key, DEFAULTS[key]) for key, name in FLAGS.items()}
    return {
        "model": {
            "type": "WordPiece",
            "unk_token": content_of(stated.get("unk_token")),
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
        "normalizer": {"type": "BertNormalizer", "clean_text": True, **flags},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
    }


def _byte_level(stated: Json, _file: Json) -> Json:
    prefix = stated.get("add_prefix_space", False)
    return {
        "model": {"type": "BPE", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False},
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": True},
    }


def _unigram(stated: Json, content: Json, unknown: int | None = 3) -> Json:
    if unknown is None:
        tokens = [piece[0] for piece in content["model"]["vocab"]]
        name = content_of(stated.get("unk_token"))
        unknown = tokens.index(name) if name in tokens else 0
    scheme = "always" if stated.get("add_prefix_space", True) else "never"
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}
    found = content.get("normalizer") or {}
    found = found.get("normalizers", [found])
    return {
        "model": {"type": "Unigram", "unk_id": unknown, "byte_fallback": False},
        "normalizer": next((part for part in found if part.get("type") == "Precompiled"), None),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]},
    }


def _albert(stated: Json, content: Json) -> Json:
    parts = _unigram(stated, content, unknown=1)
    steps = [{"type": "Replace", "pattern": {"String": quotes}, "content": '"'} for quotes in ("``", "''")]
    steps += [] if stated.get("keep_accents", False) else [{"type": "NFKD"}, {"type": "StripAccents"}]
    steps += [{"type": "Lowercase"}] if stated.get("do_lower_case", True) else []
    steps += [parts["normalizer"]] if parts["normalizer"] else []
    return parts | {"normalizer": {"type": "Sequence", "normalizers": steps}}


_BERT = _Class(_bert, _BERT_PAIR, tuple(FLAGS), BERT_TOKENS)
_ROBERTA = _Class(_byte_level, _ROBERTA_PAIR, tokens=_ROBERTA_TOKENS)
_XLM = _Class(_unigram, _ROBERTA_PAIR, tokens=_ROBERTA_TOKENS)
_CLASSES = {
    GENERAL: _Class(),
    GENERAL_5: _Class(),
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "LayoutLMTokenizer"), _BERT),
    **dict.fromkeys(("LxmertTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer"), _BERT),
    "ConvBertTokenizer": _BERT._replace(parts=None),
    **dict.fromkeys(
        (f"DPR{part}Tokenizer" for part in ("ContextEncoder", "QuestionEncoder", "Reader")),
        _BERT._replace(deaf=("do_lower_case",)),
    ),
    # Version 5 has kept these, and makes nothing anew for them.
    **dict.fromkeys(
        (f"DPR{part}TokenizerFast" for part in ("ContextEncoder", "QuestionEncoder", "Reader")),
        _BERT._replace(parts=None),
    ),
    "MPNetTokenizer": _BERT._replace(
        pair=_ROBERTA_PAIR, flags=tuple(FLAGS)[:2], tokens=_ROBERTA_TOKENS | {"unk_token": "[UNK]"}
    ),
    **dict.fromkeys(
        ("RobertaTokenizer", "BartTokenizer", "LEDTokenizer", "LongformerTokenizer", "MvpTokenizer"), _ROBERTA
    ),
    "DebertaTokenizer": _ROBERTA._replace(tokens=BERT_TOKENS | {"bos_token": "[CLS]", "eos_token": "[SEP]"}),
    "GPT2Tokenizer": _Class(_byte_level),
    "XLMRobertaTokenizer": _XLM,
    "CamembertTokenizer": _Class(
        lambda stated, content: _unigram(stated, content, None), _ROBERTA_PAIR, tokens=_ROBERTA_TOKENS
    ),
    "AlbertTokenizer": _Class(_albert, _BERT_PAIR, tokens=_ALBERT_TOKENS),
}
# The class where no file names one, by model_type.
OF_MODEL_TYPE = {
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "albert": "AlbertTokenizer",
    "modernbert": GENERAL,
}
WAY_OUT = (
    "in Python with the transformers that the model was trained with: t = AutoTokenizer.from_pretrained(DIR); "
    "PreTrainedTokenizerFast(tokenizer_object=t.backend_tokenizer, **t.special_tokens_map, "
    "add_prefix_space=getattr(t, 'add_prefix_space', False)).save_pretrained(NEW) makes a tokenizer that all read alike"
)


def plain_name(name: str) -> str:
    """The name of a class without the ending of version 4's fast classes, where version 5 has no class of that name."""
    return name if name in _CLASSES else name.removesuffix("Fast")


def is_known(name: str) -> bool:
    """Whether a tokenizer.json of this class of transformers can be read here."""
    return plain_name(name) in _CLASSES


def as_transformers(
    file: Path, content: Json, stated: Json, added: Json, name: str, model_type: str | None
) -> tokenizers.Tokenizer:
    """The tokenizer that transformers makes of these files; raises UserError if its versions make different ones."""
    name = plain_name(name)
    if name not in _CLASSES:
        raise UserError(
            f"{file}: the class of the tokenizer in transformers is {shown(name)}, which is not supported: expected "
            f"{', '.join(list(_CLASSES)[:4])} or another relative of BERT's or RoBERTa's; {WAY_OUT}"
        )
    kind = _CLASSES[name]
    stated = {key: value for key, value in stated.items() if value is not None}
    file_tokens = {token["id"]: token for token in content.get("added_tokens") or []}
    # transformers adds those that the file lacks to its vocabulary, but the model has no rows for them.
    pieces = _pieces(content)
    known = pieces.union(token["content"] for token in file_tokens.values())
    stated = {key: token for key, token in kind.tokens.items() if token in known} | stated
    if name == GENERAL_5:
        return _made(content, stated, added, file_tokens, pieces, version=5)
    new = _made(_as_version_4(content, kind, stated), stated, added, file_tokens, pieces, version=4)
    if kind.parts is None or model_type == "modernbert":
        theirs, of_model = _made(content, stated, added, file_tokens, pieces, version=5), content["model"]
    else:
        heard = {key: value for key, value in stated.items() if key not in kind.deaf}
        parts = kind.parts(heard, content)
        of_model = parts["model"] | {
            key: content["model"][key] for key in ("vocab", "merges") if key in content["model"]
        }
        if (found := type(new.model).__name__) != of_model["type"]:
            raise UserError(
                f"{file}: its model is {found}, but the class {name} of transformers 5 makes a {of_model['type']} of "
                f"it; expected the class that the tokenizer has; {WAY_OUT}"
            )
        rebuilt = content | parts | {"model": of_model, "added_tokens": []}
        theirs = _made(rebuilt, stated, added, file_tokens, pieces, version=5)
        if kind.pair:
            _set_rows(theirs, kind.pair, *(content_of(stated.get(key)) for key in ("cls_token", "sep_token")))
    if difference := _difference(new, theirs, content["model"], of_model):
        part, text = difference
        ours, yours = (" ".join(each.encode(text).tokens)[:100] for each in (new, theirs))
        raise UserError(
            f"{file}: with the class {name} and the files beside it, versions of transformers make other tokenizers of "
            f"it: they differ in the {part}, and of {shown(text)} 4.57 makes {ours!r}, 5.24 {yours!r}; write into "
            "tokenizer_config.json what tokenizer.json has (such as add_prefix_space, do_lower_case, added "
            f"tokens), or {WAY_OUT}"
        )
    return new


def _as_version_4(content: Json, kind: _Class, stated: Json) -> Json:
    """The file with what version 4 changes in it."""
    changed, cut, normalizer = dict(content), content.get("pre_tokenizer") or {}, content.get("normalizer") or {}
    if cut.get("type") == "ByteLevel":
        changed["pre_tokenizer"] = cut | {"add_prefix_space": stated.get("add_prefix_space", False)}
    if kind.flags and normalizer.get("type") == "BertNormalizer":
        flags = {FLAGS[key]: stated.get(key, DEFAULTS[key]) for key in kind.flags}
        changed["normalizer"] = normalizer | flags
    return changed


def _made(
    content: Json, stated: Json, added: Json, file_tokens: Json, pieces: set[str], version: int
) -> tokenizers.Tokenizer:
    """A tokenizer of the library with the parts of `content` and all added tokens, as a version of transformers has it.

    `added` is added_tokens.json, `file_tokens` are those of tokenizer.json by id, which `content` may lack, `pieces`
    the tokens of the model.
    """
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content, ensure_ascii=False))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    named = [stated[key] for key in _NAMED if key in stated]
    extra = stated.get("extra_special_tokens") or stated.get("additional_special_tokens") or []
    if version == 5:
        named += [value for key, value in stated.items() if key.endswith("_token") and key not in _NAMED]
    named += extra.values() if isinstance(extra, dict) else extra
    named = [token for token in named if isinstance(token, str | dict)]
    if "added_tokens_decoder" in stated:
        listed = {int(number): token for number, token in stated["added_tokens_decoder"].items()}
    else:
        special = set(map(content_of, named))
        listed = {
            number: {"content": token, "special": token in special} for token, number in added.items()
        } | file_tokens
    tokens = [listed[number] for number in sorted(listed)]
    known = {content_of(token) for token in [*tokens, *(content.get("added_tokens") or [])]}
    known |= {content_of(stated.get(key)) for key in _ROLES} & pieces  # settings.library adds those with roles
    for token in named:
        if content_of(token) not in known:
            known.add(content_of(token))
            tokens.append({**({"content": token} if isinstance(token, str) else token), "special": True})
    fields = ("single_word", "lstrip", "rstrip", "normalized", "special")
    tokenizer.add_tokens(
        [AddedToken(token["content"], **{key: token[key] for key in fields if key in token}) for token in tokens]
    )
    return tokenizer


def _set_rows(tokenizer: tokenizers.Tokenizer, pair: str, cls: str, sep: str) -> None:
    single, pair = (row.replace("CLS", cls).replace("SEP", sep) for row in ("CLS $A SEP", pair))
    ids = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys((cls, sep))]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def _difference(
    one: tokenizers.Tokenizer, other: tokenizers.Tokenizer, of_one: Json, of_other: Json
) -> tuple[str, str] | None:
    """The part in which two tokenizers differ so that ids differ, and a text that shows it; None: in none."""
    tokens, other_tokens = (each.get_added_tokens_decoder() for each in (one, other))  # the other tokens are the same
    if lacking := {(str(t), number) for number, t in tokens.items()} ^ {(str(t), i) for i, t in other_tokens.items()}:
        return "added tokens", min(lacking)[0]
    models = [
        {key: value for key, value in model.items() if value and key not in ("vocab", "merges")}
        for model in (of_one, of_other)
    ]
    parts = [
        models,
        *([_state(getattr(each, part)) for each in (one, other)] for part in ("normalizer", "pre_tokenizer")),
    ]
    differing = [
        name
        for name, (ours, yours) in zip(("model", "normalizer", "pre_tokenizer"), parts, strict=True)
        if ours != yours
    ]
    for text, ours, yours in _both(one, other) if differing else ():
        if ours != yours:
            return " and the ".join(differing), text
    for texts in (("a",), ("a", "a")):
        rows = [one.encode(*texts), other.encode(*texts)]
        if len({(*row.ids, *row.type_ids) for row in rows}) > 1:
            return "post_processor", "a"
    unlike = [str(token) for number, token in tokens.items() if repr(token) != repr(other_tokens[number])]
    return ("added tokens", min(unlike)) if unlike else None


def _both(one: tokenizers.Tokenizer, other: tokenizers.Tokenizer) -> Iterator[tuple[str, list[int], list[int]]]:
    """Texts, and the ids that two tokenizers with one vocabulary make of them."""
    count = one.get_vocab_size()
    words = [one.decode([number]) for number in range(0, count, -(-count // _WORDS))]
    texts = [*_TEXTS, *(" ".join(words[first : first + 20]) for first in range(0, len(words), 20))]
    texts += [text.upper() for text in texts] + [text.lower() for text in texts]
    for text, ours, yours in zip(texts, one.encode_batch(texts), other.encode_batch(texts), strict=True):
        yield text, ours.ids, yours.ids


def _pieces(content: Json) -> set[str]:
    """The tokens of the model of a tokenizer.json."""
    vocabulary = content["model"]["vocab"]
    return set(vocabulary if isinstance(vocabulary, dict) else (piece[0] for piece in vocabulary))


def _state(part: Any) -> bytes | None:
    return None if part is None else part.__getstate__()


def content_of(token: Any) -> Any:
    """The text of a token in a file of transformers, which is a text or an added token's fields."""
    return token.get("content") if isinstance(token, dict) else token
