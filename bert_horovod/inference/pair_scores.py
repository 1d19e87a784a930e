"""Scores minimal pairs with a masked-token model, by pseudo-log-likelihood; needs no labels.

    PLL(s) = sum over the tokens i of s, without [CLS] and [SEP], of
             log softmax(logits(s with token i replaced by [MASK]), at i)[token i]

A pair is right if PLL(right sentence) > PLL(wrong sentence); a tie counts half (Salazar et al. 2020, arXiv 1910.14659).
With `within_words` the later tokens of token i's word are masked too (Kauf and Ivanova 2023, arXiv 2305.10588), because
they give it away.
"""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np

from bert_horovod.batches.examples.masked_copies import MaskedCopies
from bert_horovod.batches.layout import special_ids
from bert_horovod.collectives.world import World
from bert_horovod.corpus.reading.pair_files import FILE, Pairs
from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings, cutting, library_tokenizer
from bert_horovod.errors import UserError
from bert_horovod.inference.options import Progress
from bert_horovod.inference.outputs import RowOutputs
from bert_horovod.model.encoder import encode_at
from bert_horovod.model.forward import ComputePolicy, Forward
from bert_horovod.model.heads import masked_token_logits
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf

ROWS = 32  # at once
_ROW = 64  # positions of a row; longer sentences get rows of the next power of two
_MOST_WHOLE = 128  # positions of the longest rows of which so many are computed at once: memory does not grow with them
_TEXTS = 4096  # that are cut into tokens at once
_SPECIAL = 2  # [CLS] sentence [SEP]


class _TokenGuess:
    """The part of tasks.base.PredictingTask that RowOutputs reads: each masked token's log-probability."""

    def outputs(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        hidden = encode_at(forward, batch, batch["masked_positions"])  # (rows, copies, hidden)
        real = tf.where(batch["masked_weights"] > 0)  # the head is the costly part: it skips places without a copy
        logits = masked_token_logits(forward, tf.gather_nd(hidden, real))
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.gather_nd(batch["masked_ids"], real), logits)
        shape = tf.shape(batch["masked_ids"], out_type=tf.int64)
        return {"log-probabilities": tf.scatter_nd(real, -losses, shape)}


class PairTokens:
    """The tokens of pairs by a checkpoint's tokenizer.

    `ids`: int32 [tokens], of the right sentence of the first pair, its wrong one, the right one of the second pair, and
    so on, without special tokens; `counts`: tokens of each sentence, int64 [2 * pairs]. `longest`: positions that a
    sentence may have. Raises UserError for a sentence without a token, or a longer one, with its file and line.
    """

    def __init__(self, pairs: Pairs, vocabulary: list[str], settings: TokenizerSettings, longest: int) -> None:
        self.pairs, self.special = pairs, special_ids(vocabulary, settings)
        texts = [text for both in pairs.sentences for text in both]
        library, ids, begins = library_tokenizer(vocabulary, settings), array("i"), array("b")
        self.counts = np.zeros(len(texts), np.int64)
        for first in range(0, len(texts), _TEXTS):
            with cutting(settings):
                encodings = library.encode_batch(texts[first : first + _TEXTS], add_special_tokens=False)
            for number, encoding in enumerate(encodings, first):
                words = encoding.word_ids
                self.counts[number] = len(words)
                ids.extend(encoding.ids)
                before = [None, *words][: len(words)]
                begins.extend(word is None or word != last for last, word in zip(before, words, strict=True))
        self.ids, self._begins = np.array(ids, np.int32), np.array(begins, bool)
        wrong = np.flatnonzero((self.counts == 0) | (self.counts + _SPECIAL > longest))
        if len(wrong):
            pair, side = divmod(int(wrong[0]), 2)
            path, line = pairs.places[pair]
            tokens = int(self.counts[wrong[0]]) + _SPECIAL
            raise UserError(
                f"{path}, line {line}: the {('right', 'wrong')[side]} sentence has {tokens} tokens, [CLS] and [SEP] "
                f"included; expected {_SPECIAL + 1} to {longest}, the positions of the model: leave the pair out"
            )

    def word_ends(self) -> np.ndarray:
        """The number of the token behind each token's word, as its tokenizer cuts words: int64 [tokens]."""
        return np.append(np.flatnonzero(self._begins), len(self.ids))[np.cumsum(self._begins)]


