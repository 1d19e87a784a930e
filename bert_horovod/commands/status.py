"""Print the status of a run: running or not, host, start, step, time left, last checkpoint, waits.

bert-horovod status RUN         from any shell or host that sees the directory; the run is not disturbed
"""

import argparse
import dataclasses
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

    status = run_status(arguments.RUN)
    if arguments.json:
        print(json.dumps(dataclasses.asdict(status), indent=1))
        return
    sign = status.sign
    advice = f"go on with: bert-horovod resume {arguments.RUN}"
    if sign is None:
        print(f"{arguments.RUN}: it has left no sign of life; {advice}")
    else:
        place = f"on {sign.host} with {sign.ranks} rank{'s' * (sign.ranks > 1)}"
        ago = duration(status.sign_age_s)
        begun = f"{duration(sign.time - sign.started)} after its start"
        print(
            f"{arguments.RUN}: "
            + {
                "running": f"running {place}, for {duration(sign.time - sign.started)}",
                "silent": f"no sign of life for {ago}: stopped, dead or cut off; it was running {place}",
                "dead": f"not running: its process {place} ended without a word (killed?), at most {ago} ago; {advice}",
                "finished": f"finished {ago} ago, {place}, {begun}",
            }.get(status.state, f"{status.state}, {ago} ago, {place}, {begun}; {advice}")
        )
    if status.step is not None:
        last = f" of {sign.last_step}" if sign else ""
        loss = f", loss {status.loss:.4f}" if status.loss is not None else ""
        time_left = f", about {duration(status.left_s)} left" if status.left_s else ""
        print(f"step {status.step}{last}{loss}{time_left}")
    if sign is not None and not sign.ended:
        when = "doing" if status.state == "running" else "its last doing"
        print(f"{when}: {sign.doing}, for {duration(sign.time - sign.doing_since)}")
        print("".join(f"  {line}\n" for line in sign.waits), end="")
    if status.last_checkpoint:
        print(f"last checkpoint: {status.last_checkpoint}, {duration(status.checkpoint_age_s)} ago")
    else:
        print("no checkpoint yet")
