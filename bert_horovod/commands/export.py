"""Export a checkpoint as a SavedModel (TensorFlow Serving) or an ONNX file (onnxruntime), for any batch and length.

bert-horovod export --checkpoint RUN --format savedmodel --output EXPORT
bert-horovod export --checkpoint RUN --format onnx --output EXPORT

The new directory holds the model in float32, config.json and the tokenizer's files. Inputs are input_ids,
attention_mask and, of a BERT or an ALBERT, token_type_ids; outputs have Hugging Face's names:

    BertForSequenceClassification   logits
    BertForTokenClassification      logits
    BertForQuestionAnswering        start_logits, end_logits
    BertForPreTraining              prediction_logits, seq_relationship_logits
    BertForMaskedLM                 logits
    BertModel                       last_hidden_state, pooler_output

With label attention (objective.label_attention) the inputs are [documents, windows, length], the outputs logits of each
document. ALBERT's classes, such as AlbertForMaskedLM, have the same outputs.

Before the command ends, a fresh process loads the export and compares its outputs on padded rows with those of the
checkpoint; if they differ, nothing is left of the export.
"""

import argparse
from pathlib import Path

from bert_horovod.commands.shared.checkpoint_flag import add_checkpoint
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.storage.writing import require_new_directory


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
        "gives label and probabilities; question answering takes question and context and gives the answer's text. "
        "Not for masked tokens and tags. It is loaded where tensorflow_text is",
    )


def run(arguments: argparse.Namespace) -> None:
    """Export, check and print a summary."""
    from bert_horovod.interchange.pretrained import read_checkpoint, require_checkpoint

    require_checkpoint(arguments.checkpoint)
    require_new_directory(arguments.output)

    from bert_horovod.interchange.exporting import export

    tf.config.set_visible_devices([], "GPU")
    exported = read_checkpoint(
        arguments.checkpoint,
        lambda directory: export(
            directory, arguments.output, arguments.format, arguments.architecture, arguments.with_tokenizer
        ),
    )
    print(
        f"read        {exported.origin}\n"
        f"exported    {exported.class_name}, {exported.architecture.heads}\n"
        f"{'inputs' if arguments.format == 'onnx' else 'calls':12}{', '.join(exported.inputs)}\n"
        f"checked     in a fresh process: at most {exported.difference:.1e} from the checkpoint\n"
        f"written     {arguments.output}, {exported.size_bytes / 1e6:,.1f} MB"
    )
