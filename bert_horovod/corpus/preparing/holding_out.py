"""A small store's held-out part: of a few sections, hashes may choose none, or those of one document alone, but pairs
for next-sentence prediction need two documents."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.corpus.preparing.parts import Part, rewrite_part
from bert_horovod.corpus.statistics import kept_documents, section_token_starts
from bert_horovod.corpus.store import Shard, hash_shard, write_array

DOCUMENTS = 2  # of which a section is held out at least
_FEWEST_DOCUMENTS = 3  # of a store, so that one is left to train on


def hold_out_more(
    store: Path, parts: list[Part], entries: list[dict[str, Any]], shards: list[Shard], duplicates: np.ndarray
) -> tuple[int, int]:
    """Hold out a section of further documents until there are sections of two documents, if there are three documents.

    Which ones follows from the documents' hashes alone. Documents of several sections come first, as something of them
    is left to train on. Shards and their entries in the manifest are changed.

    Args:
        store: the directory.
        parts: the parts that became shards, in order.
        entries: the shards' entries in the manifest.
        shards: their arrays.
        duplicates: int64, documents counted over all shards, which do not count.

    Returns how many sections and tokens are held out now that were not.
    """
    held, candidates, first, kept_count = 0, [], 0, 0
    for number, shard in enumerate(shards):
        kept = kept_documents(shard, duplicates - first)
        first += len(kept)
        kept_count += int(kept.sum())
        if not len(kept):
            continue
        has = np.logical_or.reduceat(np.asarray(shard.held_out), np.asarray(shard.documents[:-1]))
        held += int((has & kept).sum())
        if held >= DOCUMENTS:
            return 0, 0
        single = np.diff(np.asarray(shard.documents)) == 1
        free = np.flatnonzero(kept & ~has)
        order = np.lexsort((shard.document_hashes[free, 0], single[free]))[:DOCUMENTS]
        candidates += [(bool(single[i]), int(shard.document_hashes[i, 0]), number, int(i)) for i in free[order]]
    if kept_count < _FEWEST_DOCUMENTS:
        return 0, 0
    chosen: dict[int, list[int]] = {}
    for _, _, number, document in sorted(candidates)[: DOCUMENTS - held]:
        chosen.setdefault(number, []).append(document)
    changes = [_hold_out(store, parts[i], entries[i], shards[i], documents) for i, documents in chosen.items()]
    return sum(sections for sections, _ in changes), sum(tokens for _, tokens in changes)


def _hold_out(store: Path, part: Part, entry: dict[str, Any], shard: Shard, documents: list[int]) -> tuple[int, int]:
    begins, sizes = np.asarray(shard.documents), np.diff(np.asarray(shard.documents))
    sections = [int(begins[i] + shard.document_hashes[i, 1] % np.uint64(sizes[i])) for i in documents]
    held_out = np.array(shard.held_out)
    held_out[sections] = True
    tokens = int(np.diff(section_token_starts(shard).astype(np.int64))[sections].sum())
    directory = store / entry["name"]
    temporary = directory / ".held_out.npy.partial"
    with open(temporary, "wb") as file:
        write_array(file, held_out)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, directory / "held_out.npy")
    entry["sha256"] = hash_shard(directory)
    totals = dict(part.totals)
    totals["held_out_sections"] += len(sections)
    totals["held_out_tokens"] += tokens
    rewrite_part(directory, part, totals, entry["sha256"])
    return len(sections), tokens
