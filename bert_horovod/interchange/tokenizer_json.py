"""Reads and writes a tokenizer.json, the file of the tokenizers library, and says whether it can be worked with."""

import base64
import binascii
import json
import string
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bert_horovod.batches.layout import ordinary_ids, special_ids
from bert_horovod.corpus.reading.tokenizer_settings import (
    JsonTokenizer,
    TokenizerSettings,
    library_at_work,
    library_tokenizer,
)
from bert_horovod.errors import DamagedData, UserError
from bert_horovod.interchange.tokenizer_classes import FLAGS
from bert_horovod.storage.reading import shown

if TYPE_CHECKING:
    import tokenizers


# By part: the values of BERT's tokenizer. A part or value may be missing.
_PARTS = {
    "model": {"unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
    "normalizer": {"type": "BertNormalizer", "clean_text": True},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
}
# Rows that its post_processor makes: of each piece its token or sequence, and its segment.
_ROWS = {
    "single": [("[CLS]", 0), ("A", 0), ("[SEP]", 0)],
    "pair": [("[CLS]", 0), ("A", 0), ("[SEP]", 0), ("B", 1), ("[SEP]", 1)],
}


class TokenizerJson(NamedTuple):
    """The content of a tokenizer.json."""

    vocabulary: list[str]  # by id; "": no token has it
    added: dict[int, dict[str, Any]]  # added tokens by id, with the fields of tokenizers.AddedToken
    makes_rows: bool  # whether it adds [CLS] and [SEP]
    flags: dict[str, Any]  # what its normalizer says, by the names of tokenizer_config.json


def read_tokenizer_json(path: Path, content: dict[str, Any], vocab_size: int) -> TokenizerJson:
    """Take a tokenizer.json apart; raises UserError if it is no BERT's or too large for the model, and DamagedData."""
    try:
        if not isinstance(model := content.get("model"), dict):
            raise DamagedData(f"{path} is damaged: its model is {shown(model)}: expected a WordPiece")
        kind = model.get("type", "WordPiece" if "continuing_subword_prefix" in model else None)
        if kind != "WordPiece":
            raise UserError(f"{path}: its model is {shown(kind)}: expected 'WordPiece', as BERT's")
        for part, expected in _PARTS.items():
            theirs = {"type": None} if content.get(part, {}) is None else content.get(part, {})
            for key, value in expected.items():
                if theirs.get(key, value) != value:
                    raise UserError(
                        f"{path}: {part}.{key} = {shown(theirs[key])} is not supported: expected {value!r}, as "
                        "BertTokenizer has it"
                    )
        _refuse_other_rows(path, content)
        require_sound(path, content)
        ids = model["vocab"]
        wrong = next(([token, number] for token, number in ids.items() if type(number) is not int or number < 0), None)
        if wrong:
            raise TypeError(f"expected a token and its id, found {shown(wrong)}")
        if (largest := max(ids.values())) >= vocab_size:
            raise UserError(
                f"{path} has {len(ids)} tokens, the largest id is {shown(largest)}, but the model has vocab_size = "
                f"{vocab_size}: expected the vocabulary that the model was trained with"
            )
        vocabulary = [""] * (largest + 1)
        for token, number in ids.items():
            if vocabulary[number]:
                raise TypeError(f"{shown(vocabulary[number])} and {shown(token)} have the same id {number}")
            vocabulary[number] = token
        added = {listed["id"]: listed for listed in content.get("added_tokens", [])}
        for number, listed in added.items():
            if type(number) is not int or type(listed["content"]) is not str or not listed["content"]:
                raise TypeError(f"expected an added token, found {shown(listed)}")
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration) as error:
        raise DamagedData(f"{path} or its added tokens are damaged: {shown(error)}") from error
    normalizer = content.get("normalizer") or {}
    flags = {name: normalizer[key] for name, key in FLAGS.items() if key in normalizer}
    return TokenizerJson(vocabulary, added, bool(content.get("post_processor")), flags)


