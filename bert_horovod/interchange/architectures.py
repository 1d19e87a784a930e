"""Hugging Face's classes that this program reads, writes and exports, with their parameters."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from bert_horovod.model.architectures.families import class_name
from bert_horovod.model.parameters import CLASSIFIER, LABEL_QUERY, Shapes
from bert_horovod.model.shapes import (
    classifier_shapes,
    encoder_shapes,
    label_attention_shapes,
    masked_token_head_shapes,
    pair_head_shapes,
    span_head_shapes,
)
from bert_horovod.recipe.sections import Model
from bert_horovod.tasks.base import labels_configuration

ANSWERS, CLASSIFICATION = "BertForQuestionAnswering", "BertForSequenceClassification"
TAGS = "BertForTokenClassification"
PRETRAINING, MASKED_TOKENS, ENCODER = "BertForPreTraining", "BertForMaskedLM", "BertModel"
# A BertModel with the head of tasks/label_attention.py, which is no class of Hugging Face's: its files say BertModel.
LABEL_ATTENTION_MODEL = "BertModel with label attention"
# The richest first: a checkpoint that does not name its class gets the first class whose parameters it all has.
ARCHITECTURES = (ANSWERS, CLASSIFICATION, PRETRAINING, MASKED_TOKENS, ENCODER)
LABELLED = (CLASSIFICATION, TAGS)  # heads of both are called CLASSIFIER: only the class's name tells them apart
SEVERAL_LABELS = "multi_label_classification"  # problem_type of a classifier that gives a text any number of labels
LABEL_WINDOWS = "label_attention"  # key of the configuration of a model with label attention: windows of a document
WORDS_AFTER_BLANKS = "words_after_blanks"  # key of a tagger's configuration: see suitability.words_after_blanks
LABEL_THRESHOLD = "label_threshold"  # key of such a classifier's configuration: a text gets a label from there on
LABEL_SEPARATOR = "label_separator"  # key of the same: what stands between labels in a table
ANSWER_KEYS = ("version_2_with_negative", "doc_stride")  # keys of ANSWERS' configuration
_NEEDS_POOLER = (CLASSIFICATION, PRETRAINING)
CLASSIFIER_WEIGHT = f"{CLASSIFIER}.weight"


@dataclass(frozen=True)
class Architecture:
    """One of the classes. It has the part of tasks.base.Task's interface that writes a checkpoint."""

    name: str  # one of ARCHITECTURES, TAGS or LABEL_ATTENTION_MODEL; an ALBERT has the name of BERT's same class
    pooler: bool
    labels: tuple[str, ...] = ()  # of LABELLED's heads or label attention, in the order of their numbers
    problem: str | None = None  # CLASSIFICATION's problem_type; None: regression if it has one label
    threshold: float | None = None  # of a classifier that gives any number of labels
    windows: int = 0  # of a document, with label attention
    blanks: bool = True  # of TAGS, see suitability.words_after_blanks
    entries: dict[str, Any] | None = None  # further ones of config.json, by which its answers are made and written

    def parameters(self, model: Model) -> Shapes:
        """Names and shapes of encoder, pooler and heads, in forward order."""
        return encoder_shapes(model, self.pooler) | self._head(model)

    def configuration(self, model: Model) -> dict[str, Any]:
        """The content of config.json besides the sizes."""
        contents: dict[str, Any] = {"architectures": [self.class_name(model)]}
        if self.windows:
            contents[LABEL_WINDOWS] = self.windows
        if self.name in (*LABELLED, LABEL_ATTENTION_MODEL):
            contents |= labels_configuration(self.labels)
        if self.name in (CLASSIFICATION, LABEL_ATTENTION_MODEL):
            usual = "regression" if len(self.labels) == 1 else "single_label_classification"
            contents["problem_type"] = self.problem or usual
        if not self.blanks:
            contents[WORDS_AFTER_BLANKS] = False
        if self.threshold is not None:
            contents[LABEL_THRESHOLD] = self.threshold
        contents |= self.entries or {}
        return contents

    def class_name(self, model: Model) -> str:
        """Hugging Face's name of the class."""
        return class_name(model, ENCODER if self.name == LABEL_ATTENTION_MODEL else self.name)

    @property
    def heads(self) -> str:
        """The heads, for messages, such as "pooler, masked tokens, sentence pair"."""
        heads = {
            ANSWERS: ["answer span"],
            CLASSIFICATION: [f"classifier of {', '.join(self.labels)}"],
            TAGS: [f"tags {', '.join(self.labels)}"],
            LABEL_ATTENTION_MODEL: [f"label attention of {len(self.labels):,} labels"],
            PRETRAINING: ["masked tokens", "sentence pair"],
            MASKED_TOKENS: ["masked tokens"],
            ENCODER: [],
        }[self.name]
        return ", ".join([*(["pooler"] if self.pooler else []), *heads]) or "none"

    def _head(self, model: Model) -> Shapes:
        if self.name == ANSWERS:
            return span_head_shapes(model)
        if self.name in LABELLED:
            return classifier_shapes(model, len(self.labels))
        if self.name == LABEL_ATTENTION_MODEL:
            return label_attention_shapes(model, len(self.labels))
        pairs = pair_head_shapes(model) if self.name == PRETRAINING else {}
        return {} if self.name == ENCODER else pairs | masked_token_head_shapes(model)


