"""Score pairs of a query and a passage: the probability that the passage is relevant."""

from typing import Any

from bert_horovod.errors import UserError
from bert_horovod.inference.options import Progress
from bert_horovod.inference.text_answers import sigmoid
from bert_horovod.inference.text_predictor import TextPredictor
from bert_horovod.interchange.suitability import classifier_labels
from bert_horovod.tasks.text_head import Reranking


class RerankPredictor(TextPredictor):
    """See Predictor; of a BertForSequenceClassification with one output, as sentence-transformers' CrossEncoder has."""

    def make_task(self) -> Reranking:
        if self.options.threshold is not None:
            raise UserError(
                f"--threshold is for checkpoints that give a text any number of labels; {self.directory} ranks"
            )
        labels = classifier_labels(self.directory, self.config)
        if len(labels) != 1:
            raise UserError(f"--checkpoint {self.directory} ranks by {len(labels)} outputs; expected one")
        columns = self.config.get("text_columns")
        columns = tuple(map(str, columns)) if isinstance(columns, list) else ("query", "passage")
        return Reranking(labels[0], columns)

    def answers(
        self, texts: tuple[list[str], ...], packing: bool, progress: Progress | None = None, as_json: bool = False
    ) -> list[list[Any]]:
        return [[score] for score in sigmoid(self.logits(texts, packing, progress))[:, 0].round(6).tolist()]
