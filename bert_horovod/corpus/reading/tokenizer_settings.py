"""The settings of a BertTokenizer beside its vocabulary, and the tokenizers library's tokenizer for them."""

import contextlib
import functools
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from bert_horovod.errors import DamagedData, ReportedError, UserError
from bert_horovod.runtime.quiet import native_messages_held_back
from bert_horovod.storage.reading import shown

if TYPE_CHECKING:
    import tokenizers


MAXIMUM_WORD_CHARACTERS = 100  # a longer word is [UNK]
_UNREACHED = "\ue000\uf8ff"  # private-use characters before a token that no text is to reach
NO_ID = -1  # of a token that a tokenizer does not have


class Added(NamedTuple):
    """A token that is found in the text before it is cut into words; it is an entry of the vocabulary too."""

    content: str
    normalized: bool  # whether it is looked for in the normalised text, else in the text as it was written


class SpecialTokens(NamedTuple):
    """The tokens that have a role in rows."""

    pad: str = "[PAD]"
    unknown: str = "[UNK]"  # "": the tokenizer has none, because it has a token for every byte
    cls: str = "[CLS]"  # begins a row
    sep: str = "[SEP]"  # ends a segment
    mask: str = "[MASK]"


BERT_TOKENS = SpecialTokens()


class Pair(NamedTuple):
    """Rows of two texts: [CLS] A [SEP] B [SEP], whatever these tokens are called."""

    separators: int  # [SEP] between A and B: 1, or 2 as in RoBERTa
    typed: bool  # whether B has segment type 1


BERT_PAIR = Pair(1, True)


@dataclass(frozen=True)
class TokenizerSettings:
    """How text is normalised and cut before WordPiece."""

    lowercase: bool = True
    strip_accents: bool | None = None  # None: as `lowercase` says
    chinese_apart: bool = True  # whether each Chinese character is a word of its own (tokenize_chinese_chars)
    added: tuple[Added, ...] = ()  # tokens that are found before words are cut, other than the five special ones
    special_tokens: SpecialTokens = BERT_TOKENS

    def __post_init__(self) -> None:
        if self.strip_accents == self.lowercase:
            object.__setattr__(self, "strip_accents", None)  # equal settings compare equal
        object.__setattr__(self, "added", tuple(sorted(self.added)))

    @property
    def strips_accents(self) -> bool:
        """Whether accents are taken off."""
        return self.lowercase if self.strip_accents is None else self.strip_accents

    def cased_as(self, lowercase: bool | None) -> "TokenizerSettings":
        """These settings with another `lowercase`; None: as they are."""
        return self if lowercase is None else replace(self, lowercase=lowercase)

    @property
    def joint(self) -> str:
        """What is to stand before a sentence that follows another one; "" if the ids do not depend on it."""
        return ""

    @property
    def pair(self) -> Pair | None:
        """The rows that it makes of two texts; None: others than this program can make."""
        return BERT_PAIR

    @property
    def unusual(self) -> list[str]:
        """The settings that tensorflow_text's kernels do not have, for people."""
        added = f"{len(self.added)} added tokens ({', '.join(token.content for token in self.added[:3])})"
        return [
            *([] if self.chinese_apart else ["tokenize_chinese_chars = false"]),
            *([added[:100]] if self.added else []),
        ]

    def recorded(self) -> dict[str, Any]:
        """The settings as JSON, without those that are as in Google's BERT: for a manifest."""
        return {
            "lowercase": self.lowercase,
            **({} if self.strip_accents is None else {"strip_accents": self.strip_accents}),
            **({} if self.chinese_apart else {"tokenize_chinese_chars": False}),
            **({"added_tokens": {token.content: token.normalized for token in self.added}} if self.added else {}),
        }

    def hashed(self) -> Any:
        """The settings as part of a hash: `lowercase` alone if the others are as in Google's BERT."""
        return recorded if len(recorded := self.recorded()) > 1 else self.lowercase

    def __str__(self) -> str:
        case = "uncased" if self.lowercase else "cased"
        if self.strip_accents is not None:
            case += f", strip_accents = {str(self.strip_accents).lower()}"
        return ", ".join([case, *self.unusual])


UNCASED, CASED = TokenizerSettings(True), TokenizerSettings(False)


