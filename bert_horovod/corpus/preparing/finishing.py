"""Finishes a store whose shards are made: duplicates, held-out sections, names, manifest."""

from collections import Counter
from pathlib import Path
from typing import Any

from bert_horovod.corpus.manifest import Source
from bert_horovod.corpus.preparing import destination
from bert_horovod.corpus.preparing.duplicates import count_tokens, find_duplicates
from bert_horovod.corpus.preparing.holding_out import hold_out_more
from bert_horovod.corpus.preparing.making_shards import Made, refuse_unknown
from bert_horovod.corpus.preparing.parts import Part, PartArrays, number_shards
from bert_horovod.corpus.preparing.planning import ShardTask
from bert_horovod.corpus.reading.sources import SourceFile, changed_names
from bert_horovod.corpus.shard import COUNTS
from bert_horovod.corpus.store import write_duplicates, write_manifest, write_sources
from bert_horovod.errors import RunError, UserError
from bert_horovod.wording import counted

_TOTALS = ("held_out_sections", "held_out_tokens", "unknown_tokens", "dropped_documents")


def finish(
    path: Path, head: dict[str, Any], sources: list[SourceFile], tasks: list[ShardTask], made: Made
) -> dict[str, Any]:
    """Find duplicates, number the shards, write the manifest, which is returned.

    Args:
        path: the store's directory, which holds the shards.
        head: of the manifest.
        sources: the input.
        tasks: the whole plan.
        made: the shards of all tasks.
    """
    parts = made.parts
    _refuse_empty(path, parts, sources)
    pieces = {task.key: task.pieces for task in tasks}
    totals = Counter(dict.fromkeys((*COUNTS, *_TOTALS), 0))
    passed_over: Counter[str] = Counter()
    of_source = {source: Counter(dict.fromkeys(("documents", "tokens", "unknown_tokens"), 0)) for source in sources}
    hashes = dict(made.hashes)
    for part in parts:
        totals.update(part.counts)
        totals.update({name: part.totals[name] for name in _TOTALS})
        passed_over.update(part.passed_over)
        for number, counts in part.totals["pieces"].items():
            of_source[pieces[part.task][int(number)].source].update(counts)
        hashes |= {pieces[part.task][int(number)].source: digest for number, digest in part.hashes.items()}
    refuse_unknown(path, totals["unknown_tokens"], totals["tokens"])
    if changed := changed_names(sources):
        raise RunError(f"{', '.join(changed[:3])} changed while being read; run the same command again")
    described = [
        Source(
            name=source.name,
            bytes=source.bytes,
            sha256=hashes[source],
            documents=counts["documents"],
            tokens=counts["tokens"],
            unknown_tokens=counts["unknown_tokens"],
        )
        for source, counts in of_source.items()
    ]
    filled = [part for part in parts if part.counts["tokens"]]
    arrays = PartArrays(path, filled, made.shards, head["vocabulary"]["size"])
    duplicates = find_duplicates(arrays)
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
        "duplicates": {
            "documents": len(duplicates),
            "tokens": repeated_tokens,
            "sha256": write_duplicates(path, duplicates),
        },
    }
    write_manifest(path, manifest)
    destination.end(path, sources)
    return manifest


def _refuse_empty(path: Path, parts: list[Part], sources: list[SourceFile]) -> None:
    if not any(part.counts["tokens"] for part in parts):
        destination.clear(path)
        names = ", ".join(str(source.path) for source in sources[:3]) + (", ..." if len(sources) > 3 else "")
        raise UserError(
            f"the input yields no tokens ({counted(len(sources), 'file')}: {names}; "
            f"{sum(source.bytes for source in sources):,} bytes); expected text: look at --input"
        )