def tokenizer_json(settings: TokenizerSettings, vocabulary: list[str], special: Collection[str]) -> dict[str, Any]:
    """The content of a tokenizer.json: BERT's tokenizer with these settings and the `special` tokens."""
    from tokenizers import decoders, processors

    tokenizer = library_tokenizer(vocabulary, settings)
    tokenizer.add_special_tokens([*special, *(token.content for token in settings.added if not token.normalized)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.decoder = decoders.WordPiece()
    return json.loads(tokenizer.to_str())


def _refuse_other_rows(path: Path, content: dict[str, Any]) -> None:
    """Raise UserError if the post_processor makes other rows than BERT's; without one, the class decides."""
    processor = content.get("post_processor") or {"type": "BertProcessing"}
    rows = {}
    if processor["type"] == "TemplateProcessing":
        pieces = {name: [next(iter(piece.values())) for piece in processor[name]] for name in _ROWS}
        rows = {name: [(piece["id"], piece["type_id"]) for piece in row] for name, row in pieces.items()}
    elif processor["type"] == "BertProcessing":
        ends = [processor.get(name, [token])[0] for name, token in (("cls", "[CLS]"), ("sep", "[SEP]"))]
        rows = _ROWS if ends == ["[CLS]", "[SEP]"] else {}
    if rows != _ROWS:
        raise UserError(
            f"{path}: post_processor = {shown(processor)} is not supported: expected rows [CLS] A [SEP] and "
            "[CLS] A [SEP] B [SEP], as BertTokenizer makes them"
        )


_MOST_GROWTH = 32  # times a normalizer may lengthen a text
_MOST_PREPENDED = 256  # characters a normalizer may put before a text, or make of one character
_RUN = 200  # equal characters in a text on which a regular expression that backtracks explodes
_SAMPLES = 1000  # tokens of the vocabulary of which a text is made


def require_sound(file: Path, content: dict[str, Any]) -> None:
    """Raise ReportedError for a tokenizer.json (`content`) that lacks a model or tokens, or that must not be run."""
    model = content.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict | list):
        raise DamagedData(f"{file} is damaged: its model is {shown(model)}: expected one with a vocabulary")
    if not isinstance(content.get("added_tokens", []), list | None):
        raise DamagedData(f"{file} is damaged: added_tokens is {shown(content['added_tokens'])}: expected a list")
    if not model["vocab"]:
        raise UserError(f"{file} has an empty vocabulary: expected the tokenizer that a model was trained with")
    if model.get("dropout"):
        raise UserError(
            f"{file}: model.dropout = {shown(model['dropout'])} cuts words at random, so that the same text would have "
            "other ids each time; expected null: set it so in the file"
        )
    if "merges" in model and not model["merges"] and not model.get("ignore_merges"):
        reached = {token.get("content") for token in content.get("added_tokens") or [] if isinstance(token, dict)}
        affixes = [model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""]
        unreached = [
            token
            for token in model["vocab"]
            if token not in reached
            and len(token.removeprefix(affixes[0]).removesuffix(affixes[1])) > 1
            and not token.startswith("<")
        ]
        if unreached:
            raise UserError(
                f"{file}: its BPE has no merges, so that no text is ever cut into {shown(unreached[0])} and "
                f"{len(unreached) - 1:,} other tokens; expected the merges of the model's tokenizer: save it again"
            )
    try:
        growths = [(part, *_growth(content.get(part))) for part in ("normalizer", "decoder")]
    except (AttributeError, KeyError, TypeError, ValueError, binascii.Error) as error:
        raise DamagedData(f"{file} is damaged: its normalizer or decoder: {shown(error)}") from error
    for part, growth, prepended in growths:
        if growth > _MOST_GROWTH or prepended > _MOST_PREPENDED:
            raise UserError(
                f"{file}: its {part} makes a text up to {growth:,.0f} times as long, and puts {prepended:,.0f} "
                f"characters before it; expected at most {_MOST_GROWTH} times and {_MOST_PREPENDED} characters"
            )


def require_text_tokens(file: Path, settings: JsonTokenizer, tokenizer: "tokenizers.Tokenizer") -> None:
    """Raise UserError unless the tokenizer makes ordinary tokens of text; DamagedData if the library fails on some."""
    vocabulary = settings.facts.vocabulary
    try:
        ordinary = ordinary_ids(vocabulary, special_ids(vocabulary, settings))
    except UserError:
        ordinary = []
    if len(ordinary):
        some = ordinary[:: -(-len(ordinary) // _SAMPLES)].tolist()
        texts = [f"{character * _RUN}{end}" for character in f"{string.printable}é日" for end in ("!", "\n x")]
        with library_at_work(f"{file} is damaged: the tokenizers library cannot use it"):
            texts += [tokenizer.decode([number]) for number in some]
            made = {number for text in texts for number in tokenizer.encode(text, add_special_tokens=False).ids}
        if made.intersection(ordinary.tolist()):
            return
    raise UserError(
        f"{file} makes no token of any text but special ones (it has {len(vocabulary):,} tokens, {len(ordinary):,} of "
        "them ordinary): expected the tokenizer that the model was trained with; transformers 5 writes such files "
        "where it finds no vocabulary"
    )


def _growth(part: dict[str, Any] | None) -> tuple[float, float]:
    """How many times as long a text becomes, at most, and how many characters stand before it."""
    kind = (part or {}).get("type")
    if kind == "Sequence":
        growth, prepended = 1.0, 0.0
        for step in part.get("normalizers") or part.get("decoders") or []:
            factor, more = _growth(step)
            growth, prepended = growth * factor, (prepended + more) * factor
        return growth, prepended
    if kind == "Prepend":
        return 1.0, len(part["prepend"])
    if kind == "Replace":
        literal = part["pattern"].get("String", "")  # a regular expression may match nothing, everywhere
        return max(1.0, len(part["content"]) / len(literal) if literal else 1.0 + len(part["content"])), 0.0
    if kind == "Precompiled":
        charsmap = part["precompiled_charsmap"]
        charsmap = base64.b64decode(charsmap) if isinstance(charsmap, str) else bytes(charsmap)
        end_of_trie = 4 + int.from_bytes(charsmap[:4], "little")
        return 1.0, max(map(len, charsmap[end_of_trie:].split(b"\0")))
    return 1.0, 0.0
