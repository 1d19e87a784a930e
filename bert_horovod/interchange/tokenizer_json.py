"""Reads and writes a tokenizer.json, the file of the tokenizers library, of a tokenizer like BERT's."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings, library_tokenizer
from bert_horovod.errors import DamagedData, UserError
from bert_horovod.interchange.tokenizer_classes import FLAGS
from bert_horovod.interchange.tokenizer_soundness import require_sound
from bert_horovod.storage.reading import shown

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
    """Check the content of a tokenizer.json and take it apart.

    Args:
        path: the file, for messages.
        content: what it holds.
        vocab_size: the model's number of rows for tokens.

    Raises:
        UserError: it is no BERT's, or has more tokens than the model.
        DamagedData: it is damaged.
    """
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
