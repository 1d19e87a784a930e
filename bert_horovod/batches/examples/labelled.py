"""Labelled texts and pairs of texts as rows; long documents too, as rows of several windows each."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bert_horovod.batches.examples.base import Arrays, PackedRows, special_count
from bert_horovod.batches.layout import RowLayout, SpecialIds, require_pairs
from bert_horovod.corpus.reading.tokenizer import Tokenizer


class LabelSets(list[list[int]]):
    """The numbers of each example's labels, in ascending order; `classes`: how many labels there are.

    >>> LabelSets([[0, 2], []], 3).multi_hot().tolist()
    [[1, 0, 1], [0, 0, 0]]
    """

    def __init__(self, numbers: list[list[int]], classes: int) -> None:
        super().__init__(numbers)
        self.classes = classes

    def multi_hot(self) -> np.ndarray:
        """1 or 0, whether an example has a label: uint8 [examples, labels]."""
        array = np.zeros((len(self), self.classes), np.uint8)
        for row, numbers in zip(array, self, strict=True):
            row[numbers] = 1
        return array


class LabelledTexts(NamedTuple):
    """Examples as text."""

    texts: tuple[list[str], ...]  # the first texts; for pairs also the second texts, as many
    labels: list[int] | list[float] | LabelSets  # numbers of the labels, real numbers to predict, or any labels of each

    def label_array(self) -> np.ndarray:
        """The labels: int32 or float64 [examples], or uint8 [examples, labels] of 1 and 0."""
        if isinstance(self.labels, LabelSets):
            return self.labels.multi_hot()
        labels = np.array(self.labels)
        return labels.astype(np.float64 if labels.dtype.kind == "f" else np.int32)


class LabelledTokens(NamedTuple):
    """Examples as token ids; "sides" are 1, or 2 for pairs."""

    ids: np.ndarray  # int32 [tokens], of all texts one after another
    starts: np.ndarray  # int64 [examples, sides]: places in `ids`
    counts: np.ndarray  # int64 [examples, sides]: tokens
    labels: np.ndarray  # int32 or float64 [examples], or uint8 [examples, labels]: see LabelledTexts.label_array


def tokenised(examples: LabelledTexts, tokenizer: Tokenizer) -> LabelledTokens:
    """Tokenise all texts; no special tokens are added. Raises UserError for pairs as require_pairs."""
    if len(examples.texts) > 1:
        require_pairs(tokenizer.settings, "the checkpoint")
    ids, counts = zip(*(tokenizer(side) for side in examples.texts), strict=True)
    ends = np.cumsum(np.concatenate(counts)).reshape(len(counts), -1)
    counts = np.stack(counts)
    return LabelledTokens(np.concatenate(ids), (ends - counts).T, counts.T, examples.label_array())


def truncated(counts: np.ndarray, room: int) -> np.ndarray:
    """How many of its tokens each text keeps where an example has `room` for so many; int64 [examples, texts].

    Google's run_classifier.py removes a pair's tokens one by one from the longer text, or from the second if both are
    equally long; this is the same for any number of texts, which are cut at their ends.

    >>> truncated(np.array([[9, 2, 9], [3, 3, 3]]), 11).tolist()
    [[5, 2, 4], [3, 3, 3]]
    """
    most = np.full((len(counts), 1), room // counts.shape[1])  # of a text that is cut
    for _ in range(counts.shape[1]):  # what short texts leave goes to the others
        spare = room - np.minimum(counts, most).sum(axis=1, keepdims=True)
        longer = counts > most
        cut = longer.sum(axis=1, keepdims=True)
        most += np.where(cut > 0, spare // np.maximum(cut, 1), 0)
    longer = counts > most
    spare = room - np.minimum(counts, most).sum(axis=1, keepdims=True)
    return np.minimum(counts, most) + (longer & (np.cumsum(longer, axis=1) <= spare))


def truncated_longest_first(counts: np.ndarray, room: int) -> np.ndarray:
    """As `truncated`, but tokens that equal shares of `room` leave over go to longer texts, at a tie to later ones.

    So do transformers' fast tokenizers with pairs (truncation = "longest_first").

    >>> truncated_longest_first(np.array([[9, 3], [3, 9], [9, 9]]), 5).tolist()
    [[3, 2], [2, 3], [2, 3]]
    """
    order, kept = np.argsort(counts, axis=1, kind="stable")[:, ::-1], np.empty_like(counts)
    np.put_along_axis(kept, order, truncated(np.take_along_axis(counts, order, 1), room), 1)
    return kept


class LabelledRows(PackedRows):
    """Examples as rows; see PackedRows. Longer examples are cut, as `truncate` does.

    With S examples per row, at most, the arrays are:

        cls_positions   int32   [R, S]  places of [CLS]; 0 where there is no example
        labels          int32   [R, S]  0 where there is no example; for real numbers instead: targets, float32;
                                        for any number of labels: targets, 1 or 0, float32 [R, S, labels]
        weights         float32 [R, S]  1: an example, 0: none
    """

    slot, stream = "examples", 200

    def __init__(
        self,
        examples: LabelledTokens,
        special: SpecialIds,
        sequence_length: int,
        seed: int,
        packing: bool = True,
        truncate: Callable[[np.ndarray, int], np.ndarray] = truncated,
    ) -> None:
        counts = truncate(examples.counts, sequence_length - special_count(examples.counts.shape[1], special))
        super().__init__(examples.ids, examples.starts, counts, special, sequence_length, seed, packing)
        self.labels = examples.labels
        classes = self.labels.dtype == np.int32
        self._label_name = "labels" if classes else "targets"
        self._label_dtype = np.dtype(np.int32 if classes else np.float32)

    def arrays(self, members: np.ndarray, real: np.ndarray, layout: RowLayout, source: np.ndarray) -> Arrays:
        given = real.reshape(*real.shape, *[1] * (self.labels.ndim - 1))
        return {
            "cls_positions": layout.starts.astype(np.int32),
            self._label_name: np.where(given, self.labels[members], 0).astype(self._label_dtype),
            "weights": real.astype(np.float32),
        }


class DocumentRows(LabelledRows):
    """Documents of one text each as rows of at most W windows, so that a head can read all of a long text.

    A window is [CLS] tokens [SEP]; the next one goes on where it ends. A document has at least one window; what is
    longer than all windows together is cut. The windows of R documents are one after another: the arrays are those of
    LabelledRows, for [R * W, L] instead of [R, L] and [R, 1] instead of [R, S], without cls_positions.
    """

    def __init__(
        self,
        examples: LabelledTokens,
        special: SpecialIds,
        sequence_length: int,
        seed: int,
        packing: bool = False,
        windows: int = 1,
    ) -> None:
        super().__init__(examples, special, sequence_length, seed, packing=False)
        self.slots = {"examples": 1, "windows": windows}
        self.positions = windows * sequence_length
        self._begins = np.arange(windows) * (sequence_length - 2)  # of the windows' tokens
        self._tokens = examples.counts[:, 0]

    def sequences(self, members: np.ndarray, real: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        left = self._tokens[members] - self._begins  # (R, W): tokens from a window's beginning on
        counts = np.clip(left, 0, self.length - 2) * real
        lengths = np.where(real & ((left > 0) | (self._begins == 0)), counts + 2, 0)
        starts = self._starts[members, 0] + self._begins
        starts, counts = (np.stack((each, np.zeros_like(each)), -1).reshape(-1, 1, 2) for each in (starts, counts))
        return starts, counts, lengths.reshape(-1, 1)

    def arrays(self, members: np.ndarray, real: np.ndarray, layout: RowLayout, source: np.ndarray) -> Arrays:
        arrays = super().arrays(members, real, layout, source)
        return {name: array for name, array in arrays.items() if name != "cls_positions"}
