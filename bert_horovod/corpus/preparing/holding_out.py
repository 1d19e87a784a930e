"""Holds out more sections of a small store.

Hashes choose the held-out sections. Of a few sections they may choose none, or only sections of one document, but
next-sentence pairs need two documents.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bert_horovod.corpus.preparing.parts import PartArrays
from bert_horovod.corpus.shard import Shard
from bert_horovod.corpus.statistics import kept_documents, section_token_starts

DOCUMENTS = 2  # at least so many have a held-out section
_FEWEST_DOCUMENTS = 3  # in the store, so that one is left to train on


def hold_out_more(arrays: PartArrays, duplicates: np.ndarray) -> tuple[PartArrays, int, int]:
    """Hold out a section of further documents until two documents have one, if the store has three documents or more.

    The documents' hashes alone choose the sections. Documents of several sections come first, because their other
    sections are left to train on. Writes the files of changed parts anew.

    Args:
        arrays: the parts that have text, in order.
        duplicates: int64, numbers of duplicate documents, over all parts; they are never chosen.

    Returns the parts afterwards, and how many more sections and tokens are held out now.
    """
    more_sections = more_tokens = 0
    for number, documents in _choose(arrays, duplicates).items():
        part, shard = arrays.parts[number], arrays[number]
        begins, sizes = np.asarray(shard.documents), np.diff(np.asarray(shard.documents))
        sections = [int(begins[i] + shard.document_hashes[i, 1] % np.uint64(sizes[i])) for i in documents]
        held_out = np.array(shard.held_out)
        held_out[sections] = True
        tokens = int(np.diff(section_token_starts(shard).astype(np.int64))[sections].sum())
        totals = dict(part.totals)
        totals["held_out_sections"] += len(sections)
        totals["held_out_tokens"] += tokens
        arrays = arrays.replaced(number, replace(part, totals=totals), replace(shard, held_out=held_out))
        more_sections, more_tokens = more_sections + len(sections), more_tokens + tokens
    return arrays, more_sections, more_tokens


def _choose(shards: Sequence[Shard], duplicates: np.ndarray) -> dict[int, list[int]]:
    """The documents of which a section is to be held out, by the number of their part."""
    held, candidates, first, kept_count = 0, [], 0, 0
    for number, shard in enumerate(shards):
        kept_of_shard = kept_documents(shard, duplicates - first)
        first += len(kept_of_shard)
        kept_count += int(kept_of_shard.sum())
        has = np.logical_or.reduceat(np.asarray(shard.held_out), np.asarray(shard.documents[:-1]))
        held += int((has & kept_of_shard).sum())
        if held >= DOCUMENTS:
            return {}
        single = np.diff(np.asarray(shard.documents)) == 1
        free = np.flatnonzero(kept_of_shard & ~has)
        order = np.lexsort((shard.document_hashes[free, 0], single[free]))[:DOCUMENTS]
        candidates += [(bool(single[i]), int(shard.document_hashes[i, 0]), number, int(i)) for i in free[order]]
    if kept_count < _FEWEST_DOCUMENTS:
        return {}
    chosen: dict[int, list[int]] = {}
    for _, _, number, document in sorted(candidates)[: DOCUMENTS - held]:
        chosen.setdefault(number, []).append(document)
    return chosen
