#!/usr/bin/env python3
"""The parts of run/quickstart.sh that are not commands of the program.

    quickstart.py corpus FILE.jsonl        the text that Python brings along, one JSON object per document
    quickstart.py summary OUTPUT_DIR       what the run learned; exit code 1 if that is too little

The text is the language reference that `help()` shows and the docstrings of the standard library. Both are read from
the source files: nothing of the library is imported or executed.
"""

import argparse
import ast
import json
import os
import statistics
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.errors import ReportedError, UserError
from bert_horovod.recipe_files.loading import load_recipe
from bert_horovod.runtime.quiet import import_tensorflow

SKIPPED_DIRECTORIES = {"__pycache__", "dist-packages", "idle_test", "site-packages", "test", "tests"}
TOPICS = "pydoc_data/topics.py"
LEAST_CHARACTERS = 200  # a shorter document gives no sentence pair
LEAST_CORPUS_BYTES = 1_000_000
LEAST_GAIN_NATS = 2.0  # under the unigram cross-entropy; less means that the model did not learn
SENTENCES = (
    "Return the number [MASK] characters in the string.",
    "If the file does [MASK] exist, an error is raised.",
    "The default value [MASK] None.",
)


def documents(library: Path) -> Iterator[tuple[str, str]]:
    """Name and text of every document of a standard library, in an order that depends on the names alone.

    A topic of the language reference is a document, and so are the docstrings of a module, in their order.
    """
    for path in sorted(_python_files(library), key=lambda path: path.relative_to(library).as_posix()):
        name = path.relative_to(library).as_posix()
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):  # templates and the like are no Python
            continue
        found = _topics(tree, name) if name == TOPICS else [(name, "\n\n".join(_docstrings(tree)))]
        yield from ((name, text) for name, text in found if len(text) >= LEAST_CHARACTERS)


def write_corpus(library: Path, target: Path) -> tuple[int, int]:
    """Write a library's documents as JSON Lines, whole or not at all; returns their number and the bytes of text.

    Raises:
        UserError: there is too little text to learn from.
    """
    temporary = target.with_name(f".{target.name}.partial")
    target.parent.mkdir(parents=True, exist_ok=True)
    count = size = 0
    with open(temporary, "w", encoding="utf-8") as file:
        for name, text in documents(library):
            file.write(json.dumps({"name": name, "text": text}) + "\n")
            count += 1
            size += len(text.encode())
    if size < LEAST_CORPUS_BYTES:
        temporary.unlink()
        raise UserError(
            f"the standard library in {library} has {size:,} bytes of documentation, expected at least "
            f"{LEAST_CORPUS_BYTES:,}; use a Python that comes with its sources: PYTHON=... run/setup.sh"
        )
    os.replace(temporary, target)
    return count, size


def summary(output_dir: Path) -> int:
    """Print what the run in `output_dir`/run learned from `output_dir`/store; 1 if it learned too little, else 0.

    Raises:
        UserError: the run is not finished.
    """
    run = output_dir / "run"
    recipe = load_recipe(run / "recipe.toml")
    steps = [record for record in map(json.loads, _lines(run / "metrics.jsonl")) if "loss" in record]
    first, last = steps[0], steps[-1]
    if last["step"] < recipe.total_steps:
        raise UserError(
            f"the run is at step {last['step']} of {recipe.total_steps}; the same command goes on from there"
        )

    import_tensorflow()
    from bert_horovod.commands.evaluate import evaluate
    from bert_horovod.inference.masked_tokens import MaskedTokenPredictor
    from bert_horovod.runs.opening import find_checkpoint

    found = evaluate(find_checkpoint(run), output_dir / "store", recipe.phase[-1].sequence_length)
    checkpoint = Path(found["checkpoint"])
    guesses = MaskedTokenPredictor(find_checkpoint(checkpoint)).guess(list(SENTENCES), 4)
    speed = statistics.median(record["rows_per_s"] for record in steps[1:])  # without step 1, which is traced
    print(
        f"training loss        {first['loss']:.2f} at step {first['step']}, {last['loss']:.2f} at step {last['step']}"
    )
    print(
        f"held-out tokens      loss {found['held_out_mlm_loss']:.2f} nats, accuracy "
        f"{found['held_out_mlm_accuracy']:.1%} of the masked tokens of {found['rows']:,} rows"
    )
    print(
        f"unigram entropy      {found['unigram_cross_entropy']:.2f} nats: the loss of guesses by word frequency; "
        f"the model's is {found['gain']:.2f} nats lower"
    )
    print(f"speed                {speed:,.0f} rows of {found['sequence_length']} tokens a second")
    print(f"checkpoint           {checkpoint}")
    for text, places in zip(SENTENCES, guesses, strict=True):
        print(f"{text:50} {', '.join(f'{guess.token} {guess.probability:.0%}' for guess in places[0])}")
    if found["gain"] < LEAST_GAIN_NATS:
        print(
            f"quickstart: FAILED: the held-out loss is {found['gain']:.2f} nats under the unigram cross-entropy, "
            f"expected at least {LEAST_GAIN_NATS}: something keeps the model from learning; see "
            f"{run / 'metrics.jsonl'}",
            file=sys.stderr,
        )
        return 1
    return 0


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def _python_files(library: Path) -> Iterator[Path]:
    for directory, below, names in os.walk(library):
        below[:] = [name for name in below if name not in SKIPPED_DIRECTORIES]
        yield from (Path(directory, name) for name in names if name.endswith(".py"))


def _topics(tree: ast.Module, name: str) -> list[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            topics = ast.literal_eval(node.value)
            return [(f"{name}#{topic}", text) for topic, text in sorted(topics.items())]
    return []


def _docstrings(tree: ast.Module) -> Iterator[str]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        text = ast.get_docstring(node)
        if text:
            yield text.encode(errors="replace").decode()  # a docstring may hold lone surrogates


def main() -> int:
    """Run a part; what is reported is one message."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("corpus").add_argument("target", type=Path)
    parts.add_parser("summary").add_argument("output_dir", type=Path)
    arguments = parser.parse_args()
    try:
        if arguments.part == "corpus":
            library = Path(sysconfig.get_paths()["stdlib"])
            count, size = write_corpus(library, arguments.target)
            print(f"{arguments.target}: {count:,} documents, {size / 1e6:.1f} MB of text from {library}")
            return 0
        return summary(arguments.output_dir)
    except ReportedError as error:
        print(f"quickstart: error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
