"""Finishes a store whose shards are made: duplicates, held-out sections, names, manifest."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.corpus.manifest import SourceEntry
from bert_horovod.corpus.preparing import destination
from bert_horovod.corpus.preparing.blocks import Block, BlockArrays, number_shards
from bert_horovod.corpus.preparing.making_shards import Made, refuse_unknown
from bert_horovod.corpus.preparing.planning import ShardTask
from bert_horovod.corpus.preparing.workers import hash_source
from bert_horovod.corpus.reading.sources import SourceFile, changed_names
from bert_horovod.corpus.shard import COUNTS, Shard
from bert_horovod.corpus.statistics import kept_documents, section_token_starts
from bert_horovod.corpus.store import sum_of_hashes, write_duplicates, write_manifest, write_sources
from bert_horovod.errors import RunError, UserError
from bert_horovod.wording import counted, some

_TOTALS = ("held_out_sections", "held_out_tokens", "unknown_tokens", "dropped_documents")


def finish_store(
    path: Path, head: dict[str, Any], sources: list[SourceFile], tasks: list[ShardTask], made: Made
) -> dict[str, Any]:
    """Find duplicates, number the shards, write the manifest, which is returned; `tasks`: the whole plan."""
    blocks = made.blocks
    _refuse_empty(path, blocks, sources)
    pieces = {task.key: task.pieces for task in tasks}
    totals = Counter(dict.fromkeys((*COUNTS, *_TOTALS), 0))
    passed_over: Counter[str] = Counter()
    of_source = {source: Counter(dict.fromkeys(("documents", "tokens", "unknown_tokens"), 0)) for source in sources}
    hashes = dict(made.hashes)
    for block in blocks:
        totals.update(block.counts)
        totals.update({name: block.totals[name] for name in _TOTALS})
        passed_over.update(block.passed_over)
        for number, counts in block.totals["pieces"].items():
            of_source[pieces[block.task][int(number)].source].update(counts)
        hashes |= {pieces[block.task][int(number)].source: digest for number, digest in block.hashes.items()}
    refuse_unknown(path, head, totals["unknown_tokens"], totals["tokens"])
    if changed := changed_names(sources):
        raise RunError(f"{', '.join(changed[:3])} changed while being read; run the same command again")
    described = [
        SourceEntry(
            name=source.name,
            bytes=source.bytes,
            sha256=hashes.get(source) or hash_source(source),  # where no block and no record tells it
            documents=counts["documents"],
            tokens=counts["tokens"],
            unknown_tokens=counts["unknown_tokens"],
        )
        for source, counts in of_source.items()
    ]
    filled = [block for block in blocks if block.counts["tokens"]]
    arrays = BlockArrays(path, filled, made.shards, head["vocabulary"]["size"])
    duplicates, text = find_duplicates(arrays), sum_of_hashes(arrays)
    repeated_tokens = count_tokens(arrays, duplicates)
    if head["settings"]["held_out"]:
        arrays, sections, tokens = hold_out_more(arrays, duplicates)
        totals.update({"held_out_sections": sections, "held_out_tokens": tokens})
    shard_entries = number_shards(path, arrays.files)
    manifest = {
        **head,
        "sources": write_sources(path, described),
        "shards": shard_entries,
        "totals": dict(totals),
        "passed_over": dict(passed_over),
        "text": text,
        "duplicates": {
            "documents": len(duplicates),
            "tokens": repeated_tokens,
            "sha256": write_duplicates(path, duplicates),
        },
    }
    write_manifest(path, manifest)
    destination.end(path, sources)
    return manifest


def _refuse_empty(path: Path, blocks: list[Block], sources: list[SourceFile]) -> None:
    if not any(block.counts["tokens"] for block in blocks):
        destination.clear(path)
        raise UserError(
            f"the input yields no tokens ({counted(len(sources), 'file')}: {some([file.path for file in sources])}; "
            f"{sum(source.bytes for source in sources):,} bytes); expected text: look at --input"
        )


_PASS_DOCUMENTS = 1 << 22  # documents sorted in memory at once, about 200 MB


def find_duplicates(shards: Sequence[Shard]) -> np.ndarray:
    """Numbers of the documents, counted over all shards, whose text is that of an earlier one: int64, ascending."""
    total = sum(len(shard.document_hashes) for shard in shards)
    passes = max(1, -(-total // _PASS_DOCUMENTS))
    duplicates = [_repeated(*_hashes_of_pass(shards, number, passes)) for number in range(passes)]
    return np.sort(np.concatenate(duplicates))


def count_tokens(shards: Sequence[Shard], documents: np.ndarray) -> int:
    """Tokens in these documents (numbers counted over all shards, ascending)."""
    tokens = first = 0
    for shard in shards:
        last = first + len(shard.documents) - 1
        mine = documents[np.searchsorted(documents, first) : np.searchsorted(documents, last)] - first
        bounds = np.asarray(shard.sentences)[np.asarray(shard.sections)[np.asarray(shard.documents)]].astype(np.int64)
        tokens += int((bounds[mine + 1] - bounds[mine]).sum())
        first = last
    return tokens


def _hashes_of_pass(shards: Sequence[Shard], number: int, passes: int) -> tuple[np.ndarray, np.ndarray]:
    """The hashes of pass `number`, uint64 [n, 2], and the numbers of their documents, int64 [n].

    A hash is in pass number (its first 64 bits modulo `passes`), so equal hashes are in the same pass.
    """
    hashes: list[np.ndarray] = [np.zeros((0, 2), np.uint64)]
    documents: list[np.ndarray] = [np.zeros(0, np.int64)]
    first = 0
    for shard in shards:
        chosen = np.flatnonzero(np.asarray(shard.document_hashes[:, 0]) % np.uint64(passes) == number)
        hashes.append(shard.document_hashes[chosen])
        documents.append(chosen + first)
        first += len(shard.document_hashes)
    return np.concatenate(hashes), np.concatenate(documents)


def _repeated(hashes: np.ndarray, documents: np.ndarray) -> np.ndarray:
    order = np.lexsort((documents, hashes[:, 1], hashes[:, 0]))
    same = (hashes[order[1:]] == hashes[order[:-1]]).all(axis=1)
    return documents[order[1:][same]]


DOCUMENTS = 2  # at least so many have a held-out section
_FEWEST_DOCUMENTS = 3  # in the store, so that one is left to train on


def hold_out_more(arrays: BlockArrays, duplicates: np.ndarray) -> tuple[BlockArrays, int, int]:
    """Hold out a section of further documents until two documents have one, if the store has three documents or more.

    Of a few sections the hashes may have chosen none, or only those of one document, but next-sentence pairs need two
    documents. The documents' hashes alone choose the sections. Documents of several sections come first, because their
    other sections are left to train on; duplicates are never chosen. Writes the files of changed blocks anew.
    Returns the blocks afterwards, and how many more sections and tokens are held out now.
    """
    more_sections = more_tokens = 0
    for number, documents in _choose(arrays, duplicates).items():
        block, shard = arrays.blocks[number], arrays[number]
        begins, sizes = np.asarray(shard.documents), np.diff(np.asarray(shard.documents))
        sections = [int(begins[i] + shard.document_hashes[i, 1] % np.uint64(sizes[i])) for i in documents]
        held_out = np.array(shard.held_out)
        held_out[sections] = True
        tokens = int(np.diff(section_token_starts(shard).astype(np.int64))[sections].sum())
        totals = dict(block.totals)
        totals["held_out_sections"] += len(sections)
        totals["held_out_tokens"] += tokens
        arrays = arrays.replaced(number, replace(block, totals=totals), replace(shard, held_out=held_out))
        more_sections, more_tokens = more_sections + len(sections), more_tokens + tokens
    return arrays, more_sections, more_tokens


def _choose(shards: Sequence[Shard], duplicates: np.ndarray) -> dict[int, list[int]]:
    """The documents of which a section is to be held out, by the number of their block."""
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
