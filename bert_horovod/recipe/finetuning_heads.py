"""Heads of a fine-tuning on labelled texts: the settings of [finetuning], of which `head` chooses the others."""

from dataclasses import dataclass
from typing import Any

from bert_horovod.recipe.fields import ReadIf, fixed, named, setting
from bert_horovod.recipe.methods_found import Methods
from bert_horovod.recipe.settings import CLASSIFICATION, MULTILABEL

PLAIN = "classifier"
_DOCUMENTS = ReadIf("a multilabel classification", tasks=(MULTILABEL,))


@dataclass(frozen=True)
class Head:
    """The head of a fine-tuning on labelled texts, and the weights of its labels; pre-training reads none of it.

    A head is a subclass with its settings. It may replace the task of a classification and add hooks;
    finetuning/kinds/texts.py asks it.
    """

    head: str = named("")
    # Weights of labels in the loss. balanced: rare labels weigh more, as their numbers of train examples say
    # (docs/finetuning.md); none: all examples weigh the same
    class_weights: str = setting(
        "none",
        choices=("none", "balanced"),
        read_if=ReadIf("a classification or multilabel", tasks=(CLASSIFICATION, MULTILABEL)),
    )

    windows: int = fixed(0)  # of a document; 0: texts are no documents

    def task(self, plain: Any) -> Any:
        """The task of a classification, given tasks.text_head.Classification with its labels, columns and weights."""
        return plain

    def hooks(self) -> tuple[type, ...]:
        """Further hooks of the training, subclasses of training.hooks.base.Hook."""
        return ()


@dataclass(frozen=True)
class Classifier(Head):
    """One linear layer over the pooler's output of [CLS], as in Hugging Face's classes."""

    head: str = named(PLAIN)


@dataclass(frozen=True)
class LabelAttentionHead(Head):
    """Each label attends over all tokens of a document's windows (docs/finetuning.md)."""

    head: str = named("label_attention", read_if=_DOCUMENTS, usual=PLAIN)
    # Most windows of a document, of phase.N.sequence_length positions each; what is longer is left out
    windows: int = setting(4, minimum=1, maximum=1024, read_if=_DOCUMENTS)


HEADS = Methods(Head, "head", (Classifier, LabelAttentionHead))
