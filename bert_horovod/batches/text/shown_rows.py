"""Rows as text, for people."""

from collections.abc import Iterator

import numpy as np

from bert_horovod.batches.layout import SpecialIds
from bert_horovod.batches.words import WordBoundaries
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED, JsonTokenizer, TokenizerSettings
from bert_horovod.recipe.settings import Objective
from bert_horovod.wording import counted

LEGEND = (
    "[MASK:word]: word is to be predicted, the model sees [MASK]; [word→other]: it sees another; "
    "[word=]: it sees the word itself"
)
_PAIRS = {
    ("next_sentence", 0): "B continues A",
    ("next_sentence", 1): "B is from another document",
    ("sentence_order", 0): "B continues A",
    ("sentence_order", 1): "B and A are swapped",
}


class RowText:
    """Writes rows as text."""

    def __init__(
        self,
        vocabulary: list[str],
        special: SpecialIds,
        objective: Objective,
        settings: TokenizerSettings = UNCASED,
    ) -> None:
        self._special = special
        self._pair = objective.pair
        self._spans = objective.ngram > 1
        self._words = WordBoundaries(vocabulary, settings)
        self._names = self._words.texts if isinstance(settings, JsonTokenizer) else vocabulary

    def lines(self, row: dict[str, np.ndarray]) -> list[str]:
        """A row's text: how full it is, then each sequence with its label and segments; `row` has no first axis."""
        sequence_ids = row["sequence_ids"]
        used, length, count = np.count_nonzero(sequence_ids), len(sequence_ids), int(sequence_ids.max())
        masked = int(np.count_nonzero(row["masked_weights"]))
        sequences = f"{count} sequence{'s' if count > 1 else ''}"
        lines = [f"{used} of {length} positions used ({used / length:.1%}), {sequences}, {masked} tokens masked"]
        if self._spans and masked:
            lines[0] += f": {self._runs(row['masked_positions'][:masked], row['masked_ids'][:masked])}"
        for sequence in range(1, count + 1):
            lines += self._sequence(row, sequence)
        return lines

    def _runs(self, positions: np.ndarray, ids: np.ndarray) -> str:
        """Count the masked words that stand alone, and the runs of 2, 3, ... words; a run may be several spans."""
        begins = np.append(True, np.diff(positions) > 1)
        words = np.add.reduceat(begins | ~self._words.continues(ids), np.flatnonzero(begins), dtype=int)
        counts = np.bincount(words)
        single = [f"{counted(int(counts[1]), 'word')} alone"] if counts[1] else []
        runs = [f"{counted(int(counts[n]), 'run')} of {n} words" for n in range(2, len(counts)) if counts[n]]
        return ", ".join(single + runs)

    def _sequence(self, row: dict[str, np.ndarray], sequence: int) -> Iterator[str]:
        places = np.flatnonzero(row["sequence_ids"] == sequence)
        label = ""
        if self._pair != "none" and row["sequence_weights"][sequence - 1]:
            label = ": " + _PAIRS[self._pair, int(row["next_sentence_labels"][sequence - 1])]
        yield f"  sequence {sequence}, {len(places)} positions{label}"
        used = row["masked_weights"] > 0
        masked = dict(zip(row["masked_positions"][used].tolist(), row["masked_ids"][used].tolist(), strict=True))
        for name, segment in zip("AB", _segments(row["token_type_ids"], places), strict=False):
            yield f"    {name}: {self._text(row['input_ids'], segment, masked)}"

    def _text(self, ids: np.ndarray, segment: list[int], masked: dict[int, int]) -> str:
        text = ""
        originals = [masked.get(place, int(ids[place])) for place in segment]
        continues = self._words.continues(np.array(originals))
        for place, original, goes_on in zip(segment, originals, continues, strict=True):
            goes_on = goes_on and place != segment[0]
            token = self._words.texts[original] if goes_on else self._names[original]
            if place in masked:
                token = self._marked(original, int(ids[place]))
            text += token if goes_on else f" {token}"
        return text.strip()

    def _marked(self, original: int, shown_id: int) -> str:
        token = self._names[original]
        if shown_id == self._special.mask:
            return f"[MASK:{token}]"
        return f"[{token}=]" if shown_id == original else f"[{token}→{self._names[shown_id]}]"


def _segments(token_types: np.ndarray, places: np.ndarray) -> list[list[int]]:
    """The places of a sequence's segments, without [CLS] and [SEP]."""
    second = token_types[places] == 1
    segments = [places[~second][1:-1], places[second][:-1]]
    return [segment.tolist() for segment in segments if len(segment)]
