"""WordPiece vocabularies: reading, writing and learning one."""

import hashlib
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tokenizers import pre_tokenizers

from bert_horovod.corpus.reading.formats import read_sections
from bert_horovod.corpus.reading.pieces import Piece, piece_reader
from bert_horovod.corpus.reading.sources import SourceFile
from bert_horovod.corpus.reading.tokenizer_settings import MAXIMUM_WORD_CHARACTERS, TokenizerSettings, normalizer
from bert_horovod.errors import UserError, file_error
from bert_horovod.storage.reading import VOCABULARY_BYTES, read_text, shown
from bert_horovod.storage.writing import write_output

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# The ids of Google's vocabularies: [PAD] is 0, [UNK] 100, [CLS] 101, [SEP] 102, [MASK] 103.
_PLACED = ("[PAD]", *(f"[unused{i}]" for i in range(99)), *SPECIAL_TOKENS[1:])
MINIMUM_SIZE = 512
_MAXIMUM_SIZE = 1 << 24  # the limit of model.vocab_size too
MAXIMUM_TOKEN_BYTES = 256  # tensorflow_text accepts no more
_COVERAGE = 0.9998  # share of the text's characters that have an entry; every ASCII character that occurs has one
_RARE = 0.1  # share of the entries that the other characters, the rarest, may take: all of them have entries then
_WORD = re.compile("[^ \n!-/:-@\\[-`{-~]+|[!-/:-@\\[-`{-~]")
_MAXIMUM_WORDS = 1 << 22  # different words held in memory
_TRAINER_CHARACTERS = 1 << 30  # given to the trainer; counts are scaled down above it


def read_vocabulary(path: str | Path) -> list[str]:
    """Read a vocab.txt as transformers does: tokens by id; raises ReportedError if it is no BERT vocabulary.

    A place without a token (an empty line) is "", and a token may be there twice: its id is the last.
    """
    tokens = read_vocabulary_lines(path)
    while tokens and not tokens[-1]:
        tokens.pop()
    require_special_tokens(tokens, f"the vocabulary {path}")
    return tokens


def read_vocabulary_lines(path: str | Path) -> list[str]:
    """The lines of a vocab.txt, empty ones too; special tokens may be missing. Raises ReportedError."""
    try:
        text = read_text(path, limit_bytes=VOCABULARY_BYTES)
    except OSError as error:
        raise file_error(
            error,
            f"cannot read the vocabulary {path}: {error.strerror}; "
            "expected a WordPiece vocab.txt, or make one with: bert-horovod vocab",
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"the vocabulary {path} is not UTF-8 text (byte {error.start}); expected one token a line"
        ) from error
    if not text.strip():
        raise UserError(f"the vocabulary {path} is empty; expected one token a line")
    # Not str.splitlines: Google's Chinese vocabulary has U+2028 as a token.
    lines = text.removeprefix("\ufeff").removesuffix("\n").split("\n")
    lines = [line if line.strip(" \t") else "" for line in lines]
    require_tokens(lines, f"the vocabulary {path}", "line")
    return lines


def require_tokens(tokens: list[str], source: str, place: str) -> None:
    """Raise UserError unless a line of a vocab.txt can hold each token, and the tokenizer takes it.

    `source` names the vocabulary in the message; `place`: "line", counted from 1, or "id".
    """
    for number, token in enumerate(tokens, 1 if place == "line" else 0):
        piece = token.removeprefix("##")
        if (piece.strip() and (token != token.strip() or piece != piece.strip())) or "\n" in token or "\r" in token:
            raise UserError(
                f"{source}, {place} {number}: {shown(token)} has blanks around it or a line break; expected one token "
                "a line and nothing else: remove them (in a vocab.txt with sed 's/[ \\t]*$//')"
            )
        if len(token.encode()) > MAXIMUM_TOKEN_BYTES:
            raise UserError(
                f"{source}, {place} {number}: a token of {len(token.encode()):,} bytes, {token[:20]!r}...; "
                f"expected at most {MAXIMUM_TOKEN_BYTES}: is it a vocabulary?"
            )


