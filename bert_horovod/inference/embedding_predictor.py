"""Compare pairs of texts by their vectors: the cosine of each pair."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_horovod.batches.examples.embedding_rows import EmbeddingRows, tokenised_texts
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.errors import UserError
from bert_horovod.inference.options import Progress
from bert_horovod.inference.predicting import Predictor, line_length
from bert_horovod.tasks.embedding import Embedding, embedding_of


class EmbeddingPredictor(Predictor):
    """See Predictor; of an encoder whose config.json has tasks.embedding.KEY."""

    task: Embedding

    def make_task(self) -> Embedding:
        task = embedding_of(self.config)
        assert task is not None  # the kind has claimed it
        return task

    def prepare(self) -> None:
        self._tokenizer = Tokenizer(self.vocabulary, self.tokenizer_settings)

    @property
    def columns(self) -> tuple[str, ...]:
        return super().columns[:2]

    def answers(
        self, texts: tuple[list[str], ...], packing: bool, progress: Progress | None = None, as_json: bool = False
    ) -> list[list[Any]]:
        if len(texts) != 2:
            raise UserError(f"--checkpoint {self.directory} compares two texts; expected two --text_columns")
        vectors = [self.vectors(side, place, packing, progress) for place, side in enumerate(texts)]
        return [[cosine] for cosine in (vectors[0] * vectors[1]).sum(1, dtype=np.float64).round(6).tolist()]

    def vectors(self, texts: Sequence[str], column: int, packing: bool, progress: Progress | None = None) -> np.ndarray:
        """The texts' vectors of length 1, float32 [texts, hidden]; `column` is that whose prompt they get."""
        prompts = self.task.prompts[min(column, len(self.task.prompts) - 1) :][:1]
        tokens = tokenised_texts((list(texts),), prompts, None, self._tokenizer)
        length = self.length if packing else line_length(int(tokens.counts.max()) + 2, self.length)
        rows = EmbeddingRows(tokens, self.special, length, 0, packing)
        vectors = rows.by_item(self.outputs(rows, packing, progress)["vectors"])[:, 0]
        return unit(vectors)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors divided by their length, on the last axis; 0 stays 0."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
