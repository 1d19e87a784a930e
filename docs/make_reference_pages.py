#!/usr/bin/env python3
"""The pages that come from the code: metrics of a run, flags of every command, and lines of every room.

python docs/make_reference_pages.py writes docs/metrics.md; the site has the other two, made when it is built.
"""

import argparse
import dataclasses
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # works from a checkout that is not installed

from bert_horovod import commands  # noqa: E402
from bert_horovod.commands.shared.parser import Parser, add_commands  # noqa: E402
from bert_horovod.runs.metrics_lines import StepMetrics  # noqa: E402

METRICS = ROOT / "docs" / "metrics.md"
MEANINGS = {  # of the metrics of tasks; means over all ranks
    "mlm_loss": "cross-entropy of masked tokens, nats",
    "mlm_accuracy": "share of masked tokens that are guessed",
    "nsp_loss": "cross-entropy of next-sentence pairs, nats",
    "nsp_accuracy": "share of pairs that are told right",
    "sop_loss": "cross-entropy of sentence-order pairs, nats",
    "sop_accuracy": "share of pairs that are told right",
    "label_loss": "cross-entropy of labels, nats",
    "accuracy": "share of examples with the right label",
    "label_accuracy": "share of labels of all examples that are rightly given or not, at 0.5",
    "squared_error": "mean squared error",
    "relevance_loss": "cross-entropy of pairs' relevance, nats",
    "pair_loss": "of vectors: cross-entropy of the right passage among all, nats; of scored pairs, CoSENT",
    "start_loss": "cross-entropy of the answers' starts, nats",
    "end_loss": "cross-entropy of the answers' ends, nats",
    "tag_loss": "cross-entropy of words' tags, nats",
    "tag_accuracy": "share of words with the right tag",
    "span_accuracy": "share of windows whose start and end are right",
}


def cell(words: str) -> str:
    """Words as a cell of a table."""
    return " ".join(words.split()).replace("|", "\\|")


def flag(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    """The line of a flag, or of a word without one, in the table of its command."""
    formatter = parser._get_formatter()
    value = "" if action.nargs == 0 or action.choices else f" {action.metavar or action.dest.upper()}"
    names = ", ".join(f"`{name}{value}`" for name in action.option_strings) or f"`{action.metavar or action.dest}`"
    values = ", ".join(f"`{choice}`" for choice in action.choices or ())
    need = "required" if action.required and action.option_strings else ""
    return f"| {names} | {values} | {need} | {cell(formatter._expand_help(action)) if action.help else ''} |"


def parsers(parser: argparse.ArgumentParser, name: str = "") -> list[tuple[str, argparse.ArgumentParser]]:
    """Every command with its parser; a command of commands, such as bench, is before its own."""
    found = [(name, parser)] if name else []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                found += parsers(below, f"{name} {word}".strip())
    return found


def commands_page() -> str:
    """The page of commands."""
    whole = Parser(prog="bert-horovod")
    add_commands(whole, commands, "COMMAND", "run")
    parts = [
        "# Commands",
        "`bert-horovod COMMAND --help` prints the same.",
    ]
    for name, parser in parsers(whole):
        parts.append(f"## {name}\n\n```text\n{parser.description.strip()}\n```")
        shown = [
            action
            for action in parser._actions
            if not isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
            and "--helpfull" not in action.option_strings
        ]
        if shown:
            lines = [flag(action, parser) for action in shown]
            parts.append("\n".join(["| flag | values | | meaning |", "|---|---|---|---|", *lines]))
    return "\n\n".join(parts) + "\n"


def metrics_of_tasks() -> dict[str, list[str]]:
    """The names of the metrics that each task adds."""
    from bert_horovod.tasks.embedding import Embedding
    from bert_horovod.tasks.pretraining import Pretraining
    from bert_horovod.tasks.span import Span
    from bert_horovod.tasks.text_head import Classification, Multilabel, Regression, Reranking
    from bert_horovod.tasks.token_classification import TokenClassification

    tasks = {
        "pre-training": [Pretraining(True), Pretraining(True, "sop")],
        "classification": [Classification],
        "any number of labels": [Multilabel],
        "regression": [Regression],
        "reranking": [Reranking],
        "embedding": [Embedding],
        "question answering": [Span],
        "entities": [TokenClassification],
    }
    sums, counts = defaultdict(float), defaultdict(lambda: 1.0)
    found = {}
    for name, kinds in tasks.items():
        made = [kind if not isinstance(kind, type) else kind.__new__(kind) for kind in kinds]
        found[name] = list(dict.fromkeys(metric for task in made for metric in task.metrics(sums, counts)))
    return found


def metrics_page() -> str:
    """The page of metrics."""
    doc = StepMetrics.__doc__.split("\n\n", 1)[1]
    own = [
        f"| `{entry.name}` | {cell(entry.metadata['unit'])}"
        f"{', a part of `' + entry.metadata['part_of'] + '`' if 'part_of' in entry.metadata else ''} |"
        for entry in dataclasses.fields(StepMetrics)
    ]
    of_tasks = [
        f"| {name} | `{metric}` | {cell(MEANINGS[metric])} |"
        for name, metrics in metrics_of_tasks().items()
        for metric in metrics
    ]
    parts = [
        "# Metrics",
        "`metrics.jsonl` of a run has a JSON object on each line, and TensorBoard has its numbers.\n"
        "A line is written every `execution.log_steps` steps, after the run's first step, and at a phase's end.\n"
        "This page is made from the code by `python docs/make_reference_pages.py`.",
        " ".join(doc.split()).replace(". ", ".\n"),
        "\n".join(["| metric | unit |", "|---|---|", *own]),
        "## Metrics of tasks",
        "They come after `loss`.\n"
        "Lines of an evaluation have `step` and the same names with the prefix `held_out_`, those of a probe with "
        "`probe_`.\n`probe_pairs` is the accuracy in minimal pairs ([pairs.md](pairs.md)).\n"
        "A line with `incident` is a message about the step.",
        "\n".join(["| task | metric | unit |", "|---|---|---|", *of_tasks]),
    ]
    return "\n\n".join(parts) + "\n"


def lines_page() -> str:
    """The page of lines of Python: each room of the package with its tests, then what stands beside them."""

    def lines(folder: Path) -> int:
        return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in folder.rglob("*.py"))

    package, tests = ROOT / "bert_horovod", ROOT / "tests"
    rooms = sorted(folder.name for folder in package.iterdir() if (folder / "__init__.py").exists())
    counted = sorted(((lines(package / room), lines(tests / room), room) for room in rooms), reverse=True)
    whole = f"| **all, with what lies beside the rooms** | **{lines(package):,}** | **{lines(tests):,}** |"
    table = [f"| {room} | {own:,} | {of_tests:,} |" for own, of_tests, room in counted]
    parts = [
        "# Lines",
        "Lines of Python, docstrings and blank ones included.\n"
        "A change that adds more than 1,000 says what it takes away.",
        "\n".join(["| room | package | tests |", "|---|---|---|", *table, whole]),
        "Beside them: " + ", ".join(f"`{name}/` {lines(ROOT / name):,}" for name in ("lab", "run", "docs")) + ".",
    ]
    return "\n\n".join(parts) + "\n"


# What the site makes by itself: a page, and its words.
MADE_WITH_THE_SITE = {"commands.md": commands_page, "lines.md": lines_page}

if __name__ == "__main__":
    METRICS.write_text(metrics_page(), encoding="utf-8")
    print(f"{METRICS}: {len(METRICS.read_text(encoding='utf-8').splitlines())} lines")