def require_special_tokens(tokens: list[str], source: str) -> None:
    """Raise UserError if a special token is missing, or there is no other; `source` names the vocabulary."""
    missing_tokens = sorted(set(SPECIAL_TOKENS).difference(tokens), key=SPECIAL_TOKENS.index)
    if missing_tokens:
        raise UserError(
            f"{source} has no {' '.join(missing_tokens)}; expected {' '.join(SPECIAL_TOKENS)} "
            f"among its {len(tokens)} lines: is it a BERT WordPiece vocabulary?"
        )
    if not any(token and token not in SPECIAL_TOKENS and not token.startswith("[unused") for token in tokens):
        raise UserError(
            f"{source} has special tokens alone, so that no text can be made of it; expected the vocabulary that the "
            "model was trained with (transformers 5 writes such files where it finds none)"
        )


def vocabulary_text(vocabulary: list[str]) -> str:
    """A vocabulary as the text of its file."""
    return "\n".join(vocabulary) + "\n"


def vocabulary_hash(vocabulary: list[str]) -> str:
    """SHA-256, in hexadecimal, of the vocabulary's file."""
    return hashlib.sha256(vocabulary_text(vocabulary).encode()).hexdigest()


def write_vocabulary(path: str | Path, vocabulary: list[str]) -> None:
    """Write a vocabulary file whole or not at all; raises ReportedError when that fails."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise file_error(error, f"cannot write the vocabulary {path}: {error.strerror}") from error
    write_output(path, vocabulary_text(vocabulary))


def learn_vocabulary(
    sources: list[SourceFile],
    size: int,
    lowercase: bool,
    documents: str = "file",
    text_field: str = "text",
    bad_lines: str | None = None,
) -> list[str]:
    """Learn a WordPiece vocabulary; the same sources give the same vocabulary, byte for byte.

    Ids are in this order: the special tokens and 99 unused ones as in Google's vocabularies; single characters by code
    point; the same as "##" continuations; then pieces in the order in which they were learned, frequent ones first. A
    small corpus may give fewer than `size` tokens. Raises ReportedError for input that cannot be read or has no words.
    """
    if not MINIMUM_SIZE <= size <= _MAXIMUM_SIZE:
        raise UserError(
            f"--size {shown(size)}: expected at least {MINIMUM_SIZE} tokens, as the characters need entries too, and "
            f"at most {_MAXIMUM_SIZE:,}"
        )
    counts = count_words(sources, TokenizerSettings(lowercase), documents, text_field, bad_lines)
    alphabet = _alphabet(counts, size - len(_PLACED))
    words = {word: count for word, count in sorted(counts.items()) if alphabet.issuperset(word)}
    continuations = sorted({f"##{character}" for word in words for character in word[1:]})
    return _train(words, size, sorted(alphabet), continuations)


def count_words(
    sources: list[SourceFile],
    settings: TokenizerSettings,
    documents: str = "file",
    text_field: str = "text",
    bad_lines: str | None = None,
) -> Counter[str]:
    """Count words and punctuation marks of all sources, as BertTokenizer cuts them; UserError if there are none."""
    normalise = Normaliser(settings)
    counts: Counter[str] = Counter()
    for source in sources:
        with piece_reader(Piece(source, 0, source.bytes), text_field, bad_lines) as reader:
            for section in read_sections(reader, documents):
                counts.update(_WORD.findall(_lower_ascii(normalise(section.text), settings.lowercase)))
                if len(counts) > _MAXIMUM_WORDS:
                    _forget_rare(counts)
    for word in [word for word in counts if len(word) > MAXIMUM_WORD_CHARACTERS]:
        del counts[word]
    if not counts:
        raise UserError("the input holds no words; expected text: look at --input")
    return counts


def _lower_ascii(text: str, lowercase: bool) -> str:
    return text.encode().lower().decode() if lowercase else text  # str.lower() would turn a final σ into ς


def _forget_rare(counts: Counter[str]) -> None:
    threshold = 1
    while len(counts) > _MAXIMUM_WORDS // 2:
        for word in [word for word, count in counts.items() if count <= threshold]:
            del counts[word]
        threshold *= 2


def _alphabet(counts: Counter[str], entries: int) -> set[str]:
    """The characters that get entries.

    A character that continues a word needs two entries, itself and its continuation piece. One that is always a word of
    its own, as Chinese and Japanese ones are, needs one, and no piece is ever made of it. So those that continue words
    get two thirds of the entries at most, which leaves room for pieces of words, and the others what is left.
    """
    characters: Counter[str] = Counter()
    for word, count in counts.items():
        for character in word:
            characters[character] += count
    continues = set().union(*(word[1:] for word in counts))
    order = sorted(characters, key=lambda character: (not character.isascii(), -characters[character], character))
    share = itertools.accumulate(characters[character] for character in order)
    needed = _COVERAGE * characters.total()
    rare = [
        character
        for character, covered in zip(order, share, strict=True)
        if covered - characters[character] >= needed and not character.isascii()
    ]
    if sum(1 + (character in continues) for character in rare) > _RARE * entries:
        order = order[: len(order) - len(rare)]
    alphabet, left, left_for_words = set(), entries, entries * 2 // 3
    for character in order:
        cost = 1 + (character in continues)
        if cost <= left and (cost == 1 or cost <= left_for_words):
            alphabet.add(character)
            left -= cost
            left_for_words -= cost if cost > 1 else 0
    return alphabet


def _train(words: dict[str, int], size: int, alphabet: list[str], continuations: list[str]) -> list[str]:
    import tokenizers

    # The "##" pieces are declared beforehand, because the trainer would number them in the order of a hash table, which
    # varies from run to run; and it decides between equally frequent pairs by these ids.
    first = [*_PLACED, *alphabet, *continuations]
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=max(size, len(first)),
        min_frequency=2,
        show_progress=False,
        special_tokens=first,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix="##",
    )
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(_repeated(words), trainer)
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.__getitem__)


def _repeated(words: dict[str, int]) -> Iterator[str]:
    total = sum((len(word) + 1) * count for word, count in words.items())
    divisor = max(1, -(-total // _TRAINER_CHARACTERS))
    for word, count in words.items():
        times_left = -(-count // divisor)
        while times_left > 0:
            now = min(times_left, 4096)
            yield f"{word} " * now
            times_left -= now


_RUN = re.compile("[^\n\x20-\x7e]+")
_LONG_RUN = 12  # characters; longer runs seldom repeat
_REMEMBERED_RUNS = 1 << 17


class Normaliser:
    r"""BertTokenizer's normalisation of text, as a function on whole texts; line ends ("\n") stay.

    Results are cached, because most runs of characters other than printable ASCII come again.

    Non-ASCII punctuation and CJK characters come out with spaces around them. ASCII letters keep their case: the caller
    makes them lowercase, because bytes.lower() is the fastest way.
    """

    def __init__(self, settings: TokenizerSettings):
        self._normalizer = normalizer(settings)
        self._pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self._runs: dict[str, str] = {}
        self._characters = _Characters(self._normalise)

    def __call__(self, text: str) -> str:
        """Normalise a text of any length."""
        return _RUN.sub(self._replace, text)

    def _replace(self, match: re.Match) -> str:
        run = match[0]
        if len(run) > _LONG_RUN:
            try:
                return "".join(map(self._characters.__getitem__, run))
            except KeyError:  # a combining mark: normalisation may change the order of marks
                return self._normalise(run)
        normalised = self._runs.get(run)
        if normalised is None:
            if len(self._runs) >= _REMEMBERED_RUNS:
                self._runs.clear()
            normalised = self._runs[run] = self._normalise(run)
        return normalised

    def _normalise(self, run: str) -> str:
        # The run is put between two letters, so that spaces at its ends are kept.
        pieces = self._pre_tokenizer.pre_tokenize_str(f"a{self._normalizer.normalize_str(run)}a")
        return " ".join(piece for piece, _ in pieces)[1:-1]


class _Characters(dict):
    """A cache from each character to its normalised text; KeyError for combining marks."""

    def __init__(self, normalise: Callable[[str], str]):
        super().__init__()
        self._normalise = normalise

    def __missing__(self, character: str) -> str:
        if unicodedata.combining(character):
            raise KeyError(character)
        normalised = self[character] = self._normalise(character)
        return normalised


def casing(vocabulary: list[str]) -> tuple[bool, str | None]:
    """Whether a vocabulary is of lower-cased text, and why; no reason: nothing tells.

    An uncased vocabulary has no capitals, except in up to 1 % of its tokens, for unusual characters.
    """
    words = [token for token in vocabulary if not (token.startswith("[") and token.endswith("]"))]
    capitals = sum(token != token.lower() for token in words)
    if capitals > len(words) / 100:
        return False, f"as {capitals:,} tokens of its vocabulary have capitals"
    if any(token != token.upper() for token in words):
        return True, f"as its vocabulary has {'hardly any' if capitals else 'no'} capitals"
    return True, None
