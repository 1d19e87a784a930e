"""A cache of tokenised questions on the disk: one file, named by the hash of the texts and the tokenizer's settings.

A damaged file is made again. If several processes run on a host, one tokenises, and the others wait and read.
"""

import hashlib
import json
import os
import sys
import uuid
from pathlib import Path

import numpy as np
import tokenizers

from bert_horovod.batches.examples.span_tokens import SpanTexts, SpanTokens, tokenised_spans
from bert_horovod.corpus.reading.tokenizer import LocatingTokenizer
from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
from bert_horovod.storage.writing import lock

_FORMAT = 1
_PATIENCE_S = 1800
_DTYPES = (np.int32, np.int32, np.int32, np.int64, np.int32, np.int64, np.int64, np.int64)  # of SpanTokens


def open_spans(
    texts: SpanTexts, vocabulary: list[str], tokenizer_settings: TokenizerSettings, directory: Path
) -> tuple[SpanTokens, str | None]:
    """Tokenise questions, or read their tokens from the cache.

    Args:
        texts: the questions.
        vocabulary, tokenizer_settings: the tokenizer's.
        directory: the cache's; made if needed.

    Returns:
        The tokens, and a message if the cache could not be written, else None.

    Raises:
        UserError: another process has held the directory for half an hour.
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
