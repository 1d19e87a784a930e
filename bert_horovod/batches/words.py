"""Words of rows: which tokens continue one, spans of words for masking, and words that are masked before all others.

Spans of words for masking, as ALBERT draws them (Lan et al. 2020, arXiv 1909.11942, and its published code). In each
sequence, words are tried in random order until the budget is used:

    n ~ p(n) proportional to 1/n, for n up to the longest span, and up to the words that the segment has left
    span = the word and the n - 1 behind it
    while the span is longer than what is left of the budget and n > 1: n = n - 1
    the span is masked, unless it is still too long or one of its words is masked already

Two things differ from the published code: n is drawn by seed, and no span goes over the end of a segment.

Words that are masked before all others: those of a list, such as the terms of a domain. A word of the list is known by
a 64-bit hash of its pieces, so that all words of a batch are looked up at once; two different words have one hash with
probability 2^-64.
"""

import hashlib
import unicodedata
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_horovod.batches.layout import SpecialIds, ordinary_ids, special_ids
from bert_horovod.batches.order import keyed_hash
from bert_horovod.corpus.reading.tokenizer_settings import (
    NO_ID,
    JsonTokenizer,
    TokenizerSettings,
    cutting,
    library_tokenizer,
    token_ids,
)
from bert_horovod.corpus.store import Store
from bert_horovod.errors import UserError, file_error
from bert_horovod.recipe.settings import Objective
from bert_horovod.storage.reading import read_text, shown

# Kinds of characters. A part is some bytes of a character, which a byte-level token may begin or end with.
_LETTER, _NUMBER, _OTHER, _PART = range(4)
_SAMPLES = "a1!"  # one of each of the first three kinds


class WordBoundaries:
    """The boundaries of words between tokens, as the texts of the tokens tell them.

    In BERT's WordPiece a token continues a word if it begins with ##. In other tokenizers it does if its text does not
    begin with a space, and if the pre-tokenizer would not cut a text between the character before it and its first
    one; the pre-tokenizer is asked for each two kinds of characters: letters, numbers and others. `texts` are those of
    the tokens, without the mark or space that tells whether they continue a word.
    """

    def __init__(self, vocabulary: list[str], settings: TokenizerSettings) -> None:
        self._joins: np.ndarray | None = None
        if not isinstance(settings, JsonTokenizer):
            self._continues = np.array([token.startswith("##") and len(token) > 2 for token in vocabulary])
            self.texts = [token[2 * goes_on :] for token, goes_on in zip(vocabulary, self._continues, strict=True)]
            return
        texts = _decoded(vocabulary, settings)
        self._continues = np.array([not text[:1].isspace() for text in texts])
        self.texts = [text.strip() or text or token for text, token in zip(texts, vocabulary, strict=True)]
        self._first = np.array([_kind(text[:1]) for text in self.texts])
        self._last = np.array([_kind(text[-1:]) for text in self.texts])
        self._joins = _joins(settings)

    def continues(self, ids: np.ndarray) -> np.ndarray:
        """Whether each token continues the word of the token before it: int32 [..., L] to bool of the same shape.

        The first token of L has none before it: for it only its own text tells.
        """
        continues = self._continues[ids]
        if self._joins is not None:
            continues[..., 1:] &= self._joins[self._last[ids[..., :-1]], self._first[ids[..., 1:]]]
        return continues


def _decoded(vocabulary: list[str], settings: JsonTokenizer) -> list[str]:
    """The text of each token after another one, with the space before it, if there is one."""
    decoder = settings.library().decoder
    if decoder is None:  # transformers then puts a space before each token
        return [f" {token}" for token in vocabulary]
    return [decoder.decode(["a", token])[1:] for token in vocabulary]


def _kind(character: str) -> int:
    if not character or character == "\ufffd":
        return _PART
    return {"L": _LETTER, "N": _NUMBER}.get(unicodedata.category(character)[0], _OTHER)


def _joins(settings: JsonTokenizer) -> np.ndarray:
    """Whether the pre-tokenizer leaves a character and the next one together, by their kinds: bool [4, 4]."""
    joins = np.ones((4, 4), bool)  # the parts of a character always stay together
    cut = settings.library().pre_tokenizer
    for i, before in enumerate(_SAMPLES if cut is not None else ""):
        for j, after in enumerate(_SAMPLES):
            joins[i, j] = len(cut.pre_tokenize_str(before + after)) == 1
    return joins


class Words(NamedTuple):
    """The words of a batch in the order of its text: W words in Q sequences."""

    start: np.ndarray  # int64 [W]: first token, in the flat batch; a word's tokens lie one after another
    size: np.ndarray  # int64 [W]: its tokens
    left: np.ndarray  # int64 [W]: words from this one to its segment's end, itself included
    first: np.ndarray  # int64 [Q + 1]: the first word of each sequence, and W


