"""Average the last checkpoints of a run into one model, which often has a lower loss than each of them.

bert-horovod average RUN --last 5 --output MEAN

MEAN is a Hugging Face directory with the mean of each parameter, for every command that takes a checkpoint, and for
transformers. It pays where the learning rate is still high: `evaluate` compares it with the run's newest checkpoint.
execution.keep_checkpoints and checkpoint_steps say how many a run keeps, and how far apart.
"""

import argparse
from pathlib import Path

from bert_horovod.commands.shared.flags import require_least
from bert_horovod.commands.shared.output_flags import require_output
from bert_horovod.storage.writing import require_new_directory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="output_dir of a run")
    parser.add_argument(
        "--last", type=int, default=5, metavar="N", help="so many of the newest checkpoints (default: %(default)s)"
    )
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="new or empty directory to write")


def run(arguments: argparse.Namespace) -> None:
    """Average, write and print a summary."""
    require_least("--last", arguments.last, 2)
    require_new_directory(arguments.output)
    require_output(arguments, makes_parent=True)

    from bert_horovod.runs.averaging import average_checkpoints
    from bert_horovod.runs.opening import find_checkpoint

    averaged = average_checkpoints(find_checkpoint(arguments.run_dir, "RUN"), arguments.last, arguments.output)
    steps = ", ".join(f"{step:,}" for step in averaged.steps)
    left_out = "".join(f"\nleft out    step {step:,}, which is damaged" for step in averaged.left_out)
    length = f" --sequence_length {averaged.length}" if averaged.length else ""
    print(
        f"read        {len(averaged.steps)} checkpoints of {arguments.run_dir}: steps {steps}{left_out}\n"
        f"written     {arguments.output}, {averaged.class_name} of transformers, the mean of their parameters\n"
        f"compare     bert-horovod evaluate {arguments.output} --data_dir STORE{length}\n"
        f"with        bert-horovod evaluate {arguments.run_dir} --data_dir STORE{length}"
    )
