r"""Cuts text into pieces whose token ids do not depend on their neighbours, for kinds of tokenizers that are known.

A piece is a run of characters of one class, with the space before it. The tokenizers library is asked for the class of
each character when it is first seen.

- byte level: letters, numbers and other characters, as GPT-2's pattern has them, and its contractions ("'s").
- words: parts of words, and characters that BERT's pre-tokenizer and its like take from words, such as punctuation.
- spaces: all that is between two spaces; so Metaspace and others take words, with their punctuation.
- letters: so many letters, of a sequence.
"""

import json
import re
import unicodedata
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_horovod.corpus.reading.sequences import cut_letters

if TYPE_CHECKING:
    import tokenizers

# Classes of characters. ALONE: not in one piece with the next such character; its later bytes in UTF-8 are INSIDE.
# END: "\n", the end of a sentence. ODD: the rule does not hold for a sentence with such a character.
_UNASKED, _SPACE, _WORD, _NUMBER, _OTHER, _ALONE, _INSIDE, _END, _ODD = range(9)
# The letter that stands for each byte in GPT-2's vocabulary: itself if it is printable, else the next one from 256 on.
_UNPRINTABLE = [*range(33), *range(127, 161), 173]
_LETTER_OF_BYTE = {byte: 256 + number for number, byte in enumerate(_UNPRINTABLE)}
# Components of tokenizers, by their names in tokenizer.json.
_CUT_AT_SPACES = frozenset(("BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Metaspace"))
_CUT_WITHIN_WORDS = frozenset(("Punctuation", "Digits"))
_NORMALISE_CHARACTERS = frozenset(("BertNormalizer", "Lowercase", "NFD", "StripAccents"))
_NORMALISE_WORDS = frozenset(("NFC", "NFKC", "NFKD", "Nmt", "Precompiled", "Replace", "Strip"))


class SplitRule:
    """Where text is cut, and what the tokenizer's model gets for a piece."""

    begins_with_space = False  # whether a space is put before a sentence that has none
    needs_nfc = False  # whether the rule holds for text in Unicode's NFC only
    odd_spaces = True  # whether it does not hold for a sentence with two spaces together, or one at its end
    added: "re.Pattern[str] | None" = None  # it does not hold for a text with one of these added tokens

    def __init__(self, library: "tokenizers.Tokenizer"):
        self._normalizer, self._pre_tokenizer = library.normalizer, library.pre_tokenizer
        self._odd_characters = {" "} if self.odd_spaces else set()
        self._classes = np.zeros(0x110000, np.uint8)  # by code point; pages that are not touched take no memory
        self._classes[[ord(" "), ord("\n")]] = _SPACE, _END
        self._of_byte = bytes([*self._classes_of(np.arange(128)).tolist(), *(_UNASKED for _ in range(128))])

    def excludes(self, text: str) -> bool:
        """Whether the rule does not hold for a sentence with this text."""
        return (
            "\n" in text
            or "\0" in text  # tokenizer.py cannot have it
            or (self.added is not None and self.added.search(text) is not None)
            or (self.needs_nfc and not unicodedata.is_normalized("NFC", text))
        )

    def classes(self, text: bytes, is_ascii: bool) -> np.ndarray:
        """The class of each byte of a text in UTF-8: uint8 [bytes]."""
        classes = np.frombuffer(text.translate(self._of_byte), np.uint8)
        if is_ascii:
            return classes
        classes, encoded = classes.copy(), np.frombuffer(text, np.uint8)
        high = np.flatnonzero(encoded >= 0x80)
        high_bytes = encoded[high]
        codes = np.frombuffer(high_bytes.tobytes().decode().encode("utf-32-le"), "<u4")
        of_bytes = np.repeat(self._classes_of(codes), 2 + (codes >= 0x800) + (codes >= 0x10000))
        of_bytes[(of_bytes == _ALONE) & (high_bytes & 0xC0 == 0x80)] = _INSIDE
        classes[high] = of_bytes
        return classes

    def begins(self, text: bytes, is_ascii: bool) -> np.ndarray:
        r"""Where the pieces of a text begin: int64 [pieces]; the text is UTF-8 that ends with "\n"."""
        classes = self.classes(text, is_ascii)
        is_space = classes == _SPACE
        cut = np.empty(len(classes), bool)
        cut[0] = True
        np.not_equal(classes[1:], classes[:-1], out=cut[1:])
        cut[1:] &= ~is_space[:-1]
        cut |= is_space
        cut |= classes == _END
        if not is_ascii:
            cut &= classes != _INSIDE
        self._mend(text, classes, cut)
        return np.flatnonzero(cut)

    def pre_tokens(self, piece: str) -> list[str] | None:
        """What the model gets for a piece; None: the rule does not hold for a sentence with it."""
        if piece[-1] in self._odd_characters:
            return None
        normal = self._normalise(piece)
        return [pre_token for pre_token, _ in self._pre_tokenizer.pre_tokenize_str(normal)]

    def _mend(self, text: bytes, classes: np.ndarray, cut: np.ndarray) -> None:
        """Change the cuts where the classes do not tell them."""

    def _classes_of(self, codes: np.ndarray) -> np.ndarray:
        classes = self._classes.take(codes)
        if not classes.all():
            for code in np.unique(codes[classes == _UNASKED]).tolist():
                self._classes[code] = asked = self._class_of(chr(code))
                if asked == _ODD:
                    self._odd_characters.add(chr(code))
            classes = self._classes.take(codes)
        return classes

    def _class_of(self, character: str) -> int:
        raise NotImplementedError

    def _normalise(self, text: str) -> str:
        return self._normalizer.normalize_str(text) if self._normalizer else text


