"""Writes the model card of a checkpoint: README.md, which says what the model is, how it was trained and how to use it.

The Hugging Face Hub shows it, and reads the metadata at its beginning: language, licence, library, pipeline.
People may edit the file, so it has no hash in training/hashes.json, and no reader of checkpoints needs it.
"""

import contextlib
import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from bert_horovod import __version__
from bert_horovod.batches.source import Dataset
from bert_horovod.errors import printable_line
from bert_horovod.interchange.sentence_transformers import SentenceVectors, vectors_of
from bert_horovod.recipe.sections import WHAT_SECTIONS, Model, Recipe
from bert_horovod.recipe_files.loading import recipe_to_table
from bert_horovod.runs.metrics_lines import StepMetrics, read_lines
from bert_horovod.storage.reading import read_json

CARD = "README.md"
_TAIL_BYTES = 8 << 20  # read of metrics.jsonl: the last evaluation and the last probe are in it
_OF_RUN = {entry.name for entry in dataclasses.fields(StepMetrics)} - {"loss"}
_WEIGHTS = 12  # digits of a checkpoint's hash that tell it from others
# By the end of the name of Hugging Face's class: the Hub's pipeline, and the class that loads the heads.
_USES = {
    "ForPreTraining": ("fill-mask", "AutoModelForMaskedLM"),
    "ForMaskedLM": ("fill-mask", "AutoModelForMaskedLM"),
    "ForSequenceClassification": ("text-classification", "AutoModelForSequenceClassification"),
    "ForTokenClassification": ("token-classification", "AutoModelForTokenClassification"),
    "ForQuestionAnswering": ("question-answering", "AutoModelForQuestionAnswering"),
}


def model_card(
    output_dir: Path,
    step: int,
    recipe: Recipe,
    parameters: int,
    configuration: dict[str, Any],
    dataset: Dataset | None,
    mean_of: Sequence[int] = (),
) -> str:
    """The text of a checkpoint's README.md; the same state and metrics give the same text.

    The run's run.json tells the checkpoint that it was started from, and its metrics.jsonl the losses and scores up to
    `step`; what cannot be read is left out. `configuration`: the task's entries of config.json. `dataset`: None if it
    is not at hand. `mean_of`: the steps of the checkpoints of which this is the mean, the last of them `step`; it has
    no scores, because the run's are of single checkpoints.
    """
    (class_name,) = configuration["architectures"]
    name = printable_line(output_dir.resolve().name)
    model = recipe.in_phase(recipe.phase[recipe.phase_at(step)]).model
    steps = ", ".join(f"{each:,}" for each in mean_of)
    facts = {
        "model": f"{class_name}, {_sizes(model)}, {parameters:,} parameters",
        "steps": f"{step:,} of {recipe.total_steps:,}",
        "tokens seen": f"{recipe.positions(step):,}, padding included",
        "data": dataset and f"{_named(dataset)}, {dataset.tokens:,} tokens, SHA-256 `{dataset.hash}`",
        "mean of": f"{len(mean_of)} checkpoints, each parameter in float64: steps {steps}" if mean_of else "",
        "started from": _start(output_dir),
        "trained with": f"bert_horovod {__version__}",
    }
    scores = {} if mean_of else _scores(output_dir, step)
    table = {section: recipe_to_table(recipe)[section] for section in WHAT_SECTIONS}
    vectors = vectors_of(configuration)
    parts = [
        _metadata(recipe, class_name, vectors),
        f"# {name}, {f'mean of {len(mean_of)} checkpoints up to ' if mean_of else ''}step {step:,}",
        _rows("", "", {what: text for what, text in facts.items() if text}),
        f"## Use\n\n```python\n{_of_vectors(vectors) if vectors else _of_heads(class_name)}\n```",
        *([f"## Losses and scores\n\n{_rows('metric', 'value', scores)}"] if scores else []),
        "## Recipe\n\n" + f"```toml\n{tomli_w.dumps(table).strip()}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _named(dataset: Dataset) -> str:
    stores = getattr(dataset, "stores", {})  # several; their shares are in the recipe
    paths = {f"`{name}`: ": store.path for name, store in stores.items()} or {"": dataset.path}
    return ", ".join(f"{name}`{printable_line(path.name)}`" for name, path in paths.items())


def _use(class_name: str) -> tuple[str, str]:
    return next((use for suffix, use in _USES.items() if class_name.endswith(suffix)), ("", "AutoModel"))


def _of_heads(class_name: str) -> str:
    """The lines that load a model with transformers."""
    _, auto_class = _use(class_name)
    return (
        f"from transformers import {auto_class}, AutoTokenizer\n\n"
        'name = "."  # this directory, or its name on the Hub\n'
        f"tokenizer = AutoTokenizer.from_pretrained(name)\nmodel = {auto_class}.from_pretrained(name)"
    )


def _of_vectors(vectors: SentenceVectors) -> str:
    """The lines that compare two texts with sentence-transformers."""
    first, *others = map(json.dumps, vectors.prompts or [""])
    second = others[0] if others else first
    made = (
        f'model.encode(["a text"], prompt_name=name) for name in ({first}, {second})'
        if vectors.prompts
        else 'model.encode([text]) for text in ("a text", "another")'
    )
    return (
        "from sentence_transformers import SentenceTransformer\n\n"
        'model = SentenceTransformer(".")  # this directory, or its name on the Hub\n'
        f"one, other = ({made})\nprint(model.similarity(one, other))"
    )


def _metadata(recipe: Recipe, class_name: str, vectors: SentenceVectors | None) -> str:
    """The block of YAML that the Hub reads; its values are JSON, because YAML takes a plain `no` for false."""
    library = "sentence-transformers" if vectors else "transformers"
    fields: dict[str, Any] = {
        "language": list(recipe.card.language),
        "license": recipe.card.license,
        "library_name": library,
        "pipeline_tag": "sentence-similarity" if vectors else _use(class_name)[0],
        "tags": [*([library] if vectors else []), "bert_horovod"],
    }
    lines = [f"{key}: {json.dumps(value)}" for key, value in fields.items() if value]
    return "\n".join(["---", *lines, "---"])


def _sizes(model: Model) -> str:
    return f"{model.num_hidden_layers} layers, {model.hidden_size} wide, {model.vocab_size:,} tokens in the vocabulary"


def _start(output_dir: Path) -> str:
    """The checkpoint that the run was started from, without its directory; "": none."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        start = read_json(output_dir / "run.json", inside=output_dir)["start"]
        if start["weights"]:
            name = printable_line(Path(start["checkpoint"]).name)
            return f"`{name}`, weights SHA-256 `{start['weights'][:_WEIGHTS]}`"
    return ""


def _scores(output_dir: Path, step: int) -> dict[str, str]:
    """The last losses and scores up to a step, by their names in metrics.jsonl."""
    last: dict[str, float] = {}
    with contextlib.suppress(OSError):
        for line in read_lines(output_dir / "metrics.jsonl", _TAIL_BYTES).lines:
            if line["step"] <= step:
                last |= {
                    name: value
                    for name, value in line.items()
                    if name not in _OF_RUN and type(value) in (int, float) and math.isfinite(value)
                }
    return {printable_line(name).replace("_", " "): f"{value:.4f}" for name, value in last.items()}


def _rows(first: str, second: str, rows: dict[str, str]) -> str:
    """A table of two columns."""
    return "\n".join([f"| {first} | {second} |", "|---|---|", *(f"| {key} | {text} |" for key, text in rows.items())])
