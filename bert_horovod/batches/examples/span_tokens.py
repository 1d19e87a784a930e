"""Questions about contexts as token ids, with the span of tokens that answers each; Google's run_squad.py rules.

A context's words are split at blank, tab, carriage return, line feed and U+202F only. The span of an answer is first
all tokens of the words that hold its characters; then it is narrowed to the part whose tokens are those of the answer's
text.

A cache of tokenised questions on the disk: one file, named by the hash of the texts and the tokenizer's settings. A
damaged file is made again. If several processes run on a host, one tokenises, and the others wait and read.
"""

import hashlib
import json
import os
import sys
import uuid
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers

from bert_horovod.corpus.reading.squad_files import Questions
from bert_horovod.corpus.reading.tokenizer import LocatingTokenizer
from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
from bert_horovod.storage.writing import lock

NO_ANSWER, NOT_FOUND = -1, -2  # in place of the numbers of a span's tokens
_SPACES = np.array([ord(character) for character in " \t\r\n\u202f"], np.uint32)
_CONTEXTS_AT_ONCE = 1024


class SpanTexts(NamedTuple):
    """Questions as text."""

    contexts: list[str]
    questions: list[str]
    context_of: list[int]  # number of each question's context, ascending
    # The answer to each question and its first character (code point) in the context; None: no answer.
    answers: list[tuple[str, int] | None]


def span_texts(questions: Questions, labelled: bool = True) -> SpanTexts:
    """The texts of a file to tokenise; of several answers, only the first. Not `labelled`: without answers."""
    firsts = [
        answers[0] if labelled and answers and not impossible else None
        for answers, impossible in zip(questions.answers, questions.impossible, strict=True)
    ]
    return SpanTexts(questions.contexts, questions.questions, questions.context_of, firsts)


class SpanTokens(NamedTuple):
    """Questions as token ids. Characters are Unicode code points, counted in their context."""

    context_ids: np.ndarray  # int32 [tokens], of all contexts one after another
    begins: np.ndarray  # int32 [tokens]: first character
    ends: np.ndarray  # int32 [tokens]: one past the last character
    context_starts: np.ndarray  # int64 [contexts + 1]: places in `context_ids`
    question_ids: np.ndarray  # int32 [tokens], of all questions one after another
    question_starts: np.ndarray  # int64 [questions + 1]: places in `question_ids`
    context_of: np.ndarray  # int64 [questions]: number of each question's context
    answers: np.ndarray  # int64 [questions, 2]: first and last token in the context, or NO_ANSWER or NOT_FOUND twice


def tokenised_spans(texts: SpanTexts, tokenizer: LocatingTokenizer) -> SpanTokens:
    """Tokenise questions and contexts, and find the answers' tokens."""
    contexts, questions = tokenizer(texts.contexts), tokenizer(texts.questions)
    context_starts, question_starts = (
        np.append(0, np.cumsum(ids_of_text.counts)) for ids_of_text in (contexts, questions)
    )
    tokens = SpanTokens(
        contexts.ids,
        contexts.begins,
        contexts.ends,
        context_starts,
        questions.ids,
        question_starts,
        np.array(texts.context_of, np.int64),
        np.full((len(texts.questions), 2), NO_ANSWER, np.int64),
    )
    asked = [number for number, answer in enumerate(texts.answers) if answer is not None]
    if asked:
        tokens.answers[asked] = _answer_tokens(texts, tokens, np.array(asked), tokenizer)
    return tokens


def _answer_tokens(texts: SpanTexts, tokens: SpanTokens, asked: np.ndarray, tokenizer: LocatingTokenizer) -> np.ndarray:
    """First and last token of the answers to these questions, int64 [asked, 2]; NOT_FOUND twice where there is none."""
    spans = np.concatenate(
        [
            _spans_of_words(texts, tokens, asked[first:last], first_context)
            for first, last, first_context in _blocks(tokens.context_of[asked])
        ]
    )
    answers = tokenizer([texts.answers[number][0] for number in asked.tolist()])
    base = tokens.context_starts[tokens.context_of[asked]]
    return np.where(spans < 0, spans, _narrowed(tokens.context_ids, base, spans, answers.ids, answers.counts))


def _blocks(context_of: np.ndarray) -> list[tuple[int, int, int]]:
    """Runs of questions (first, one past the last, first context) over few contexts each, to use little memory."""
    first_contexts = np.arange(context_of[0], context_of[-1] + 1, _CONTEXTS_AT_ONCE)
    bounds = np.append(np.searchsorted(context_of, first_contexts), len(context_of)).tolist()
    blocks = zip(bounds[:-1], bounds[1:], first_contexts.tolist(), strict=True)
    return [block for block in blocks if block[0] < block[1]]