class ByteLevelRule(SplitRule):
    """GPT-2's pattern; a piece is a pre-token."""

    def __init__(self, library: "tokenizers.Tokenizer", begins_with_space: bool):
        from tokenizers import Regex, pre_tokenizers

        self._kinds = [
            (kind, pre_tokenizers.Split(Regex(pattern), "removed"))
            for kind, pattern in ((_WORD, r"\p{L}"), (_NUMBER, r"\p{N}"), (_ODD, r"\s"))
        ]
        super().__init__(library)
        self.begins_with_space = begins_with_space
        self.needs_nfc = self._normalizer is not None

    def pre_tokens(self, piece: str) -> list[str] | None:
        if piece[-1] in self._odd_characters:
            return None
        return [piece.encode().decode("latin-1").translate(_LETTER_OF_BYTE)]

    def _class_of(self, character: str) -> int:
        if self._normalizer is not None and unicodedata.category(character) == "Cn":
            return _ODD  # the library's Unicode may be newer, and compose it with others
        return next((kind for kind, split in self._kinds if not split.pre_tokenize_str(character)), _OTHER)

    def _mend(self, text: bytes, classes: np.ndarray, cut: np.ndarray) -> None:
        encoded = np.frombuffer(text + b"\n\n", np.uint8)
        places = np.flatnonzero(encoded[: len(text)] == ord("'"))
        before = classes[places - 1]  # before the first byte: the last one, "\n"
        places = places[(before != _SPACE) & (before != _OTHER)]
        pairs = encoded[places + 1].astype(np.int64) << 8 | encoded[places + 2]
        two = np.isin(pairs, [int.from_bytes(pair, "big") for pair in (b"re", b"ve", b"ll")])
        one = np.isin(pairs >> 8, list(b"stmd"))
        cut[places[one | two] + 1] = False
        cut[places[one] + 2] = True
        cut[places[two] + 3] = True


