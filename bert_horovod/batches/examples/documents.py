"""Documents as rows of several windows each, so that a head can read all of a long text."""

import numpy as np

from bert_horovod.batches.examples.labelled import LabelledDataset, LabelledRows, LabelledTokens
from bert_horovod.batches.layout import lay_out
from bert_horovod.batches.special_tokens import SpecialIds, special_ids


class DocumentRows(LabelledRows):
    """The documents of a split, endless, in random access; see batches.source.Source. A row is a document.

    A window is [CLS] tokens [SEP]; the next one goes on where it ends. A document has at least one window; what is
    longer than all windows together is cut.

    Args:
        examples: the split's documents, of one text each.
        special: the vocabulary's special ids.
        sequence_length: positions of a window, L.
        seed: orders the documents.
        windows: of a document, at most, W.
    """

    def __init__(
        self, examples: LabelledTokens, special: SpecialIds, sequence_length: int, seed: int, windows: int
    ) -> None:
        super().__init__(examples, special, sequence_length, seed, packing=False)
        self.slots = {"examples": 1, "windows": windows}
        self._begins = np.arange(windows) * (sequence_length - 2)  # of the windows' tokens
        self._tokens = examples.counts[:, 0]

    def assemble(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Make the documents at these positions; a position of -1 makes windows of padding with weight zero.

        The windows of R documents are one after another. The arrays are those of LabelledRows.assemble, for
        [R * W, L] instead of [R, L] and [R, 1] instead of [R, S], without cls_positions.
        """
        number = self.examples(positions)
        real = number >= 0
        number = np.maximum(number, 0)
        left = self._tokens[number] - self._begins  # (R, W): tokens from a window's beginning on
        tokens = np.clip(left, 0, self._length - 2) * real
        lengths = np.where(real & ((left > 0) | (self._begins == 0)), tokens + 2, 0)
        layout = lay_out(tokens.reshape(-1, 1), lengths.reshape(-1, 1), self._length)
        begins = (self._starts[number, 0] + self._begins).reshape(-1, 1)
        source = layout.spread(begins) + layout.place - 1
        ids = np.where(layout.is_text, self._ids[np.where(layout.is_text, source, -1)], layout.ids(self._special))
        return {
            **layout.inputs(ids),
            self._label_name: self._labels_at(number, real).astype(self._label_dtype),
            "weights": real.astype(np.float32),
        }


class DocumentDataset(LabelledDataset):
    """Labelled documents as the dataset of a run; objective.label_attention is the number of windows."""

    def rows(self, phase: int, examples: LabelledTokens, training: bool = False) -> DocumentRows:
        recipe = self.recipe
        return DocumentRows(
            examples,
            special_ids(self.vocabulary, self.tokenizer_settings),
            recipe.phase[phase].sequence_length,
            self.seed(phase, training),
            recipe.objective.label_attention,
        )
