"""Hard negatives: for each pair of a query and a passage wrong passages that a model takes for right ones.

Memory holds one block of vectors, and what query_passages.py holds of the texts. What takes long is made block by block
in files of a directory beside the output, with which a later start goes on.

    products of each query with all passages, exact, the K greatest kept
    -> without the passages that are right for the query, and those too near to the right one
    -> the ranks asked for -> N of them, the first ones or drawn by the seed
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_horovod.corpus.reading.table_files import kind_of
from bert_horovod.corpus.table_writing import table_parts
from bert_horovod.errors import UserError
from bert_horovod.finetuning.query_passages import NumberedTexts, QueryPassages, pair_keys
from bert_horovod.inference.embedding_predictor import EmbeddingPredictor, unit
from bert_horovod.inference.options import Progress
from bert_horovod.inference.text_predictor import RerankPredictor, sigmoid
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.storage.writing import lock, write_output

NEGATIVE, SCORES = "negative", "scores"  # columns of the output
_TEXTS, _QUERIES, _PASSAGES, _JUDGED, _ROWS = 4096, 1024, 32768, 64, 1024  # of a block


Make = Callable[[np.ndarray], np.ndarray]
Shown = Callable[[str, str], AbstractContextManager[Progress]]  # what is done, and of what units


@dataclass(frozen=True)
class Mining:
    """Which passages become negatives.

    Attributes:
        ranks: the first and the last place, from 1, among the passages that may be negatives.
        per_query: how many are taken.
        margin: they score at least so much below the lowest of the query's right passages; None: nothing is asked.
        relative: whether `margin` is a share of that score's size.
        max_score: they score at most so much.
        drawn: whether they are drawn from the ranks, by `seed`; else the first ones are taken.
        scores: whether the output has the scores too.
    """

    ranks: tuple[int, int] = (10, 50)
    per_query: int = 1
    margin: float | None = None
    relative: bool = False
    max_score: float | None = None
    drawn: bool = True
    seed: int = 0
    scores: bool = False


class Vectors(NamedTuple):
    """Vectors of texts by their numbers, float32 [numbers, width]; what is not finite is refused."""

    array: np.ndarray
    rows: np.ndarray | None  # of each number's text in the array; None: its number
    path: Path

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        vectors = np.asarray(self.array[numbers if self.rows is None else self.rows[numbers]], np.float32)
        if not np.isfinite(vectors).all():
            raise UserError(
                f"{self.path} has numbers that are not finite; expected vectors as predict --vectors writes"
            )
        return vectors


def load_vectors(path: Path, texts: NumberedTexts, count: int, of: str) -> Vectors:
    """Open a .npy file of a vector for each of `count` texts that were added first; raises UserError."""
    try:
        loaded = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # NumPy gives damaged headers to Python's parser, which raises many kinds of errors
        raise UserError(f"--vectors: cannot read {path}: {error}; expected a .npy of predict --vectors") from error
    if loaded.ndim != 2 or loaded.dtype.kind != "f":
        raise UserError(f"--vectors: {path} is no table of real numbers; expected a .npy of predict --vectors")
    if len(loaded) != count:
        raise UserError(f"--vectors: {path} has {len(loaded):,} vectors; expected {count:,}, one for each {of}")
    return Vectors(loaded, texts.first, path)


def kept_array(
    path: Path, shape: tuple[int, ...], dtype: np.dtype, block: int, make: Make, shown: AbstractContextManager[Progress]
) -> np.ndarray:
    """An array whose blocks of its first axis are made one after another; a file keeps them for a later call.

    The last block in the file is made again, because it may not have reached the disk. `make`: from numbers on the
    first axis; `shown`: of how many are left to this call.
    """
    row, count = dtype.itemsize * int(np.prod(shape[1:])), shape[0]
    with shown as say, open(path, "ab") as file:
        done = max(0, -(-file.tell() // (row * block)) - 1) * block
        file.truncate(done * row)
        for first in range(done, count, block):
            numbers = np.arange(first, min(first + block, count))
            file.write(np.ascontiguousarray(make(numbers), dtype).tobytes())
            file.flush()
            os.fsync(file.fileno())
            say(int(numbers[-1]) + 1 - done, count - done)
    return np.memmap(path, dtype, "r", shape=shape)


@contextlib.contextmanager
def kept_directory(output: Path, key: str) -> Iterator[Path]:
    """A directory beside `output` for what later starts with the same key go on with; it ends with the block.

    Those of other keys are removed. Raises UserError if another process writes `output`.
    """
    locked = output.with_name(f".{output.name}.lock")
    descriptor = lock(locked, f"another command is writing {output}; wait for it, or give another name")
    try:
        directory = output.with_name(f".{output.name}.{key}.partial")
        for other in output.parent.glob(f".{glob.escape(output.name)}.*.partial"):
            if other != directory:
                shutil.rmtree(other, ignore_errors=True)
        directory.mkdir(exist_ok=True)
        try:
            yield directory
        except UserError:  # no later start could go on
            shutil.rmtree(directory, ignore_errors=True)
            raise
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        locked.unlink(missing_ok=True)
        os.close(descriptor)


FOUND = np.dtype([("passage", "<i4"), ("score", "<f4")])


def nearest_passages(queries: np.ndarray, passages: Vectors, count: int, places: int) -> np.ndarray:
    """The passages with the greatest products with each query: FOUND [queries, places], the greatest first.

    Of equal products the passage of the lower number comes first. `queries`: float32 [queries, width]; `count`: of
    passages.
    """
    scores = tf.fill([len(queries), places], -np.inf)
    numbers = tf.fill([len(queries), places], -1)
    for first in range(0, count, _PASSAGES):
        block = passages(np.arange(first, min(first + _PASSAGES, count)))
        scores, numbers = _nearer(tf.constant(queries), tf.constant(block), first, scores, numbers)
    found = np.empty((len(queries), places), FOUND)
    found["passage"], found["score"] = numbers, scores
    return found


def _nearer(
    queries: tf.Tensor, passages: tf.Tensor, first: int, scores: tf.Tensor, numbers: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    places = scores.shape[1]
    products = tf.matmul(queries, passages, transpose_b=True)
    new, where = tf.math.top_k(products, min(places, len(passages)))
    scores, best = tf.math.top_k(tf.concat([scores, new], 1), places)
    return scores, tf.gather(tf.concat([numbers, where + first], 1), best, batch_dims=1)


def negative_columns(output: Path, per_query: int) -> list[str]:
    """The names of the output's columns of negatives; in JSON Lines one has a list."""
    one = per_query == 1 or kind_of(output) == "json"
    return [NEGATIVE] if one else [f"{NEGATIVE}_{number + 1}" for number in range(per_query)]