class WordsRule(SplitRule):
    """Characters that the pre-tokenizer takes from words make pieces of their own."""

    odd_spaces = False

    def __init__(self, library: "tokenizers.Tokenizer"):
        super().__init__(library)
        printable = map(chr, range(33, 127))
        # Characters that are neither changed nor cut: words of them need no normalizer and pre-tokenizer.
        self._unchanged = frozenset(each for each in printable if self._cut(f" {each}a{each}") == [f"{each}a{each}"])

    def pre_tokens(self, piece: str) -> list[str] | None:
        word = piece.lstrip(" ")
        return [word] if word and self._unchanged.issuperset(word) else super().pre_tokens(piece)

    def _class_of(self, character: str) -> int:
        cut, twice = (self._cut(f"a{characters}a") for characters in (character, character * 2))
        if cut == ["aa"]:  # a character that is left out, as control characters are
            return _WORD if self._cut("a!!a") == ["a", "!", "!", "a"] else _ODD
        if len(cut) == 1:
            return _WORD
        if cut[0] != "a" or cut[-1] != "a":
            return _ODD
        return _OTHER if character.isascii() or len(twice) == len(cut) else _ALONE

    def _cut(self, text: str) -> list[str]:
        return [pre_token for pre_token, _ in self._pre_tokenizer.pre_tokenize_str(self._normalise(text))]


class SpacesRule(SplitRule):
    """A piece ends before the next space."""

    def __init__(self, library: "tokenizers.Tokenizer", only_metaspace: bool):
        super().__init__(library)
        # Whether ASCII pieces need no normalizer and become one pre-token: asked of every character.
        ascii_words = [f" {chr(code)}a" for code in range(33, 127)]
        self._ascii_is_plain = only_metaspace and all(
            super(SpacesRule, self).pre_tokens(word) == ["\u2581" + word[1:]] for word in ascii_words
        )

    def pre_tokens(self, piece: str) -> list[str] | None:
        if self._ascii_is_plain and self.added is None and piece.isascii() and piece[-1] not in self._odd_characters:
            return ["\u2581" + piece.lstrip(" ")]
        # A mark behind a space: a normal form may make one character of both.
        if unicodedata.category(piece.lstrip(" ")[:1] or " ")[0] == "M":
            return None
        if self.added is not None and self.added.search(self._normalise(piece)):
            return None
        return super().pre_tokens(piece)

    def _class_of(self, character: str) -> int:
        normal = self._normalise(f"a{character}a")
        kept = len(normal) > 2 and normal[0] == normal[-1] == "a" and not re.search("[\\s\u2581]", normal)
        return _WORD if kept and unicodedata.category(character)[0] in "LMNPS" else _ODD


