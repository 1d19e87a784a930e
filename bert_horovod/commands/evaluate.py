"""Measure a checkpoint on held-out rows, beside the loss that word frequencies alone reach; or by minimal pairs.

bert-horovod evaluate RUN --data_dir STORE
bert-horovod evaluate RUN --pairs blimp/*.jsonl.gz

The rows and their masks are the same for every checkpoint: those on which a run evaluates if its recipe has the
defaults data.seed = 0, data.packing = true, objective.masked_fraction = 0.15 and objective.whole_word_masking = false.
"""

import argparse
import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_horovod.commands.shared.flags import add_data_dirs, require_least
from bert_horovod.commands.shared.opened_flags import add_checkpoint_path
from bert_horovod.commands.shared.parser import read_with
from bert_horovod.errors import UserError
from bert_horovod.recipe.settings import Objective
from bert_horovod.recipe_files.loading import recipe_from_table

if TYPE_CHECKING:
    from bert_horovod.corpus.store import Store
    from bert_horovod.interchange.huggingface import Pretrained
    from bert_horovod.runs.opening import OpenCheckpoint

DEFAULT_LENGTH = 128  # of rows, if the checkpoint does not record the length that it was trained at
_WHY_LENGTH = {
    "flag": "",
    "checkpoint": " (as it was trained)",
    "default": " (the default: the checkpoint does not tell what it was trained at)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_checkpoint_path(parser)
    either = parser.add_mutually_exclusive_group(required=True)
    add_data_dirs(either, required=False, more=" with a held-out part")
    _pairs().add_pairs(parser, either)
    length = parser.add_argument(
        "--sequence_length",
        type=int,
        metavar="N",
        help="tokens per row (default: what the run trained at when it saved the checkpoint; 128 for a checkpoint of "
        "other origin)",
    )
    rows = parser.add_argument(
        "--rows", type=int, default=1024, metavar="N", help="use at most so many held-out rows (default: %(default)s)"
    )
    parser.add_argument("--micro_batch", type=int, default=32, metavar="N", help="rows at once (default: %(default)s)")
    index_dir = parser.add_argument(
        "--index_dir", type=Path, metavar="DIR", help="where row indices go if the token store is read-only"
    )
    for action in (length, rows, index_dir):
        read_with(action, "with --data_dir", lambda arguments: arguments.data_dir is not None)
    parser.add_argument("--json", action="store_true", help="print one JSON object, for scripts")


def run(arguments: argparse.Namespace) -> None:
    """Evaluate and print."""
    if arguments.pairs:
        _pairs().judge_by_pairs(arguments)
        return
    evaluation = evaluate(
        arguments.checkpoint,
        arguments.data_dir,
        arguments.sequence_length,
        arguments.rows,
        arguments.micro_batch,
        arguments.index_dir,
    )
    if arguments.json:
        print(json.dumps(evaluation))
        return
    for name, of_store in evaluation.get("stores", {"": evaluation}).items():
        print(f"{name}: " * bool(name) + evaluation_summary(of_store))


def _pairs() -> Any:
    """The part for minimal pairs, by its name: it is beyond the core's border (docs/architecture.md)."""
    return importlib.import_module("bert_horovod.commands.shared.minimal_pairs")


def evaluate(
    checkpoint: "OpenCheckpoint",
    data_dir: Path | list[Path],
    sequence_length: int | None = None,
    rows: int = 1024,
    micro_batch: int = 32,
    index_dir: Path | None = None,
) -> dict[str, Any]:
    """Evaluate a checkpoint on a token store's held-out rows; the arguments are those of the command.

    Returns:
        checkpoint, sequence_length, sequence_length_from ("flag", "checkpoint" or "default"), rows (the number of
        evaluated rows), pair (the run's objective.pair; next_sentence for a checkpoint of other origin with a
        sentence-pair head); held_out_mlm_loss and, with that head, held_out_nsp_loss in nats, held_out_mlm_accuracy and
        held_out_nsp_accuracy as fractions (held_out_sop_... if pair is sentence_order); unigram_cross_entropy of the
        held-out tokens in nats, and gain: unigram_cross_entropy minus held_out_mlm_loss. For several stores these by
        store, as `stores`.

    Raises ReportedError if the checkpoint, the store or an argument is wrong, or they do not fit together.
    """
    require_least("--rows", rows)
    require_least("--micro_batch", micro_batch)
    from bert_horovod.corpus.stores import open_stores

    words = data_dir if isinstance(data_dir, list) else [data_dir]
    open_stores(words)  # a mistake in a path is told before TensorFlow is imported

    import numpy as np

    from bert_horovod.batches.text.rows import open_rows
    from bert_horovod.collectives.world import World
    from bert_horovod.corpus.statistics import unigram_cross_entropy
    from bert_horovod.inference.masked_tokens import read_masked_model
    from bert_horovod.inference.outputs import require_finite_outputs
    from bert_horovod.model.forward import ComputePolicy
    from bert_horovod.runs.checkpoint import recorded_length, recorded_pair
    from bert_horovod.tasks.pretraining import Pretraining
    from bert_horovod.training.hooks.evaluation import Evaluator

    stores = open_stores(words)
    checkpoint, pretrained, trained_length, pair = checkpoint.whole(
        lambda whole: (
            whole,
            read_masked_model(whole),
            recorded_length(whole.directory),
            recorded_pair(whole.directory),
        )
    )
    lengths = {"flag": sequence_length, "checkpoint": trained_length, "default": DEFAULT_LENGTH}
    for store in stores.values():
        _refuse_another_vocabulary(checkpoint, pretrained, store)
    length_from, sequence_length = next((known, length) for known, length in lengths.items() if length is not None)
    if not 8 <= sequence_length <= pretrained.model.max_position_embeddings:
        raise UserError(
            f"--sequence_length {sequence_length}: expected 8 to {pretrained.model.max_position_embeddings}, "
            f"the positions of {checkpoint}"
        )
    pair = (pair or "next_sentence") if pretrained.pairs else "none"
    longest = {"max_position_embeddings": pretrained.model.max_position_embeddings}
    recipe = recipe_from_table(
        {"model": longest, "objective": {"pair": pair}, "phase": [{"sequence_length": sequence_length}]}
    )
    task = Pretraining(pretrained.pairs, recipe.objective.pair_name)
    held_out = {name: open_rows(store, recipe, 0, "held_out", index_dir) for name, store in stores.items()}

    def on_store(name: str) -> dict[str, Any]:
        unigrams = unigram_cross_entropy(stores[name])
        evaluator = Evaluator(task, pretrained.model, ComputePolicy(), held_out[name], rows, micro_batch, World())
        means = {f"held_out_{metric}": mean for metric, mean in evaluator.evaluate(pretrained.parameters).items()}
        require_finite_outputs({metric: np.array(mean) for metric, mean in means.items()})
        return {
            "checkpoint": str(checkpoint),
            "sequence_length": sequence_length,
            "sequence_length_from": length_from,
            "rows": evaluator.count,
            "pair": pair,
            **means,
            "unigram_cross_entropy": unigrams,
            "gain": unigrams - means["held_out_mlm_loss"],
        }

    found = {name: on_store(name) for name in stores}
    return found[""] if "" in found else {"checkpoint": str(checkpoint), "stores": found}


def evaluation_summary(evaluation: dict[str, Any]) -> str:
    """The result of `evaluate`, for people."""
    why = _WHY_LENGTH[evaluation["sequence_length_from"]]
    lines = [
        f"{evaluation['checkpoint']} on {evaluation['rows']:,} held-out rows of {evaluation['sequence_length']} "
        f"positions{why}:",
        f"  masked tokens   loss {evaluation['held_out_mlm_loss']:.4f} nats   "
        f"accuracy {evaluation['held_out_mlm_accuracy']:.1%}",
    ]
    if evaluation["pair"] != "none":
        name = Objective(pair=evaluation["pair"]).pair_name
        lines.append(
            f"  {evaluation['pair'].replace('_', ' '):14}  loss {evaluation[f'held_out_{name}_loss']:.4f} nats   "
            f"accuracy {evaluation[f'held_out_{name}_accuracy']:.1%}"
        )
    side = "below" if evaluation["gain"] >= 0 else "above"
    lines.append(
        f"  unigrams        loss {evaluation['unigram_cross_entropy']:.4f} nats   the model is "
        f"{abs(evaluation['gain']):.4f} nats {side}"
    )
    return "\n".join(lines)


def _refuse_another_vocabulary(checkpoint: "OpenCheckpoint", pretrained: "Pretrained", store: "Store") -> None:
    padded = pretrained.vocabulary is not None and pretrained.model.vocab_size > len(store.vocabulary)
    if pretrained.model.vocab_size != len(store.vocabulary) and not padded:
        raise UserError(
            f"--checkpoint {checkpoint} has a vocabulary of {pretrained.model.vocab_size}, the token store "
            f"{store.path} one of {len(store.vocabulary)}; prepare the data with "
            f"--vocab {checkpoint}"
        )
    if pretrained.vocabulary is None:
        return
    if pretrained.vocabulary != store.vocabulary:
        pairs = enumerate(zip(pretrained.vocabulary, store.vocabulary, strict=False))
        shorter = min(len(pretrained.vocabulary), len(store.vocabulary))
        first = next((i for i, (theirs, ours) in pairs if theirs != ours), shorter)
        raise UserError(
            f"--checkpoint {checkpoint} has another vocabulary than the token store {store.path} "
            f"(they first differ at id {first}); prepare the data with --vocab {checkpoint}"
        )
    if pretrained.tokenizer_settings != store.tokenizer_settings:
        raise UserError(
            f"--checkpoint {checkpoint} has another tokenizer ({pretrained.tokenizer_settings}) than the token store "
            f"{store.path} ({store.tokenizer_settings}); prepare the data with --vocab {checkpoint}"
        )
