"""The architectures by their model_type in Hugging Face's config.json. No TensorFlow."""

from bert_horovod.model.architectures.albert import Albert
from bert_horovod.model.architectures.base import Family
from bert_horovod.model.architectures.bert import Bert
from bert_horovod.model.architectures.modernbert import ModernBert
from bert_horovod.model.architectures.modernbert_settings import ModernBertModel
from bert_horovod.recipe.sections import Model

FAMILIES: dict[str, Family] = {family.model_type: family for family in (Bert(), Albert(), ModernBert())}

# The settings of [model] by its architecture; an ALBERT is a BERT with settings of its own.
MODELS: dict[str, type[Model]] = {"bert": Model, "modernbert": ModernBertModel}


def family_of(model: Model) -> Family:
    """The architecture of a model; BERT if its settings choose no other."""
    return next((family for family in FAMILIES.values() if family.includes(model)), FAMILIES[Bert.model_type])


def class_name(model: Model, name: str) -> str:
    """Hugging Face's class for this model, given BERT's: for an ALBERT BertForMaskedLM becomes AlbertForMaskedLM."""
    return family_of(model).class_prefix + name.removeprefix(Bert.class_prefix)


def name_of_bert(name: str) -> str:
    """BERT's class of the same kind, the inverse of class_name; names of other models do not change.

    >>> name_of_bert("ModernBertForMaskedLM"), name_of_bert("RobertaForMaskedLM")
    ('BertForMaskedLM', 'RobertaForMaskedLM')
    """
    prefixes = [family.class_prefix for family in FAMILIES.values() if name.startswith(f"{family.class_prefix}For")]
    return Bert.class_prefix + name.removeprefix(prefixes[0]) if prefixes else name