def find_words(begins: np.ndarray, maskable: np.ndarray, sequence_ids: np.ndarray) -> Words:
    """Find the words of rows; all but `maskable` tokens separate segments; sequence_ids are 1 to S <= L, 0: padding."""
    length = begins.shape[1]
    start = np.flatnonzero(begins)
    tokens = np.cumsum(maskable)  # (R * L,): ordinary tokens up to each place, itself included
    before = tokens[start] - 1
    size = np.diff(before, append=tokens[-1])
    # Two words are in one segment if the second begins where the first ends.
    goes_on = start[1:] == start[:-1] + size[:-1]
    segment_ends = np.append(np.flatnonzero(~goes_on), len(start) - 1)
    words = np.arange(len(start))
    left = segment_ends[np.searchsorted(segment_ends, words)] - words + 1
    row = start // length
    sequence = row * (length + 1) + sequence_ids.ravel()[start]
    first = np.flatnonzero(np.append(True, sequence[1:] != sequence[:-1]))
    return Words(start, size, left, np.append(first, len(start)))


def draw_lengths(left: np.ndarray, longest: int, draws: np.ndarray) -> np.ndarray:
    """Draw how many words, at most `longest`, the span that begins at each has: int64 [W]; draws are uniform in [0, 1).

    >>> draws = np.array([0.0, 0.5, 0.6, 0.9])  # with at most 3 words p(n) is 6/11, 3/11, 2/11
    >>> draw_lengths(np.array([5, 5, 5, 1]), longest=3, draws=draws).tolist()
    [1, 1, 2, 1]
    """
    odds = np.cumsum(1 / np.arange(1, longest + 1))  # of spans of at most 1, 2, ... words; not normalised
    scaled = draws * odds[np.minimum(left, longest) - 1]
    return np.searchsorted(odds, scaled, side="right") + 1


def choose_spans(words: Words, lengths: np.ndarray, hashes: np.ndarray, budgets: np.ndarray) -> np.ndarray:
    """Choose the masked places in the flat batch, ascending; int64.

    Each sequence tries its words in the order of their hashes, uint64 [W], until its budget of tokens, int64 [Q], is
    used. If no word fits into its budget, the first tokens of the first word that it tries are masked.
    """
    first, end = words.first[:-1], words.first[1:]
    order = np.lexsort((hashes, np.repeat(np.arange(len(budgets)), end - first)))
    masked = np.zeros(len(order), bool)
    tokens = np.concatenate(([0], np.cumsum(words.size)))
    at, budget = _first_spans(words, lengths, order, tokens, budgets, masked)
    behind = np.arange(int(lengths.max(initial=1)))
    tries = np.flatnonzero((budget > 0) & (at < end))
    while len(tries):  # each pass tries one word of each sequence
        word, left = order[at[tries]], budget[tries]
        span = word[:, None] + np.minimum(behind, lengths[word, None] - 1)
        sizes = tokens[span + 1] - tokens[word, None]
        fitting = np.minimum((sizes <= left[:, None]).sum(axis=1), lengths[word])
        inside = behind < fitting[:, None]
        free = (fitting > 0) & ~(masked[span] & inside).any(axis=1)
        masked[span[inside & free[:, None]]] = True
        budget[tries] = left - np.where(free, tokens[word + fitting] - tokens[word], 0)
        at[tries] += 1
        tries = tries[(budget[tries] > 0) & (at[tries] < end[tries])]
    size = np.where(masked, words.size, 0)
    none = budget == budgets
    size[order[first[none]]] = budgets[none]
    some = np.flatnonzero(size)
    size = size[some]
    return np.repeat(words.start[some] - (np.cumsum(size) - size), size) + np.arange(size.sum())


