"""Whether a checkpoint suits a command, with one message of each kind; labels of two heads matched by name."""

from typing import Any

from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
from bert_horovod.errors import DamagedData, UserError
from bert_horovod.interchange.architectures import (
    CLASSIFICATION,
    LABELLED,
    SEVERAL_LABELS,
    WORDS_AFTER_BLANKS,
    default_labels,
)
from bert_horovod.model.architectures.families import family_of, name_of_bert
from bert_horovod.recipe.sections import Model
from bert_horovod.storage.reading import shown

_PROBLEMS = (None, "single_label_classification", "regression", SEVERAL_LABELS)


def require_vocabulary(path: object, vocabulary: list[str] | None, flag: str = "--checkpoint ") -> list[str]:
    """The vocabulary of a checkpoint; raises UserError if it has none."""
    if vocabulary is None:
        raise UserError(
            f"{flag}{path} has no vocabulary; expected vocab.txt or tokenizer.json beside its configuration: copy the "
            "vocab.txt there that the model was trained with"
        )
    return vocabulary


def tells_texts_apart(model: Model, settings: TokenizerSettings) -> bool:
    """Whether a model can tell the first text of a pair from the second: by segment types, or by [SEP] alone."""
    pair = settings.pair
    return model.type_vocab_size > 1 or not family_of(model).segments or (pair is not None and not pair.typed)


def require_segments(path: object, model: Model, settings: TokenizerSettings, first: str, second: str) -> None:
    """Raise UserError if a model has one segment type only, and its tokenizer gives two texts types of their own."""
    if not tells_texts_apart(model, settings):
        raise UserError(
            f"--checkpoint {path} has type_vocab_size = {model.type_vocab_size}, so that it cannot tell {first} and "
            f"{second} apart; expected 2: take another checkpoint"
        )


def named_labels(config: dict[str, Any]) -> Any:
    """The names of labels by their numbers as texts, as a config.json has them, which may be damaged.

    transformers writes none if they are those that it gives by default: then these.
    """
    names, count = config.get("id2label"), config.get("num_labels")
    if names is None:
        names = dict(enumerate(default_labels(count if type(count) is int and 0 < count < 1 << 16 else 2)))
    return {str(number): name for number, name in names.items()} if isinstance(names, dict) else names


def classifier_labels(path: object, config: dict[str, Any]) -> tuple[str, ...]:
    """The names of a classifier's labels, in the order of their numbers; one: a regression, but with several a text.

    Raises UserError if it is for another problem than labels of each text, or one number, DamagedData if its labels are
    not numbered from 0, or two have one name.
    """
    problem, labels = config.get("problem_type"), tuple(_names(config))
    if not labels or len(set(labels)) < len(labels):
        names = named_labels(config)
        raise DamagedData(
            f"{path}: config.json: id2label is {shown(names)}: expected names by numbers from 0, once each"
        )
    if problem not in _PROBLEMS or (problem == "regression" and len(labels) > 1):
        several = f" with {len(labels)} outputs" if problem == "regression" else ""
        raise UserError(
            f"{path}: config.json: problem_type = {shown(problem)}{several} is not supported: expected one label of "
            f"each text ('single_label_classification'), several ({SEVERAL_LABELS!r}), or one number ('regression')"
        )
    return labels


def words_after_blanks(config: dict[str, Any]) -> bool:
    """Whether a tagger (`config`: its config.json) learned from words with a blank before all but the first.

    This program puts the blank there, for tokenizers to which it makes a difference; transformers'
    is_split_into_words does not.
    """
    return bool(config.get(WORDS_AFTER_BLANKS, "transformers_version" not in config))


def named_class(config: dict[str, Any]) -> str | None:
    """BERT's class of the kind that a config.json (`config`: its content) names; None if it names no class.

    The name of a class of another program's model does not change.
    """
    named = config.get("architectures")
    return name_of_bert(str(named[0])) if isinstance(named, list) and named else None


def class_of_classifier(config: dict[str, Any]) -> str | None:
    """The class whose head a tensor called classifier is, by a config.json (`config`: its content): one of LABELLED.

    CLASSIFICATION if it names no class; None for a class without a use here, such as that of multiple choice.
    """
    name = named_class(config) or CLASSIFICATION
    return name if name in LABELLED else None


def head_rows(theirs: dict[str, Any], ours: dict[str, Any]) -> list[int] | None:
    """The rows of an existing head's weight, in the order of our labels; None if we cannot use the head.

    We can use a head that has the same architecture, problem and label names, by the configurations of both.
    """
    if named_class(theirs) != named_class(ours):
        return None
    numbers = ours.get("id2label", {})
    if ours.get("problem_type") == "regression":
        single = theirs.get("problem_type") == "regression" or theirs.get("num_labels") == 1
        return [0] if single or len(_names(theirs)) == 1 else None
    if (theirs.get("problem_type") == SEVERAL_LABELS) != (ours.get("problem_type") == SEVERAL_LABELS):
        return None
    names = _names(theirs)
    wanted_names = [numbers[str(number)] for number in range(len(numbers))]
    if sorted(names) != sorted(wanted_names):
        return None
    return [names.index(name) for name in wanted_names]


def _names(config: dict[str, Any]) -> list[str]:
    """The label names in the order of their numbers; empty if numbers are missing."""
    names = named_labels(config)
    if not isinstance(names, dict) or names.keys() != set(map(str, range(len(names)))):
        return []
    return [str(names[str(number)]) for number in range(len(names))]