def _spans_of_words(texts: SpanTexts, tokens: SpanTokens, asked: np.ndarray, first_context: int) -> np.ndarray:
    """First and last token of the words that hold each answer, int64 [asked, 2]; NOT_FOUND twice where none do."""
    last_context = int(tokens.context_of[asked[-1]])
    contexts = texts.contexts[first_context : last_context + 1]
    characters = np.frombuffer("\n".join([*contexts, ""]).encode("utf-32-le"), np.uint32)
    spaces = np.isin(characters, _SPACES)
    begins_word = ~spaces & np.append(True, spaces[:-1])
    word_begins = np.flatnonzero(begins_word)
    word_ends = np.flatnonzero(spaces & np.append(False, ~spaces[:-1]))
    word_of = np.cumsum(begins_word) - 1  # a space belongs to the word before it
    text_starts = np.append(0, np.cumsum([len(context) + 1 for context in contexts]))

    spans = np.full((len(asked), 2), NOT_FOUND, np.int64)
    words = np.zeros((len(asked), 2), np.int64)
    for place, number in enumerate(asked.tolist()):
        answer, begin = texts.answers[number]
        context = int(tokens.context_of[number]) - first_context
        if not answer.strip() or not 0 <= begin <= len(contexts[context]) - len(answer):
            continue
        base = int(text_starts[context])
        first, last = (int(word_of[base + at]) for at in (begin, begin + len(answer) - 1))
        if first < 0:
            continue
        held = contexts[context][max(0, int(word_begins[first]) - base) : int(word_ends[last]) - base]
        if " ".join(answer.split()) in " ".join(held.split()):
            words[place], spans[place] = (first, last), 0
    located = np.flatnonzero(spans[:, 0] == 0)
    if not len(located):
        return spans
    # The word of each token of these contexts, (tokens,): the word that holds the token's first character.
    low, high = tokens.context_starts[[first_context, last_context + 1]]
    counts = np.diff(tokens.context_starts[first_context : last_context + 2])
    token_word = word_of[tokens.begins[low:high] + np.repeat(text_starts[:-1], counts)]
    base = tokens.context_starts[tokens.context_of[asked[located]]] - low
    first = np.searchsorted(token_word, words[located, 0], side="left") - base
    last = np.searchsorted(token_word, words[located, 1], side="right") - 1 - base
    spans[located] = np.where((first <= last)[:, None], np.stack((first, last), 1), NOT_FOUND)
    return spans


def _narrowed(
    ids: np.ndarray, base: np.ndarray, spans: np.ndarray, answer_ids: np.ndarray, answer_counts: np.ndarray
) -> np.ndarray:
    """The first part of each span whose tokens are the answer's, or the span itself; int64 [answers, 2].

    `ids` are those of all contexts, `base` says where each answer's context begins in them, int64 [answers].
    """
    narrowed = spans.copy()
    starts = np.cumsum(answer_counts) - answer_counts
    slack = np.where(answer_counts > 0, spans[:, 1] - spans[:, 0] + 1 - answer_counts, -1)
    unresolved = np.flatnonzero(slack >= 0)
    shift = 0
    while len(unresolved):
        count = answer_counts[unresolved]
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        theirs = ids[np.repeat(base[unresolved] + spans[unresolved, 0] + shift, count) + within]
        same = theirs == answer_ids[np.repeat(starts[unresolved], count) + within]
        equal = np.logical_and.reduceat(same, np.cumsum(count) - count)
        hit = unresolved[equal]
        narrowed[hit, 0] = spans[hit, 0] + shift
        narrowed[hit, 1] = narrowed[hit, 0] + answer_counts[hit] - 1
        shift += 1
        unresolved = unresolved[~equal]
        unresolved = unresolved[slack[unresolved] >= shift]
    return narrowed


_FORMAT = 1
_PATIENCE_S = 1800
_DTYPES = (np.int32, np.int32, np.int32, np.int64, np.int32, np.int64, np.int64, np.int64)  # of SpanTokens


def open_spans(
    texts: SpanTexts, vocabulary: list[str], tokenizer_settings: TokenizerSettings, directory: Path
) -> tuple[SpanTokens, str | None]:
    """Tokenise questions, or read their tokens from the cache; returns them, and why they could not be kept, if so.

    Raises UserError if another process has held the directory for half an hour.
    """
    settings = [_FORMAT, tokenizers.__version__, vocabulary, tokenizer_settings.hashed(), texts]
    name = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:32]
    path = directory / f"spans-{name}.npz"
    if (tokens := _read(path, texts)) is not None:
        return tokens, None
    tokenizer = LocatingTokenizer(vocabulary, tokenizer_settings)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        refusal = f"another process has tokenised into {directory} for {_PATIENCE_S} s; end it, or give --index_dir"
        held = lock(directory / ".lock", refusal, _PATIENCE_S)
    except OSError as error:
        return tokenised_spans(texts, tokenizer), _not_kept(directory, error)
    try:
        if (tokens := _read(path, texts)) is not None:
            return tokens, None
        count = len(texts.questions)
        print(f"tokenising {count:,} questions, to be kept in {directory}", file=sys.stderr, flush=True)
        tokens = tokenised_spans(texts, tokenizer)
        try:
            _write(path, tokens)
        except OSError as error:
            return tokens, _not_kept(directory, error)
        return tokens, None
    finally:
        os.close(held)


def _not_kept(directory: Path, error: OSError) -> str:
    return (
        f"the tokens of the questions cannot be kept in {directory} ({error.strerror}), so each start makes them "
        "again; name a directory that can be written with --index_dir"
    )


def _read(path: Path, texts: SpanTexts) -> SpanTokens | None:
    """Read the file; None if it is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            tokens = SpanTokens(*(file[name] for name in SpanTokens._fields))
    except Exception:  # NumPy gives damaged headers to Python's parser, which raises many kinds of errors
        return None
    counts = (len(tokens.context_starts) - 1, len(tokens.question_starts) - 1, *tokens.answers.shape)
    fits = [array.dtype for array in tokens] == [np.dtype(dtype) for dtype in _DTYPES]
    fits &= counts == (len(texts.contexts), len(texts.questions), len(texts.questions), 2)
    return tokens if fits else None


def _write(path: Path, tokens: SpanTokens) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with open(temporary, "xb") as file:
            np.savez(file, **tokens._asdict())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
