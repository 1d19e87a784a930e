"""Upload a run's checkpoints to the Hugging Face Hub, each as a revision of its own.

bert-horovod publish RUN --repo my-lab/bert-of-ours --dry_run      prints files and bytes, and sends nothing
bert-horovod publish RUN --repo my-lab/bert-of-ours

Then `from_pretrained("my-lab/bert-of-ours", revision="step-00001000")` loads a checkpoint, and without `revision` the
newest one. Log in first with `hf auth login`, or set HF_TOKEN. README.md of each checkpoint is its model card.
"""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("RUN", type=Path, help="a run's --output_dir")
    parser.add_argument(
        "--repo", required=True, metavar="NAME", help="the repository, user/name; made if it is missing"
    )
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument("--dry_run", action="store_true", help="print the files and their bytes, and send nothing")


def run(arguments: argparse.Namespace) -> None:
    """Print what would be sent, or send it."""
    from bert_horovod.runs.publishing import MAIN, publish, require_name, revisions

    require_name(arguments.repo)
    if not arguments.dry_run:
        publish(arguments.RUN, arguments.repo, arguments.private, print)
        return
    *checkpoints, newest = revisions(arguments.RUN)
    for revision in checkpoints:
        print(f"{revision.name}: {len(revision.files)} files, {revision.bytes:,} bytes")
        for name, size in revision.files.items():
            print(f"  {size:15,}  {name}")
    print(f"{MAIN}: the same as {newest.directory.name}")
    print(f"{sum(revision.bytes for revision in checkpoints):,} bytes in all would go to {arguments.repo}")
