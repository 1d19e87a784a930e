"""The result of a prepare command, and what the command prints at its end."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_horovod.corpus.preparing.making_shards import Made
from bert_horovod.corpus.preparing.planning import Part
from bert_horovod.corpus.reading.sequences import token_letters
from bert_horovod.corpus.reading.sources import BAD_LINES
from bert_horovod.corpus.reading.text import CUT, SECTION_BYTES
from bert_horovod.corpus.statistics import silent_sources
from bert_horovod.corpus.store import read_sources
from bert_horovod.wording import counted, megabytes, some

# Recipes in run/recipes: (fewest tokens of a store for it, its name, its vocabulary size). On that many tokens,
# bert-medium and -small train 40 epochs, as published BERT did; bert-base-2026 23; bert-mini-fast 9; quickstart
# 6 epochs of 0.5 M.
_RECIPES = (
    (1_000_000_000, "bert-base-2026", 30522),
    (160_000_000, "bert-medium", 30522),
    (80_000_000, "bert-small", 30522),
    (4_000_000, "bert-mini-fast", 30522),
    (0, "quickstart", 4096),
)
_LONG_ROWS = "--set phase.0.sequence_length=512"  # of sequences


@dataclass(frozen=True)
class Result:
    """The result of a prepare command."""

    path: Path
    manifest: dict[str, Any]
    store_bytes: int
    seconds: float  # of reading and tokenizing; with workers, their start included
    made: Made | None  # None: the finished store was there already, undamaged


@dataclass(frozen=True)
class SharedResult:
    """The result of a prepare command that made a part and left the join to another."""

    store: Path
    part: Part
    made: Result | None  # None: the part was finished before
    missing: list[int]  # parts that are not finished
    joining: Part | None  # the part whose call joins them; number 0: a call with --join; None: the store is finished


def part_summary(shared: SharedResult) -> str:
    """The text that prepare --part prints at its end."""
    of = shared.part.of
    lines = [f"{shared.store}: part {shared.part} is finished"]
    if shared.made and shared.made.made:
        lines.append(_speed(shared.made.made, shared.made.seconds))
    if shared.missing:
        missing = some(shared.missing, 20)
        lines.append(f"not finished: part {missing} of {of}; whoever ends last joins them to the store")
    elif shared.joining:
        joining = f"part {shared.joining}" if shared.joining.number else "a call with --join"
        lines.append(f"{joining} joins the parts to the store; if it was killed, run it again, or --join for --part")
    else:
        lines.append("and so is the store")
    return "\n".join(lines)


def summary(prepared: Result, start: str | None = None, given: str = "") -> str:
    """The text that prepare prints at its end, with the next command to run.

    `start`: the checkpoint whose tokenizer was taken; None: there is none to start from. `given`: the recipe for whose
    rows it was made, with its changes, as words of a command line; "": none.
    """
    manifest, totals = prepared.manifest, prepared.manifest["totals"]
    state = "finished"
    if not prepared.made:
        state = "was finished already; sources, settings and vocabulary are the same and all hashes are right"
    unknown = 100 * totals["unknown_tokens"] / totals["tokens"]
    lines = [
        f"{prepared.path}: {state}",
        f"{counted(totals['documents'], 'document')}, {counted(totals['sentences'], 'sentence')}, "
        f"{counted(totals['tokens'], 'token')} ({unknown:.2f} % [UNK]), held out "
        f"{totals['held_out_sections']:,} of {counted(totals['sections'], 'section')} with "
        f"{counted(totals['held_out_tokens'], 'token')}, {megabytes(prepared.store_bytes)} on disk in "
        f"{counted(len(manifest['shards']), 'shard')}",
    ]
    duplicates = manifest["duplicates"]
    if duplicates["documents"]:
        lines.append(
            f"never read, as they repeat others: {counted(duplicates['documents'], 'document')} "
            f"({counted(duplicates['tokens'], 'token')})"
        )
    if totals["dropped_documents"]:
        lines.append(f"dropped: {counted(totals['dropped_documents'], 'document')} without tokens")
    if manifest["passed_over"]:
        counts = ", ".join(f"{count:,} {reason}" for reason, count in sorted(manifest["passed_over"].items()))
        lines.append(f"passed over: {counts}")
    bad = sum(manifest["passed_over"].get(reason, 0) for reason in BAD_LINES)
    if bad:
        lines.append(f"warning: {bad:,} bad lines or rows were passed over; --bad_lines stop names the first")
    if CUT in manifest["passed_over"]:
        lines.append(
            f"warning: sentences without an end (. ! ?) within {SECTION_BYTES >> 10} KiB were cut: is all of the input "
            "text?"
        )
    sources = read_sources(prepared.path, manifest)
    silent = silent_sources(sources)
    if silent:
        lines.append(f"warning: {len(silent)} of {len(sources)} files gave no text: {some(silent)}")
    if prepared.made and prepared.made.workers:  # none has only joined parts
        lines.append(_speed(prepared.made, prepared.seconds))
    if not totals["held_out_sections"] and manifest["settings"]["held_out"]:
        lines.append(
            "warning: no section is held out, as there are so few; a larger --held_out makes evaluation possible"
        )
    recipe = given or fitting_recipe(totals["tokens"], manifest["vocabulary"]["size"])
    if not given and "tokenizer" in manifest["vocabulary"]:  # which may make other rows of two texts
        recipe += " --set objective.pair=none"
    if not given and token_letters(manifest["settings"]["documents"]):
        recipe = f"modernbert-mini --set model.vocab_size={manifest['vocabulary']['size']} {_LONG_ROWS}"
    if start is not None:
        recipe = f"{given or 'domain'} --init_checkpoint {shlex.quote(start)}"
    store = shlex.quote(str(prepared.path.absolute()))
    lines.append(f"next: bert-horovod pretrain --recipe {recipe} --data_dir {store} --output_dir RUN")
    return "\n".join(lines)


def fitting_recipe(tokens: int, vocabulary_size: int) -> str:
    """The shipped recipe for a store of so many tokens, with the --set flag that its vocabulary needs, if any."""
    name, size = next((name, size) for least, name, size in _RECIPES if tokens >= least)
    vocabulary_override = "" if size == vocabulary_size else f" --set model.vocab_size={vocabulary_size}"
    return f"{name}{vocabulary_override}"


def _speed(made: Made, seconds: float) -> str:
    rate = made.made_bytes / max(made.worker_seconds, 1e-9)
    kept_text = f"; finished before: {counted(made.kept_blocks, 'block')}" if made.kept_blocks else ""
    before, peak = map(megabytes, made.memory)
    return (
        f"{megabytes(made.made_bytes)} of text in {seconds:.1f} s by {counted(made.workers, 'worker')}, "
        f"{megabytes(rate)}/s each once started{kept_text}; memory of a worker at most {peak}, of which {before} "
        "before the first text"
    )