class Contents(NamedTuple):
    """The content of a checkpoint, without values."""

    origin: str  # the format, for people
    model: Model
    shapes: dict[str, tuple[int, ...]]  # of all tensors; parameters have the names of model/parameters.py
    architectures: list[Architecture]  # classes whose parameters it has; its own class first
    optimizer: list[str]  # variables of the optimizer that trained it


def whole_heads(
    model: Model, shapes: dict[str, tuple[int, ...]], labelled: str | None = CLASSIFICATION
) -> list[Architecture]:
    """The classes whose parameters are all in a checkpoint, by its tensors' shapes, the richest first.

    `labelled`: which of LABELLED a head called CLASSIFIER is of; None: of another class.
    """
    of_pooler = encoder_shapes(model, True).keys() - encoder_shapes(model, False).keys()
    pooler = bool(of_pooler) and of_pooler <= shapes.keys()
    classifier = shapes.get(CLASSIFIER_WEIGHT, ())
    labels = default_labels(classifier[0]) if classifier[1:] == (model.hidden_size,) else ()
    names = [labelled if name == CLASSIFICATION else name for name in ARCHITECTURES]
    architectures = [
        Architecture(name, pooler, labels if name in LABELLED else ())
        for name in names
        if name and (pooler or not of_pooler or name not in _NEEDS_POOLER) and (labels or name not in LABELLED)
    ]
    query = shapes.get(f"{LABEL_QUERY}.weight", ())
    if query[1:] == (model.hidden_size,):
        architectures.insert(0, Architecture(LABEL_ATTENTION_MODEL, False, default_labels(query[0])))
    return [architecture for architecture in architectures if architecture._head(model).keys() <= shapes.keys()]


def default_labels(count: int) -> tuple[str, ...]:
    """The names that transformers gives to `count` labels without names."""
    return tuple(f"LABEL_{number}" for number in range(count))


def part_of_a_head(model: Model, names: Collection[str]) -> str | None:
    """The first missing parameter of a head, or of the pooler, that is only partly present; None if there is none."""
    pooler = encoder_shapes(model, True).keys() - encoder_shapes(model, False).keys()
    groups = [pooler, *(head(model) for head in (masked_token_head_shapes, pair_head_shapes, span_head_shapes))]
    for group in (*groups, classifier_shapes(model, 1)):
        present = [name for name in group if name in names]
        if present and len(present) < len(group):
            return next(name for name in group if name not in present)
    return None
