"""What every architecture is tested for by test_conformance.py: a line gives its model and a transcription."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bert_horovod.model.architectures.families import family_of
from bert_horovod.model.architectures.roberta_settings import RobertaModel
from bert_horovod.recipe.sections import Model
from tests.model import modernbert_reference
from tests.model.modernbert_reference import SMALL
from tests.model.reference import ALBERT, MODEL, Reference

Parameters = dict[str, np.ndarray]
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}


class Line(NamedTuple):
    """An architecture under test."""

    model: Model  # of toy size
    # Hidden states of one sequence alone, [tokens, hidden] each: of a model, parameters, ids and types.
    transcribed: Callable[[Model, Parameters, np.ndarray, np.ndarray], list[np.ndarray]] | None
    kind: str = ""  # Hugging Face's class of masked tokens and its configuration
    configuration: str = ""
    settings: dict[str, Any] = {}  # noqa: RUF012 - read alone; of the configuration, beside SIZES
    training: dict[str, Any] = {}  # noqa: RUF012 - read alone; of [model] in a run


def of_bert(model: Model, parameters: Parameters, ids: np.ndarray, types: np.ndarray) -> list[np.ndarray]:
    """Hidden states by reference.py."""
    return Reference(model, parameters).encode(ids, types)


def of_modernbert(model: Model, parameters: Parameters, ids: np.ndarray, types: np.ndarray) -> list[np.ndarray]:
    """Hidden states by modernbert_reference.py, which has the names of files."""
    del types
    in_file = {family_of(model).name_in_file(name): value for name, value in parameters.items()}
    return modernbert_reference.encode(model, in_file, ids)


SPANNED = dataclasses.replace(SMALL, local_attention=24)  # rows are too short beside it for blocks
NARROW = {"embedding_size": 16, "shared_layers": 1, "hidden_act": "gelu_new"}
ROPE = {"local_attention": 8, "global_rope_theta": 100.0}
IDS = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
LINES = {
    "bert": Line(MODEL, of_bert, "BertForMaskedLM", "BertConfig"),
    "bert, gelu_new": Line(dataclasses.replace(MODEL, hidden_act="gelu_new"), of_bert),
    "albert": Line(
        ALBERT,
        of_bert,
        "AlbertForMaskedLM",
        "AlbertConfig",
        {"embedding_size": 16, "num_hidden_groups": 2, "hidden_act": "gelu_new"},
        NARROW,
    ),
    "albert, one layer": Line(dataclasses.replace(ALBERT, shared_layers=1), of_bert),
    "albert, own layers": Line(dataclasses.replace(ALBERT, shared_layers=0), of_bert),
    "roberta": Line(
        RobertaModel(**{name: getattr(MODEL, name) for name in SIZES}),
        None,
        "RobertaForMaskedLM",
        "RobertaConfig",
        {"max_position_embeddings": 66, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "hidden_act": "gelu"},
    ),
    "modernbert": Line(
        SMALL,
        of_modernbert,
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        {**ROPE, **IDS},
        {"architecture": "modernbert", **ROPE},
    ),
    "modernbert, whole last layer": Line(dataclasses.replace(SMALL, num_hidden_layers=4), of_modernbert),
    "modernbert, whole windows": Line(SPANNED, of_modernbert),
}
