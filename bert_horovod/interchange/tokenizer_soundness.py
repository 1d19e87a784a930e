"""Whether a tokenizer.json can be worked with: without chance, texts that explode, or a vocabulary that is not used."""

import base64
import binascii
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_horovod.batches.layout import ordinary_ids, special_ids
from bert_horovod.corpus.reading.tokenizer_settings import JsonTokenizer, library_at_work
from bert_horovod.errors import DamagedData, UserError
from bert_horovod.storage.reading import shown

if TYPE_CHECKING:
    import tokenizers

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
    """Raise UserError unless the tokenizer makes ordinary tokens of text; DamagedData if the library fails on some.

    `tokenizer`: as of `settings`, loaded.
    """
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
