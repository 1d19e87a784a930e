"""Toy checkpoints of sentence vectors, of each architecture, as fine-tuning writes them."""

import dataclasses
from pathlib import Path
from typing import Any

from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
from bert_horovod.interchange.huggingface import write_directory
from bert_horovod.interchange.tokenizer_files import read_tokenizer
from bert_horovod.model.architectures.roberta_settings import RobertaModel
from bert_horovod.model.parameters import initial_values
from bert_horovod.recipe.sections import Model
from bert_horovod.tasks.embedding import Embedding
from tests.model.architectures.lines import SIZES
from tests.model.modernbert_reference import SMALL
from tests.toy_glue import WORDS
from tests.toy_tokenizers import TEXT, write_kind

MODELS: dict[str, tuple[Model, str | None]] = {  # and the tokenizer, of toy_tokenizers; None: WORDS
    "bert": (Model(**SIZES), None),
    "albert": (Model(**SIZES, embedding_size=16, shared_layers=1), None),
    "roberta": (RobertaModel(**SIZES), "robertas"),
    "modernbert": (dataclasses.replace(SMALL, max_position_embeddings=64), "modernberts"),
}
TEXTS = ["good film", "", "the hero was bad . the plot is poor " * 5, *TEXT, "A"]  # the third one is cut
PROMPTS = ("the query : ", "passage: ")


def write_vectors(directory: Path, name: str = "bert", **settings: Any) -> Path:
    """A checkpoint of random parameters for texts of at most 24 tokens."""
    model, kind = MODELS[name]
    vocabulary, tokenizer = WORDS, UNCASED
    if kind:
        found = read_tokenizer(write_kind(directory.with_name(f"{directory.name}-tokenizer"), kind), None)
        vocabulary, tokenizer = found.vocabulary, found.settings
    model = dataclasses.replace(model, vocab_size=len(vocabulary))
    task = Embedding(("query", "passage"), **{"prompts": PROMPTS, "max_length": 24} | settings)
    write_directory(directory, model, task, initial_values(task.parameters(model), 0.2, 1), vocabulary, tokenizer)
    return directory