class LettersRule(SplitRule):
    """So many letters from a sentence's begin, and what is left behind the last of these by letters."""

    def __init__(self, library: "tokenizers.Tokenizer", letters: int):
        super().__init__(library)
        self._letters, self._plain = letters, bytes(np.flatnonzero(self._classes[:128] == _WORD).tolist())

    def excludes(self, text: str) -> bool:
        return bool(text.encode().translate(None, self._plain)) or super().excludes(text)

    def begins(self, text: bytes, is_ascii: bool) -> np.ndarray:
        ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
        starts = np.append(0, ends[:-1] + 1)
        places = np.arange(len(text)) - np.repeat(starts, ends - starts + 1)
        whole = np.repeat((ends - starts) // self._letters * self._letters, ends - starts + 1)
        return np.flatnonzero((places % self._letters == 0) | (places >= whole))

    def pre_tokens(self, piece: str) -> list[str] | None:
        return [self._normalise(piece)]

    def _class_of(self, character: str) -> int:
        return _WORD if len(self._normalise(character)) == 1 else _ODD


def rule_of(library: "tokenizers.Tokenizer") -> SplitRule | None:
    """The rule for a tokenizer; None if no rule is known to hold for it."""
    from tokenizers import models

    if isinstance(library.model, models.BPE) and library.model.dropout:
        return None
    tokens = library.get_added_tokens_decoder().values()
    added = sorted({token.content for token in tokens if not (token.special and library.encode_special_tokens)})
    if any(" " in content.strip(" ") or content == " " for content in added):
        return None
    normalizers, pre_tokenizers = _components(library.normalizer), _components(library.pre_tokenizer)
    names = {component["type"] for component in normalizers}
    rule: SplitRule | None = None
    if _is_gpt2(pre_tokenizers) and names <= {"NFC"}:
        rule = ByteLevelRule(library, pre_tokenizers[-1]["add_prefix_space"])
    elif (
        len(pre_tokenizers) == 1
        and (letters := cut_letters(pre_tokenizers[0]))
        and all(map(_is_by_letters, normalizers))
    ):
        rule = LettersRule(library, letters)
    elif _cuts_at_spaces(pre_tokenizers) and all(map(_is_by_words, normalizers)):
        by_character = names <= _NORMALISE_CHARACTERS and all(part["type"] != "Metaspace" for part in pre_tokenizers)
        rule = (
            WordsRule(library)
            if by_character and not added
            else SpacesRule(library, _is_plain(pre_tokenizers, normalizers))
        )
    added = [content for content in added if content.strip(" ")]  # two spaces are odd anyway
    if rule is not None and added:
        added += [library.normalizer.normalize_str(content) for content in added] if library.normalizer else []
        rule.added = re.compile("|".join(map(re.escape, filter(None, added))))
    return rule


def _components(part: Any) -> list[dict[str, Any]]:
    """The settings of a normalizer or pre-tokenizer, or of those that it is a sequence of."""
    settings = [] if part is None else [json.loads(part.__getstate__())]
    while any(each["type"] == "Sequence" for each in settings):
        settings = [inner for each in settings for inner in each.get("normalizers", each.get("pretokenizers", [each]))]
    return settings


def _is_gpt2(components: list[dict[str, Any]]) -> bool:
    """Whether these pre-tokenizers cut by GPT-2's pattern, into letters that stand for bytes."""
    if [component["type"] for component in components] != ["ByteLevel"]:
        return False
    return bool(components[0].get("use_regex", True))


def _cuts_at_spaces(components: list[dict[str, Any]]) -> bool:
    """Whether these pre-tokenizers never take a space and what is before it into one piece."""
    names = {component["type"] for component in components}
    known = names <= _CUT_AT_SPACES | _CUT_WITHIN_WORDS
    return known and bool(names & _CUT_AT_SPACES) and all(component.get("split", True) for component in components)


def _is_plain(pre_tokenizers: list[dict[str, Any]], normalizers: list[dict[str, Any]]) -> bool:
    """Whether the library changes nothing of ASCII words but, maybe, single characters, and puts U+2581 before each."""
    metaspace = pre_tokenizers[-1]
    return (
        {part["type"] for part in pre_tokenizers} <= {"Metaspace", "WhitespaceSplit"}
        and metaspace.get("replacement") == "\u2581"
        and metaspace.get("prepend_scheme") == "always"
        and not any(part["type"] == "Replace" and part["pattern"].get("String", " ").strip(" ") for part in normalizers)
    )


def _is_by_letters(component: dict[str, Any]) -> bool:
    """Whether a normalizer takes white space away, or changes a letter into one."""
    if component["type"] != "Replace":
        return False
    blanks = component["pattern"] == {"Regex": r"\s"} and not component["content"]
    return blanks or len(component["pattern"].get("String", "")) == len(component["content"]) == 1


def _is_by_words(component: dict[str, Any]) -> bool:
    """Whether a normalizer changes words alone, whatever stands around them."""
    if component["type"] != "Replace":
        return component["type"] in _NORMALISE_CHARACTERS | _NORMALISE_WORDS
    pattern, content = component["pattern"], component["content"]
    if pattern in ({"Regex": " {2,}"}, {"String": "  "}):
        return True  # a sentence with two spaces together is odd
    return "String" in pattern and " " not in pattern["String"] + content
