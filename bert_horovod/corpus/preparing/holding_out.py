"""Holds out more sections of a small store.

Hashes choose the held-out sections. Of a few sections they may choose none, or only sections of one document, but
next-sentence pairs need two documents.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.corpus.preparing.parts import Part, rewrite_part
from bert_horovod.corpus.statistics import kept_documents, section_token_starts
from bert_horovod.corpus.store import Shard, hash_shard, write_array

DOCUMENTS = 2  # at least so many have a held-out section
_FEWEST_DOCUMENTS = 3  # in the store, so that one is left to train on


def hold_out_more(
    store: Path, parts: list[Part], shard_entries: list[dict[str, Any]], shards: list[Shard], duplicates: np.ndarray
) -> tuple[int, int]:
    """Hold out a section of further documents until two documents have one, if the store has three documents or more.

    The documents' hashes alone choose the sections. Documents of several sections come first, because their other
    sections are left to train on. Changes the shards' files and `entries`.

    Args:
        store: the directory.
        parts: the parts that became shards, in order.
        shard_entries: the shards' entries in the manifest.
        shards: their arrays.
        duplicates: int64, numbers of duplicate documents, over all shards; they are never chosen.

    Returns how many more sections and tokens are held out now.
    """
    held, candidates, first, kept_count = 0, [], 0, 0
    for number, shard in enumerate(shards):
        kept_of_shard = kept_documents(shard, duplicates - first)
        first += len(kept_of_shard)
        kept_count += int(kept_of_shard.sum())
        if not len(kept_of_shard):
            continue
        has = np.logical_or.reduceat(np.asarray(shard.held_out), np.asarray(shard.documents[:-1]))
        held += int((has & kept_of_shard).sum())
        if held >= DOCUMENTS:
            return 0, 0
        single = np.diff(np.asarray(shard.documents)) == 1
        free = np.flatnonzero(kept_of_shard & ~has)
        order = np.lexsort((shard.document_hashes[free, 0], single[free]))[:DOCUMENTS]
        candidates += [(bool(single[i]), int(shard.document_hashes[i, 0]), number, int(i)) for i in free[order]]
    if kept_count < _FEWEST_DOCUMENTS:
        return 0, 0
    chosen: dict[int, list[int]] = {}
    for _, _, number, document in sorted(candidates)[: DOCUMENTS - held]:
        chosen.setdefault(number, []).append(document)
    changes = [_hold_out(store, parts[i], shard_entries[i], shards[i], documents) for i, documents in chosen.items()]
    return sum(sections for sections, _ in changes), sum(tokens for _, tokens in changes)


def _hold_out(
    store: Path, part: Part, shard_entry: dict[str, Any], shard: Shard, documents: list[int]
) -> tuple[int, int]:
    begins, sizes = np.asarray(shard.documents), np.diff(np.asarray(shard.documents))
    sections = [int(begins[i] + shard.document_hashes[i, 1] % np.uint64(sizes[i])) for i in documents]
    held_out = np.array(shard.held_out)
    held_out[sections] = True
    tokens = int(np.diff(section_token_starts(shard).astype(np.int64))[sections].sum())
    directory = store / shard_entry["name"]
    temporary = directory / ".held_out.npy.partial"
    write_array(temporary, held_out)
    os.replace(temporary, directory / "held_out.npy")
    shard_entry["sha256"] = hash_shard(directory)
    totals = dict(part.totals)
    totals["held_out_sections"] += len(sections)
    totals["held_out_tokens"] += tokens
    rewrite_part(directory, part, totals, shard_entry["sha256"])
    return len(sections), tokens
