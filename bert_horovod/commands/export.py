"""Export a checkpoint as a SavedModel (TensorFlow Serving) or an ONNX file (onnxruntime), for any batch and length.

bert-horovod export --checkpoint RUN --format savedmodel --output EXPORT
bert-horovod export --checkpoint RUN --format onnx --output EXPORT
bert-horovod export --checkpoint RUN --format onnx --int8 --task sst2 --dev_file dev.tsv --output EXPORT

The new directory holds the model in float32, config.json and the tokenizer's files. Inputs are input_ids,
attention_mask and, of a BERT or an ALBERT, token_type_ids; outputs have Hugging Face's names:

    BertForSequenceClassification   logits
    BertForTokenClassification      logits
    BertForQuestionAnswering        start_logits, end_logits
    BertForPreTraining              prediction_logits, seq_relationship_logits
    BertForMaskedLM                 logits
    BertModel                       last_hidden_state, pooler_output; of a checkpoint of vectors sentence_embedding

With label attention (finetuning.head) the inputs are [documents, windows, length], the outputs logits of each
document. ALBERT's classes, such as AlbertForMaskedLM, have the same outputs.

Before the command ends, a fresh process loads the export and compares its outputs on padded rows with those of the
checkpoint; if they differ, nothing is left of the export.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bert_horovod.commands.shared.flags import require_number
from bert_horovod.commands.shared.opened_flags import add_checkpoint
from bert_horovod.commands.shared.parser import read_with
from bert_horovod.errors import RunError, UserError
from bert_horovod.finetuning.kinds.base import Request
from bert_horovod.finetuning.kinds.kinds import kind_of_task, open_predictor, score_file, tasks
from bert_horovod.inference.options import Options
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.storage.writing import require_new_directory
from bert_horovod.wording import megabytes

if TYPE_CHECKING:
    from bert_horovod.runs.opening import OpenCheckpoint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_checkpoint(parser)
    parser.add_argument(
        "--format",
        required=True,
        choices=("savedmodel", "onnx"),
        help="onnx needs the extra packages of: pip install '.[onnx]'",
    )
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="new or empty directory to write")
    parser.add_argument(
        "--architecture", metavar="CLASS", help="one of the above, with fewer heads than the checkpoint has"
    )
    parser.add_argument(
        "--with_tokenizer",
        action="store_true",
        help="savedmodel: strings in, answers out. A classifier takes text (signature `pairs`: text, text_pair) and "
        "gives label and probabilities; question answering takes question and context and gives the answer's text; "
        "sentence vectors take text (a signature for each prompt) and give sentence_embedding. "
        "Not for masked tokens and tags. It is loaded where tensorflow_text is",
    )
    int8 = parser.add_argument(
        "--int8",
        action="store_true",
        help="onnx: weights of 8 bits: a quarter of the size, and faster for single texts",
    )
    read_with(int8, "with --format onnx", lambda arguments: arguments.format == "onnx")
    of_int8 = [
        parser.add_argument(
            "--task", choices=tasks(), metavar="TASK", help="with --int8: print the task's score before and after"
        ),
        parser.add_argument(
            "--dev_file", type=Path, metavar="FILE", help="of that score: texts with labels, as for score"
        ),
        parser.add_argument(
            "--text_columns", metavar="A[,B]", help="of that file: columns of text (default: as the checkpoint says)"
        ),
        parser.add_argument("--label_column", metavar="C", help="of that score: column of labels (default: label)"),
        parser.add_argument(
            "--limit",
            type=float,
            metavar="X",
            help="refuse what loses more of the first score (default: 0.01, for squad 1); without --task, what differs "
            "more, as a share of an output's largest value, or as 1 - cosine of sentence vectors (default: 0.1)",
        ),
    ]
    for action in of_int8:
        read_with(action, "with --int8", lambda arguments: arguments.int8)


def judge(
    arguments: argparse.Namespace,
    checkpoint: "OpenCheckpoint",
    said: list[str],
    export: Path,
    float_bytes: int,
    difference: float,
    told: str,
) -> None:
    """Say what 8 bits cost, in lines of `said`; raises RunError if that is above the limit."""
    from bert_horovod.inference.onnx_outputs import OnnxOutputs
    from bert_horovod.interchange.exported import ONNX_FILE

    size = (export / ONNX_FILE).stat().st_size
    said.append(f"int8        {megabytes(float_bytes)} before, {megabytes(size)} now; {told}\n")
    usual = 0.1 if arguments.task is None else 0.01 * kind_of_task(arguments.task).best_score
    limit = usual if arguments.limit is None else arguments.limit
    if arguments.task is None:
        if difference > limit:
            raise RunError(
                f"--int8: {told}, the limit is a difference of {limit:g}: look at the task's score, with --task and "
                "--dev_file, or raise --limit"
            )
        return
    columns = tuple(filter(None, (arguments.text_columns or "").split(",")))
    predictor, scores = open_predictor(checkpoint, Options(columns)), []
    with tempfile.TemporaryDirectory() as place:
        predictions = Path(place) / f"answers{kind_of_task(arguments.task).last_file.suffix}"
        request = Request(
            predictions,
            dev_file=arguments.dev_file,
            label_column=arguments.label_column or "label",
            separator=getattr(predictor.task, "separator", None),
            text_columns=predictor.columns,
        )
        for computes in (None, OnnxOutputs(export, predictor.model)):
            predictor.computes = computes
            predictor.predict_file(arguments.dev_file, predictions, lambda *_: None)
            scores.append(score_file(arguments.task, request))
    name = next(iter(scores[0]))
    before, after = (each[name] for each in scores)
    said.append(f"score       {name.replace('_', ' ')} {before:.4f} before, {after:.4f} now\n")
    if before - after > limit:
        raise RunError(
            f"--int8: {name.replace('_', ' ')} falls from {before:.4f} to {after:.4f}, the limit is {limit:g}: export "
            "without --int8, or raise --limit"
        )


def run(arguments: argparse.Namespace) -> None:
    """Export, check and print a summary."""
    require_number("--limit", arguments.limit)
    if (arguments.task is None) != (arguments.dev_file is None):
        raise UserError("--task and --dev_file belong together: the score is that of the task on the file")
    require_new_directory(arguments.output)

    from bert_horovod.runs.exporting import export

    tf.config.set_visible_devices([], "GPU")
    said: list[str] = []
    exported = arguments.checkpoint.whole(
        lambda whole: export(
            whole,
            arguments.output,
            arguments.format,
            arguments.architecture,
            arguments.with_tokenizer,
            partial(judge, arguments, whole, said) if arguments.int8 else None,
        )
    )
    print(
        f"read        {exported.origin}\n"
        f"exported    {exported.class_name}, {exported.architecture.heads}\n"
        f"{'inputs' if arguments.format == 'onnx' else 'calls':12}{', '.join(exported.inputs)}\n"
        f"checked     in a fresh process: at most {exported.difference:.1e} from the checkpoint"
        f"{', before the weights were rounded' if said else ''}\n"
        f"{''.join(said)}"
        f"written     {arguments.output}, {megabytes(exported.size_bytes)}"
    )
