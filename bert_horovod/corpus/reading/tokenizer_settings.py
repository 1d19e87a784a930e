"""The settings of a BertTokenizer beside its vocabulary, and the tokenizers library's tokenizer for them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import tokenizers

MAXIMUM_WORD_CHARACTERS = 100  # a longer word is [UNK]


class Added(NamedTuple):
    """A token that is found in the text before it is cut into words; it is an entry of the vocabulary too."""

    content: str
    normalized: bool  # whether it is looked for in the normalised text, else in the text as it was written


@dataclass(frozen=True)
class TokenizerSettings:
    """How text is normalised and cut before WordPiece.

    Args:
        lowercase: whether text is lower-cased.
        strip_accents: whether accents are taken off; None: as `lowercase` says.
        chinese_apart: whether each Chinese character is a word of its own (tokenize_chinese_chars).
        added: tokens that are found before words are cut, other than the five special ones.
    """

    lowercase: bool = True
    strip_accents: bool | None = None
    chinese_apart: bool = True
    added: tuple[Added, ...] = ()

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


def recorded_settings(recorded: dict[str, Any]) -> TokenizerSettings:
    """The settings that `TokenizerSettings.recorded` wrote."""
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
    """The tokenizers library's tokenizer, which transformers' BertTokenizer is made of; it adds no special tokens."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

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
        strip_accents=settings.strips_accents,
        lowercase=settings.lowercase,
    )