def _first_spans(
    words: Words, lengths: np.ndarray, order: np.ndarray, tokens: np.ndarray, budgets: np.ndarray, masked: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mask the first spans of each sequence, as many as fit into its budget together, in a few vectorised rounds.

    In each round a span is masked if it is the first of the undecided spans for each of its words; then the spans that
    share a word with it are decided: they are dropped. The result is the same as if spans were tried one by one.
    `order` has the words as their sequences try them, `tokens` those of the batch before each word, int64 [W + 1].
    Returns the places in `order` of the next words to try, and what is left of the budgets: int64 [Q] each.
    """
    first = words.first[:-1]
    total = np.cumsum(tokens[order + lengths[order]] - tokens[order])
    before = np.append(0, total)[first]
    at = np.searchsorted(total, before + budgets, side="right")
    count = at - first
    sequence = np.repeat(np.arange(len(first)), count)
    tried = np.arange(count.sum()) + np.repeat(first - (np.cumsum(count) - count), count)
    word, spent = order[tried], np.zeros(len(first), np.int64)
    behind = np.arange(int(lengths.max(initial=1)))
    span = word[:, None] + np.minimum(behind, lengths[word, None] - 1)
    while len(word):
        earliest = np.full(len(order), len(order))
        np.minimum.at(earliest, span.ravel(), np.repeat(tried, len(behind)))
        wins = (earliest[span] == tried[:, None]).all(axis=1)
        masked[span[wins]] = True
        size = tokens[span[wins, -1] + 1] - tokens[word[wins]]
        spent += np.bincount(sequence[wins], size, len(first)).astype(np.int64)
        undecided = ~masked[span].any(axis=1)
        word, span, tried, sequence = (array[undecided] for array in (word, span, tried, sequence))
    return at, budgets - spent


_PIECE = 300  # a stream of keyed_hash, other than those of masks.py


class PriorityWords:
    """A list of words, each by the ids of its pieces, for rows of one vocabulary."""

    def __init__(self, words: list[list[int]], boundaries: WordBoundaries) -> None:
        self.boundaries = boundaries
        ordered = sorted(set(map(tuple, words)))
        self.hash = hashlib.sha256(repr(ordered).encode()).hexdigest()
        self._hashes = np.array([_pieces(np.array(word), np.arange(len(word))).sum() for word in ordered], np.uint64)

    def places(self, ids: np.ndarray, word_starts: np.ndarray, maskable: np.ndarray) -> np.ndarray:
        """The places of the list's words, bool [R, L]; `word_starts`: the column where each place's word begins."""
        columns = np.arange(ids.shape[1])
        begins = np.flatnonzero(word_starts == columns)
        hashes = np.add.reduceat(_pieces(ids, columns - word_starts).ravel(), begins)
        listed = np.repeat(np.isin(hashes, self._hashes), np.diff(begins, append=ids.size))
        return listed.reshape(ids.shape) & maskable


def read_priority_words(path: str, vocabulary: list[str], settings: TokenizerSettings) -> PriorityWords | None:
    """Read the file that objective.priority_words names, a word a line; None for "".

    Raises UserError for a file that cannot be read, a line of several words, or a word that is [UNK].
    """
    if not path:
        return None
    name = f"objective.priority_words = {shown(path)}"
    try:
        lines = read_text(Path(path)).splitlines()
    except OSError as error:
        raise file_error(error, f"{name}: cannot read it ({error.strerror}); expected a file of words") from error
    except ValueError as error:
        raise UserError(f"{name} is not UTF-8 text; expected a word a line") from error
    tokenizer, words = library_tokenizer(vocabulary, settings), []
    unknown_id = token_ids(vocabulary).get(settings.special_tokens.unknown, NO_ID)
    for number, line in enumerate(lines, 1):
        with cutting(settings):
            encoding = tokenizer.encode(line, add_special_tokens=False)
        if len(set(encoding.word_ids)) > 1:
            raise UserError(
                f"{name}, line {number}: {shown(line.strip())} is several words to the tokenizer "
                f"({' '.join(encoding.tokens[:8])}); expected one word a line"
            )
        if unknown_id in encoding.ids:
            raise UserError(
                f"{name}, line {number}: the vocabulary reads {shown(line.strip())} as "
                f"{settings.special_tokens.unknown}; remove it"
            )
        if encoding.ids:
            words.append(encoding.ids)
        if encoding.ids and settings.joint:  # after another word it has other pieces
            words.append(tokenizer.encode(f"{settings.joint}{line.strip()}", add_special_tokens=False).ids)
    if not words:
        raise UserError(f"{name} has no words; expected a word a line")
    return PriorityWords(words, WordBoundaries(vocabulary, settings))


class TokenRoles(NamedTuple):
    """What the tokens of a vocabulary are to rows and masks; all stores of a run share it."""

    special: SpecialIds
    ordinary: np.ndarray  # int32, ascending: ids that text is made of
    words: WordBoundaries | None  # None: tokens are masked without regard to words
    priority: PriorityWords | None  # None: no word is masked before others


def token_roles(store: Store, objective: Objective) -> TokenRoles:
    """The roles of a store's tokens; raises UserError as special_ids, ordinary_ids and read_priority_words."""
    vocabulary, settings = store.vocabulary, store.tokenizer_settings
    special = special_ids(vocabulary, settings)
    return TokenRoles(
        special,
        ordinary_ids(vocabulary, special),
        WordBoundaries(vocabulary, settings) if objective.whole_word_masking else None,
        read_priority_words(objective.priority_words, vocabulary, settings),
    )


def _pieces(ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """A hash of each piece at its place in its word, uint64; the sum over a word, modulo 2^64, is the word's hash."""
    index = offsets.astype(np.uint64) << np.uint64(32) | ids.astype(np.uint64)
    return keyed_hash(0, _PIECE, index=index)
