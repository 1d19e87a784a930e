"""Print the status of a run: running or not, host, start, step, time left, last checkpoint, waits.

bert-horovod status RUN         from any shell or host that sees the directory; the run is not disturbed
"""

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("RUN", type=Path, help="a run's --output_dir")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(arguments: argparse.Namespace) -> None:
    """Read the run's directory and print the status."""
    from bert_horovod.reporting.run_status import run_status
    from bert_horovod.training.console import duration

    found = run_status(arguments.RUN)
    if arguments.json:
        print(json.dumps(found.to_table(), indent=1))
        return
    sign = found.sign
    again = f"go on with: bert-horovod resume {arguments.RUN}"
    if sign is None:
        print(f"{arguments.RUN}: it has left no sign of life; {again}")
    else:
        where = f"on {sign.host} with {sign.ranks} rank{'s' * (sign.ranks > 1)}"
        ago = duration(found.sign_age_s)
        begun = f"{duration(sign.time - sign.started)} after its start"
        print(
            f"{arguments.RUN}: "
            + {
                "running": f"running {where}, for {duration(sign.time - sign.started)}",
                "silent": f"no sign of life for {ago}: stopped, dead or cut off; it was running {where}",
                "dead": f"not running: its process {where} ended without a word (killed?), at most {ago} ago; {again}",
                "finished": f"finished {ago} ago, {where}, {begun}",
            }.get(found.state, f"{found.state}, {ago} ago, {where}, {begun}; {again}")
        )
    if found.step is not None:
        last = f" of {sign.last_step}" if sign else ""
        loss = f", loss {found.loss:.4f}" if found.loss is not None else ""
        left = f", about {duration(found.left_s)} left" if found.left_s else ""
        print(f"step {found.step}{last}{loss}{left}")
    if sign is not None and not sign.ended:
        when = "doing" if found.state == "running" else "its last doing"
        print(f"{when}: {sign.doing}, for {duration(sign.time - sign.doing_since)}")
        print("".join(f"  {line}\n" for line in sign.waits), end="")
    if found.last_checkpoint:
        print(f"last checkpoint: {found.last_checkpoint}, {duration(found.checkpoint_age_s)} ago")
    else:
        print("no checkpoint yet")