class PairScorer:
    """Scores pairs with a model, as often as it is called; all ranks call it together and share the rows.

    `dtype`: of matrix products; `rows`: at once, of more than 128 positions fewer. Token log-probabilities do not
    depend on the number of ranks.
    """

    def __init__(
        self,
        tokens: PairTokens,
        model: Model,
        within_words: bool = False,
        dtype: str = "float32",
        rows: int = ROWS,
        row_length: int = _ROW,
        world: World | None = None,
    ) -> None:
        self._tokens = tokens
        policy = ComputePolicy(tf.as_dtype(dtype))
        counts = tokens.counts
        ends = tokens.word_ends() if within_words else np.arange(1, len(tokens.ids) + 1)
        lengths = np.maximum(row_length, 1 << np.ceil(np.log2(counts + _SPECIAL)).astype(np.int64))
        # Tokens of sentences of like length, their rows, and what computes these.
        self._parts: list[tuple[np.ndarray, MaskedCopies, RowOutputs]] = []
        for length in np.unique(lengths).tolist():
            mine = np.flatnonzero(np.repeat(lengths == length, counts))  # (tokens,)
            until = np.searchsorted(mine, ends[mine] - 1) + 1  # a word lies within its sentence
            copies = MaskedCopies(tokens.ids[mine], counts[lengths == length], until, tokens.special, length)
            at_once = max(1, rows * _MOST_WHOLE // max(length, _MOST_WHOLE))
            self._parts.append((mine, copies, RowOutputs(_TokenGuess(), model, policy, at_once, world or World())))

    def log_probabilities(self, parameters: dict[str, Any], progress: Progress | None = None) -> np.ndarray:
        """Each token's log-probability where it is masked, in nats: float32 [tokens], as PairTokens.ids.

        `parameters`: the model's, by name. `progress` is told of pairs. Raises NotFiniteError.
        """
        result, precision = np.empty(len(self._tokens.ids), np.float32), tf.config.experimental
        total, before, pairs = sum(len(mine) for mine, *_ in self._parts), 0, len(self._tokens.pairs.sentences)
        rounds_factors = precision.tensor_float_32_execution_enabled()
        precision.enable_tensor_float_32_execution(False)  # else GPUs would round float32 factors to 10 bits
        try:
            for mine, copies, outputs in self._parts:

                def tell(done: int, of: int, before: int = before, tokens: int = len(mine)) -> None:
                    if progress:
                        progress(pairs * (before + tokens * done // max(of, 1)) // total, pairs)  # a rank may have none

                result[mine] = copies.by_item(outputs(parameters, copies, tell)["log-probabilities"])
                before += len(mine)
        finally:
            precision.enable_tensor_float_32_execution(rounds_factors)
        return result

    def __call__(self, parameters: dict[str, Any], progress: Progress | None = None) -> dict[str, Any]:
        """The accuracy; see `accuracies`."""
        tokens = self._tokens
        starts = np.cumsum(tokens.counts) - tokens.counts
        scores = np.add.reduceat(self.log_probabilities(parameters, progress).astype(np.float64), starts)
        right, wrong = scores[::2], scores[1::2]
        # Equal tokens have equal scores, but rows of other content may round them otherwise.
        sentences = np.split(tokens.ids, starts[1:])
        equal = [np.array_equal(one, other) for one, other in zip(sentences[::2], sentences[1::2], strict=True)]
        return accuracies(tokens.pairs, np.where(equal, 0.5, (1 + np.sign(right - wrong)) / 2))


def accuracies(pairs: Pairs, points: np.ndarray) -> dict[str, Any]:
    """Accuracy by group and of all; `points`: 1 for a right pair, 0 for a wrong one, 0.5 for a tie: float64 [pairs].

    Returns:
        pairs, ties: how many; accuracy: the mean of all files' accuracies, a fraction, and its standard_error, None if
        a file has one pair; groups: by the kind of group, then by its name, the same of its pairs.
    """
    groups = {}
    for kind, names in pairs.groups.items():
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        of_pairs = np.array([numbers[name] for name in names])
        if means := {name: _mean(points[of_pairs == number]) for name, number in numbers.items() if name}:
            groups[kind] = means
    files = list(groups[FILE].values())
    errors = [file["standard_error"] for file in files]
    return {
        "pairs": len(points),
        "accuracy": float(np.mean([file["accuracy"] for file in files])),
        "standard_error": None if None in errors else math.sqrt(sum(error**2 for error in errors)) / len(files),
        "ties": sum(file["ties"] for file in files),
        "groups": groups,
    }


def _mean(points: np.ndarray) -> dict[str, Any]:
    count = len(points)
    return {
        "pairs": count,
        "accuracy": float(points.mean()),
        "standard_error": float(points.std(ddof=1)) / math.sqrt(count) if count > 1 else None,
        "ties": int(np.count_nonzero(points == 0.5)),
    }
