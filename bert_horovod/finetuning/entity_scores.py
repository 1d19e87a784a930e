"""Scores of entities, equal to those of seqeval 1.2.2: precision, recall and F1, by its default and its strict rules.

An entity is right if its type, its first and its last word are. A score without a denominator is 0.
"""

from collections.abc import Sequence

from bert_horovod.corpus.reading.tag_schemes import Entity, entities, strict_entities

Found = set[tuple[int, Entity]]  # with the number of the sentence


def entity_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str) -> dict[str, float]:
    """Micro averages over all entities; those by the strict rules begin with `strict_`.

    Args:
        gold, predicted: the tags of each sentence, as many for a sentence.
        scheme: for the strict rules.

    >>> scores = entity_scores([["B-PER", "I-PER", "O", "B-LOC"]], [["B-PER", "O", "O", "B-LOC"]], "IOB2")
    >>> scores["f1"], scores["strict_f1"]
    (0.5, 0.5)
    """
    strict = _of(predicted, scheme), _of(gold, scheme)
    return _shares(_of(predicted), _of(gold)) | {f"strict_{name}": value for name, value in _shares(*strict).items()}


def scores_by_type(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, dict[str, float]]:
    """The scores of each type by the default rules, and `support`, the number of its entities in `gold`."""
    found, right = _of(predicted), _of(gold)
    kinds = sorted({entity.type for _, entity in found | right})
    parts = {kind: [{pair for pair in pairs if pair[1].type == kind} for pairs in (found, right)] for kind in kinds}
    return {kind: _shares(*pairs) | {"support": len(pairs[1])} for kind, pairs in parts.items()}


def type_cells(by_type: dict[str, dict[str, float]]) -> list[list[str]]:
    """The scores of each type as the cells of a table."""
    names = ("precision", "recall", "f1")
    rows = [
        [kind, *(f"{scores[name]:.4f}" for name in names), f"{scores['support']:,}"] for kind, scores in by_type.items()
    ]
    return [["type", *names, "entities"], *rows]


def _of(sentences: Sequence[Sequence[str]], scheme: str | None = None) -> Found:
    return {
        (number, entity)
        for number, tags in enumerate(sentences)
        for entity in (entities(tags) if scheme is None else strict_entities(tags, scheme))
    }


def _shares(found: Found, right: Found) -> dict[str, float]:
    both = len(found & right)
    precision = both / len(found) if found else 0.0
    recall = both / len(right) if right else 0.0
    f1 = 2 * precision * recall / (precision + recall) if both else 0.0
    return {"f1": f1, "precision": precision, "recall": recall}
