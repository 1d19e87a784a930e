"""Gives a checkpoint another vocabulary: that of its own with new pieces in [unused...] places and behind.

A new piece gets the mean of the embeddings of the pieces that the old vocabulary cut it into (as Sachidananda et al.
2021, arXiv 2109.07460), and so does its bias in the head of masked tokens. Then the model reads a new piece about as it
read the old ones.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from bert_horovod.corpus.reading.tokenizer_settings import token_ids
from bert_horovod.corpus.reading.vocabulary_extension import longest_piece, unused_places, word_pieces
from bert_horovod.errors import UserError
from bert_horovod.interchange.huggingface import Pretrained
from bert_horovod.model.parameters import DECODER_BIAS, WORD_EMBEDDINGS


class NewPieces(NamedTuple):
    """The old ids of each new piece, by its new id."""

    origins: dict[int, list[int]]
    behind: int  # new pieces behind the old vocabulary
    unknown: int  # pieces that the old vocabulary read as [UNK]

    def __str__(self) -> str:
        unknown = f"; {self.unknown:,} of them were [UNK]" if self.unknown else ""
        return (
            f"{len(self.origins):,}, {len(self.origins) - self.behind:,} in places of [unused...] tokens and "
            f"{self.behind:,} behind; each has the mean of its old pieces' embeddings{unknown}"
        )


def find_new_pieces(old: list[str], new: list[str], source: str) -> NewPieces:
    """The pieces that a vocabulary has and a checkpoint's own lacks; raises UserError if an old token has moved."""
    ids, free = token_ids(old), set(unused_places(old))
    moved = [number for number, token in enumerate(old) if number not in free and new[number : number + 1] != [token]]
    if moved:
        there = repr(new[moved[0]]) if moved[0] < len(new) else "nothing"
        raise UserError(
            f"{source} has {there} at id {moved[0]}, where the checkpoint has {old[moved[0]]!r}; expected the "
            "checkpoint's own vocabulary with new pieces, made by: bert-horovod vocab --extend CHECKPOINT"
        )
    if twice := [token for token, number in token_ids(new).items() if ids.get(token, number) != number]:
        raise UserError(f"{source} has {twice[0]!r} twice: expected each token once")
    longest, unknown_id, origins, unknown = longest_piece(ids), ids["[UNK]"], {}, 0
    for number, token in enumerate(new):
        if not token or old[number : number + 1] == [token]:
            continue
        pieces = word_pieces(token.removeprefix("##"), ids, longest, continues=token.startswith("##"))
        unknown += pieces is None
        origins[number] = [unknown_id] if pieces is None else [ids[piece] for piece in pieces]
    return NewPieces(origins, max(0, len(new) - len(old)), unknown)


def with_vocabulary(pretrained: Pretrained, vocabulary: list[str], source: str) -> tuple[Pretrained, NewPieces]:
    """The checkpoint with another vocabulary, and what is new in it; arguments and errors as in find_new_pieces."""
    new = find_new_pieces(pretrained.vocabulary, vocabulary, source)
    if taken := [token.content for token in pretrained.tokenizer_settings.added if token.content not in vocabulary]:
        raise UserError(
            f"{source} replaces {taken[0]!r}, which the checkpoint's tokenizer looks for in text: leave it there"
        )
    size = max(pretrained.model.vocab_size, len(vocabulary))
    parameters = dict(pretrained.parameters)
    for name in (WORD_EMBEDDINGS, DECODER_BIAS):
        if name in parameters:
            old = parameters[name]
            parameters[name] = np.concatenate([old, np.zeros((size - len(old), *old.shape[1:]), np.float32)])
            for number, origins in new.origins.items():
                parameters[name][number] = old[origins].mean(axis=0, dtype=np.float64)
    model = dataclasses.replace(pretrained.model, vocab_size=size)
    return pretrained._replace(model=model, parameters=parameters, vocabulary=vocabulary), new