@dataclass(frozen=True)
class JsonTokenizer(TokenizerSettings):
    """A tokenizer of any kind, as a tokenizer.json describes it; the tokenizers library computes it.

    BERT's own WordPiece is not read so, because exports and vocabularies know its settings.
    """

    lowercase: bool = False
    text: str = field(default="", repr=False)  # the content of tokenizer.json, which says all that the others do

    @property
    def sha256(self) -> str:
        """SHA-256, in hexadecimal, of tokenizer.json."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def library(self, roles_are_text: bool = False) -> "tokenizers.Tokenizer":
        """A new tokenizer of the library, which finds special tokens in text, as transformers does.

        `roles_are_text`: the text of the five tokens with a role is plain text.
        """
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(_roles_as_text(self.text, self.special_tokens) if roles_are_text else self.text)
        tokenizer.encode_special_tokens = roles_are_text
        if not roles_are_text:  # transformers finds those too that the file has in its vocabulary alone
            found = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
            tokenizer.add_special_tokens([token for token in self.special_tokens if token and token not in found])
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer

    @property
    def facts(self) -> "_Facts":
        """What the text says, read once."""
        return _facts(self.text)

    def cased_as(self, lowercase: bool | None) -> "JsonTokenizer":
        if lowercase is not None:
            raise UserError(f"{self}: the file itself says whether text is lower-cased; leave --cased, --uncased out")
        return self

    @property
    def joint(self) -> str:
        return self.facts.joint

    @property
    def pair(self) -> Pair | None:
        return self.facts.pair

    @property
    def unusual(self) -> list[str]:
        return [self.facts.kind]

    def recorded(self) -> dict[str, Any]:
        return {
            "lowercase": self.lowercase,
            "tokenizer": {"sha256": self.sha256, **self.special_tokens._asdict()},
        }

    def __str__(self) -> str:
        return f"{self.facts.kind} {self.sha256[:8]}"


class _Facts(NamedTuple):
    """Facts about a tokenizer.json."""

    vocabulary: list[str]  # tokens by id; "" where no token has the id
    special: dict[str, int]  # ids of the special tokens
    kind: str  # for people
    joint: str  # a space if text after a space has other ids, as in RoBERTa's byte-level BPE; else nothing
    pair: Pair | None  # see TokenizerSettings.pair


def _roles_as_text(text: str, roles: SpecialTokens) -> str:
    """A tokenizer.json whose only special tokens are those of `roles`, which its model does not make of text either."""
    content = json.loads(text)
    for token in content["added_tokens"]:
        token["special"] = token["content"] in roles
    model = content["model"]
    if model.get("type") != "BPE":  # its merges make no special token
        names = {role: f"{_UNREACHED}{role}" for role in roles if role}
        for token in content["added_tokens"]:
            token["content"] = names.get(token["content"], token["content"])
        vocabulary = model["vocab"]
        if isinstance(vocabulary, dict):
            model["vocab"] = {names.get(token, token): number for token, number in vocabulary.items()}
        else:
            model["vocab"] = [[names.get(token, token), score] for token, score in vocabulary]
        if model.get("unk_token"):
            model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    return json.dumps(content, ensure_ascii=False)


@functools.lru_cache(4)
def _facts(text: str) -> _Facts:
    from tokenizers import Tokenizer

    tokenizer, content = Tokenizer.from_str(text), json.loads(text)
    tokenizer.no_padding()
    ids = tokenizer.get_vocab()
    vocabulary = [""] * (max(ids.values(), default=-1) + 1)
    for token, number in ids.items():
        vocabulary[number] = token
    special = {token["content"]: token["id"] for token in content.get("added_tokens") or [] if token.get("special")}
    byte_level = "ByteLevel" in json.dumps(content.get("pre_tokenizer"))
    kind = f"tokenizer.json ({'byte-level ' if byte_level else ''}{content['model'].get('type', 'of an unnamed kind')})"
    alone, spaced = (tokenizer.encode(each, add_special_tokens=False).ids for each in ("a", " a"))
    one, two = tokenizer.encode("a").ids, tokenizer.encode("a", "a")
    separators, pair = len(two.ids) - 2 * len(one) + 2, None
    if separators in (1, 2) and two.ids == [*one[:-1], *one[-1:] * separators, *one[1:]]:
        pair = Pair(separators, bool(two.type_ids[-1]))
    return _Facts(vocabulary, special, kind, "" if alone == spaced else " ", pair)


def recorded_settings(recorded: dict[str, Any], text: str = "") -> TokenizerSettings:
    """The settings that `TokenizerSettings.recorded` wrote; `text`: of tokenizer.json, if it belongs to them."""
    if tokenizer := recorded.get("tokenizer"):
        return JsonTokenizer(
            text=text, special_tokens=SpecialTokens(*(tokenizer[role] for role in SpecialTokens._fields))
        )
    added = recorded.get("added_tokens", {})
    return TokenizerSettings(
        recorded["lowercase"],
        recorded.get("strip_accents"),
        recorded.get("tokenize_chinese_chars", True),
        tuple(Added(content, normalized) for content, normalized in added.items()),
    )


def token_ids(vocabulary: Sequence[str]) -> dict[str, int]:
    """Ids by token, as in transformers: the last one of a token that is there twice; a place without token has none."""
    ids = {token: number for number, token in enumerate(vocabulary)}
    ids.pop("", None)
    return ids


def library_tokenizer(vocabulary: Sequence[str], settings: TokenizerSettings) -> "tokenizers.Tokenizer":
    """The tokenizers library's tokenizer, which transformers' tokenizers are made of; "[MASK]" is plain text to it."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    if isinstance(settings, JsonTokenizer):
        return settings.library(roles_are_text=True)
    tokenizer = Tokenizer(
        models.WordPiece(token_ids(vocabulary), unk_token="[UNK]", max_input_chars_per_word=MAXIMUM_WORD_CHARACTERS)
    )
    tokenizer.normalizer = normalizer(settings)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_tokens([AddedToken(token.content, normalized=token.normalized) for token in settings.added])
    return tokenizer


def normalizer(settings: TokenizerSettings) -> "tokenizers.normalizers.BertNormalizer":
    """The tokenizers library's normalisation."""
    from tokenizers import normalizers

    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.chinese_apart,
        strip_accents=settings.strip_accents,
        lowercase=settings.lowercase,
    )


@contextlib.contextmanager
def library_at_work(message: str, kind: type[ReportedError] = DamagedData, quiet: bool = True) -> Iterator[None]:
    """Raise an error for what the tokenizers library raises: Exception, or for a panic of its Rust code another.

    `quiet`: the library's own messages are held back, which costs a temporary file.
    """
    try:
        with native_messages_held_back() if quiet else contextlib.nullcontext():
            yield
    except ReportedError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise kind(f"{message}: {shown(error)}") from error


def cutting(settings: TokenizerSettings) -> contextlib.AbstractContextManager[None]:
    """As library_at_work, while texts are cut into tokens with these settings."""
    message = f"the tokenizer {settings} cannot cut a text; expected a tokenizer.json whose expressions end"
    return library_at_work(message, UserError, quiet=False)