class Miner:
    """Finds the negatives of pairs; `key` names what decides about the kept files beside the output."""

    def __init__(self, pairs: QueryPassages, mining: Mining, reranker: RerankPredictor | None = None) -> None:
        self.pairs, self.mining, self.reranker = pairs, mining, reranker
        self.places = min(mining.ranks[1] + pairs.most(), len(pairs.passages.first))
        self._right = pairs.right()

    def key(self, *of: object) -> str:
        pairs = self.pairs
        which = hashlib.sha256(pairs.query).hexdigest(), pairs.columns  # a column's name decides about its prompt
        texts = pairs.queries.digest, pairs.passages.digest, *map(str, of), self.places, which
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]

    def encode(self, predictor: EmbeddingPredictor, directory: Path, shown: Shown) -> list[Vectors]:
        """The vectors of queries and passages, of length 1, as predict --vectors makes them."""
        made = []
        for place, texts in enumerate((self.pairs.queries, self.pairs.passages)):
            prompt = predictor.settings.prompt_of(self.pairs.columns[place], place)
            path, shape = directory / f"{('queries', 'passages')[place]}.f32", (len(texts.first), predictor.width)

            def make(numbers: np.ndarray, texts: NumberedTexts = texts, prompt: str = prompt) -> np.ndarray:
                return unit(predictor.vectors(texts(numbers), prompt))

            array = kept_array(path, shape, np.dtype("<f4"), _TEXTS, make, shown(f"vectors of {path.stem}", "texts"))
            made.append(Vectors(array, None, path))
        return made

    def search(self, vectors: Sequence[Vectors], directory: Path, shown: Shown) -> tuple[np.ndarray, np.ndarray]:
        """What is found for each query, FOUND [queries, places], and the pairs' scores, float32 [pairs].

        `vectors`: of queries and of passages. A reranker's scores take the place of the products.
        """
        queries, passages = vectors
        pairs, texts = self.pairs, (self.pairs.queries, self.pairs.passages)
        shape, count = (len(texts[0].first), self.places), len(texts[1].first)

        def found_by(numbers: np.ndarray) -> np.ndarray:
            return nearest_passages(queries(numbers), passages, count, self.places)

        def product(numbers: np.ndarray) -> np.ndarray:
            return np.einsum("nd,nd->n", queries(pairs.query[numbers]), passages(pairs.passage[numbers]))

        found = kept_array(directory / "found", shape, FOUND, _QUERIES, found_by, shown("searching", "queries"))
        blocks = np.split(np.arange(len(pairs.query)), range(_TEXTS, len(pairs.query), _TEXTS))
        if self.reranker is None:
            return found, np.concatenate([product(numbers) for numbers in blocks])

        def judged(query: np.ndarray, passage: np.ndarray) -> np.ndarray:
            sides = texts[0](query.ravel()), texts[1](passage.ravel())
            return sigmoid(self.reranker.logits(sides, True))[:, 0].reshape(query.shape)

        def rescored(numbers: np.ndarray) -> np.ndarray:
            new = np.array(found[numbers])
            new["score"] = judged(np.repeat(numbers[:, None], self.places, 1), new["passage"])
            return new

        right = kept_array(
            directory / "right", pairs.query.shape, np.dtype("<f4"), _ROWS,
            lambda rows: judged(pairs.query[rows], pairs.passage[rows]), shown("judging pairs", "pairs"),
        )  # fmt: skip
        return kept_array(
            directory / "judged", shape, FOUND, _JUDGED, rescored, shown("judging candidates", "queries")
        ), right

    def write(self, found: np.ndarray, right: np.ndarray, output: Path) -> Counter[str]:
        """Write the pairs with their negatives.

        Returns how many "negatives" there are and the sum of their "scores", how many pairs have "fewer" than asked for
        or "none", and how many candidates were "near": above the margin or the greatest score.
        """
        mining, pairs, total = self.mining, self.pairs, Counter[str]()
        _, group = np.unique(pairs.queries.keys, return_inverse=True)
        lowest = np.full(group.max() + 1, np.inf, np.float32)
        np.minimum.at(lowest, group[pairs.query], right)
        as_list, most = kind_of(output) == "json", mining.per_query

        def blocks() -> Iterator[list[list]]:
            for begin in range(0, len(pairs.query), _ROWS):
                rows = np.arange(begin, min(begin + _ROWS, len(pairs.query)))
                query = pairs.query[rows]
                numbers, scores, near = self._ranked(found[query], query, lowest[group[query]])
                sides = zip(pairs.queries(query), pairs.passages(pairs.passage[rows]), strict=True)
                written = []
                for row, texts in enumerate(sides):
                    chosen = self._chosen(scores[row], int(pairs.queries.keys[query[row]]))
                    wrong, its = pairs.passages(numbers[row][chosen]), scores[row][chosen].tolist()
                    total.update(negatives=len(its), scores=sum(its), fewer=len(its) < most, none=not its)
                    fields: list = [wrong] if as_list else [*wrong, *[""] * (most - len(wrong))]
                    if mining.scores:
                        of_all = [round(score, 6) for score in (float(right[rows[row]]), *its)]
                        fields.append(of_all if as_list else json.dumps(of_all))
                    written.append([*texts, *fields])
                total["near"] += near
                yield written

        names = [*negative_columns(output, most), *([SCORES] if mining.scores else [])]
        write_output(output, table_parts(output, [*pairs.columns, *names], blocks()))
        return total

    def _ranked(self, found: np.ndarray, query: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """Candidates at the ranks asked for, with their scores, -inf behind the last; and how many were too near."""
        mining, numbers, scores = self.mining, found["passage"], found["score"].copy()
        keys = pair_keys(self.pairs.queries.keys[query][:, None], self.pairs.passages.keys[numbers])
        place = np.searchsorted(self._right, keys).clip(max=len(self._right) - 1)  # np.isin would sort them again
        scores[self._right[place] == keys] = -np.inf
        before = np.isfinite(scores).sum()
        if mining.margin is not None:
            below = np.abs(right) * np.float32(mining.margin) if mining.relative else np.float32(mining.margin)
            scores[scores > (right - below)[:, None]] = -np.inf
        if mining.max_score is not None:
            scores[scores > mining.max_score] = -np.inf
        order = np.argsort(-scores, 1, kind="stable")[:, mining.ranks[0] - 1 : mining.ranks[1]]
        near = int(before - np.isfinite(scores).sum())
        return np.take_along_axis(numbers, order, 1), np.take_along_axis(scores, order, 1), near

    def _chosen(self, scores: np.ndarray, key: int) -> np.ndarray:
        """Places among a query's candidates, ascending."""
        there, most = int(np.isfinite(scores).sum()), self.mining.per_query
        if not self.mining.drawn or there <= most:
            return np.arange(min(there, most))
        return np.sort(np.random.default_rng([self.mining.seed, key]).choice(there, most, replace=False))
