"""The architectures by their model_type in Hugging Face's config.json."""

from bert_horovod.model.architectures.albert import Albert
from bert_horovod.model.architectures.base import Family
from bert_horovod.model.architectures.bert import Bert
from bert_horovod.model.architectures.modernbert import ModernBert
from bert_horovod.model.architectures.modernbert_settings import ModernBertModel
from bert_horovod.model.architectures.roberta import Roberta
from bert_horovod.model.architectures.roberta_settings import RobertaModel
from bert_horovod.recipe.sections import Model

FAMILIES: dict[str, Family] = {family.model_type: family for family in (Bert(), Albert(), Roberta(), ModernBert())}

# The settings of [model] by its architecture; an ALBERT is a BERT with settings of its own.
MODELS: dict[str, type[Model]] = {"bert": Model, "roberta": RobertaModel, "modernbert": ModernBertModel}


def family_of(model: Model) -> Family:
    """The architecture of a model; BERT if its settings choose no other."""
    return next((family for family in FAMILIES.values() if family.includes(model)), FAMILIES[Bert.model_type])


def by_model_type() -> dict[str, Family]:
    """FAMILIES, also by the names of models that compute the same."""
    return FAMILIES | {name: family for family in FAMILIES.values() for name in family.other_names}


def class_name(model: Model, name: str) -> str:
    """Hugging Face's class for this model, given BERT's: for an ALBERT BertForMaskedLM becomes AlbertForMaskedLM."""
    return family_of(model).class_prefix + name.removeprefix(Bert.class_prefix)


def name_of_bert(name: str) -> str:
    """BERT's class of the same kind, the inverse of class_name; names of other models do not change.

    >>> name_of_bert("ModernBertForMaskedLM"), name_of_bert("XLMRobertaForMaskedLM"), name_of_bert("GPT2LMHeadModel")
    ('BertForMaskedLM', 'BertForMaskedLM', 'GPT2LMHeadModel')
    """
    every = [prefix for family in FAMILIES.values() for prefix in (family.class_prefix, *family.other_names.values())]
    prefixes = [prefix for prefix in every if name.startswith((f"{prefix}For", f"{prefix}Model"))]
    return Bert.class_prefix + name.removeprefix(prefixes[0]) if prefixes else name


def names_of_heads(model: Model, name: str) -> dict[str, str]:
    """Names in Hugging Face's files of the heads of a class, given BERT's, by the names of parameters.py.

    Those that do not depend on the class are left to Family.name_in_file.
    """
    heads = family_of(model).heads.get(name.removeprefix(Bert.class_prefix), {})
    return {f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in heads.items() for kind in ("weight", "bias")}
