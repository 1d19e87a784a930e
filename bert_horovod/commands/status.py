"""Print the status of a run: running or not, host, start, step, time left, last checkpoint, waits.

bert-horovod status RUN         from any shell or host that sees the directory; the run is not disturbed
"""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from bert_horovod.commands.shared.opened_flags import opens_run
from bert_horovod.commands.shared.price_flags import add_price_arguments, read_prices
from bert_horovod.errors import printable_line
from bert_horovod.storage.places import is_url
from bert_horovod.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bert_horovod.costs.prices import Prices
    from bert_horovod.reporting.run_status import RunStatus


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    opens_run(parser.add_argument("RUN", type=Path, help="a run's --output_dir, or its execution.mirror"))
    add_price_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(arguments: argparse.Namespace) -> None:
    """Read the run's directory and print the status."""
    from bert_horovod.reporting.run_status import run_status

    prices, _ = read_prices(arguments)
    run = arguments.RUN
    status = run_status(run.directory)
    if status.last_checkpoint:
        status = dataclasses.replace(status, last_checkpoint=run.named(status.last_checkpoint))
    if arguments.json:
        table = dataclasses.asdict(status)
        if status.spent is not None:
            table["spent"] |= {"effective": status.spent.effective, **status.spent.bill(prices)._asdict()}
        print(json.dumps(table, indent=1))
        return
    for line in _lines(status, run.named(run.directory), prices):
        print(printable_line(line))  # names and messages are of the run's files, which anybody may have written


def _lines(status: "RunStatus", run: str, prices: "Prices | None") -> "Iterator[str]":
    """The status for people."""
    from bert_horovod.wording import duration

    sign = status.sign
    resume = "the command that started it, on any machine" if is_url(run) else f"bert-horovod resume {run}"
    advice = f"go on with: {resume}"
    if sign is None or status.sign_age_s is None:
        yield f"{run}: it has left no sign of life; {advice}"
    else:
        place = f"on {sign.host} with {sign.ranks} rank{'s' * (sign.ranks > 1)}"
        ago = duration(status.sign_age_s)
        begun = f"{duration(sign.time - sign.started)} after its start"
        after = "; ".join(filter(None, (sign.error, advice if sign.again else "")))
        known = {
            "running": f"running {place}, for {duration(sign.time - sign.started)}",
            "silent": f"no sign of life for {ago}: stopped, dead or cut off; it was running {place}",
            "dead": f"not running: its process {place} ended without a word (killed?), at most {ago} ago; {advice}",
            "finished": f"finished {ago} ago, {place}, {begun}",
        }
        if is_url(run):
            known |= dict.fromkeys(("running", "silent"), f"it ran {place} when this checkpoint was copied, {ago} ago")
        yield f"{run}: " + known.get(status.state, f"{status.state}, {ago} ago, {place}, {begun}; {after}")
    if status.step is not None:
        last = f" of {sign.last_step}" if sign else ""
        loss = f", loss {status.loss:.4f}" if status.loss is not None else ", loss not finite" * status.diverged
        time_left = f", about {duration(status.left_s)} left" if status.left_s else ""
        yield f"step {status.step}{last}{loss}{time_left}"
    if sign is not None and not sign.ended:
        when = "doing" if status.state == "running" else "its last doing"
        yield f"{when}: {sign.doing}, for {duration(sign.time - sign.doing_since)}"
        yield from (f"  {line}" for line in sign.waits)
    if status.spent is not None:
        yield from (f"{name}: {value}" for name, value in status.spent.lines(prices))
    if status.last_checkpoint and status.checkpoint_age_s is not None:
        yield f"last checkpoint: {status.last_checkpoint}, {duration(status.checkpoint_age_s)} ago"
    else:
        yield "no checkpoint yet"
    if status.mirror:
        yield f"mirror: {status.mirror}"
    if status.unreadable_lines:
        yield f"metrics.jsonl: {counted(status.unreadable_lines, 'line')} of the newest could not be read"
