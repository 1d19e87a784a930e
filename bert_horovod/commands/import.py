"""Turn a checkpoint of other origin into a Hugging Face directory, as pretrain writes it.

bert-horovod import uncased_L-12_H-768_A-12 bert-base --uncased

It reads Google's TF1 checkpoints (google-research/bert), Hugging Face's directories (pytorch_model.bin too, if PyTorch
is installed) and a run's output_dir. Every other command reads these directly too; import makes one directory that is
complete in itself and that transformers loads. With --vocab it takes an extended vocabulary, from `vocab --extend`.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bert_horovod.commands.shared.flags import CHECKPOINT
from bert_horovod.commands.shared.opened_flags import open_named
from bert_horovod.commands.shared.parser import opens
from bert_horovod.errors import UserError
from bert_horovod.storage.writing import require_new_directory

if TYPE_CHECKING:
    from bert_horovod.interchange.architectures import Architecture, Contents
    from bert_horovod.runs.opening import OpenCheckpoint

_NAMED = 4  # tensors that the summary names, at most


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    checkpoint = parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help=CHECKPOINT)
    opens(checkpoint, lambda _, path: open_named(path, "CHECKPOINT"))
    parser.add_argument("directory", type=Path, metavar="DIR", help="new or empty directory to write")
    parser.add_argument(
        "--vocab",
        type=Path,
        metavar="FILE",
        help="the checkpoint's vocabulary with new pieces, from vocab --extend; each new piece gets the mean of its "
        "old pieces' embeddings",
    )
    case = parser.add_mutually_exclusive_group()
    case.add_argument(
        "--cased",
        action="store_const",
        const=False,
        dest="lowercase",
        help="the tokenizer keeps upper case and accents (default: what the tokenizer's settings or the vocabulary "
        "tell)",
    )
    case.add_argument("--uncased", action="store_const", const=True, dest="lowercase", help="the tokenizer lower-cases")


def run(arguments: argparse.Namespace) -> None:
    """Read, write and print a summary."""
    require_new_directory(arguments.directory)
    extended = None
    if arguments.vocab is not None:
        from bert_horovod.corpus.reading.vocabulary import read_vocabulary

        extended = read_vocabulary(arguments.vocab)

    arguments.checkpoint.whole(lambda checkpoint: _import(checkpoint, arguments, extended))


def _import(checkpoint: "OpenCheckpoint", arguments: argparse.Namespace, extended: list[str] | None) -> None:
    from bert_horovod.interchange.huggingface import write_directory
    from bert_horovod.interchange.new_pieces import with_vocabulary
    from bert_horovod.interchange.suitability import require_vocabulary
    from bert_horovod.storage.writing import new_directory

    reader = checkpoint.reader
    contents = reader.contents()
    architecture = contents.architectures[0]
    tokenizer = reader.tokenizer
    require_vocabulary(checkpoint, tokenizer.vocabulary, flag="")
    new = None
    with new_directory(arguments.directory) as temporary:
        pretrained = reader.read(architecture, arguments.lowercase)
        vocabulary = require_vocabulary(checkpoint, pretrained.vocabulary, flag="")
        if extended is not None:
            pretrained, new = with_vocabulary(pretrained, extended, f"--vocab {arguments.vocab}")
            vocabulary = extended
        parameters = {name: pretrained.parameters[name] for name in architecture.parameters(pretrained.model)}
        try:
            settings = pretrained.tokenizer_settings
            write_directory(
                temporary, pretrained.model, architecture, parameters, vocabulary, settings, reader.max_length
            )
        except ValueError as error:
            raise UserError(f"{checkpoint}: {error}; expected BERT's WordPiece vocabulary") from error
    why = tokenizer.reason if arguments.lowercase is None else "as the flag says"
    print(import_summary(contents, architecture, f"{len(vocabulary):,} tokens, {settings} ({why})"))
    if new is not None:
        print(f"new pieces  {new}")
    print(f"written     {arguments.directory}, {architecture.class_name(pretrained.model)} of transformers")


def import_summary(contents: "Contents", architecture: "Architecture", tokenizer: str) -> str:
    """A summary for people: the parts that were read, and the tensors that were left out."""
    model, kept_parameters = contents.model, architecture.parameters(contents.model)
    copies = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")
    left_out = sorted(contents.shapes.keys() - kept_parameters.keys() - set(copies))
    named = [f"{', '.join(left_out[:_NAMED])}{f' and {len(left_out) - _NAMED} more' if len(left_out) > _NAMED else ''}"]
    optimizer = [f"{len(contents.optimizer)} variables of the optimizer"] if contents.optimizer else []
    shared = f" with the parameters of {model.layer_groups}" if model.layer_groups < model.num_hidden_layers else ""
    width = f" (embeddings {model.embedding_width})" if model.embedding_width != model.hidden_size else ""
    return "\n".join(
        [
            f"read        {contents.origin}",
            f"model       {model.num_hidden_layers} layers{shared}, {model.hidden_size} wide{width}, "
            f"{model.num_attention_heads} attention heads, {model.max_position_embeddings} positions, "
            f"{model.hidden_act}",
            f"heads       {architecture.heads}",
            f"left out    {'; '.join([*(named if left_out else []), *optimizer]) or 'nothing'}",
            f"tokenizer   {tokenizer}",
        ]
    )
