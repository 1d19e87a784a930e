"""The flags by which a command says what a run has cost."""

import argparse
import math
from pathlib import Path

from bert_horovod.costs.clusters import read_cluster
from bert_horovod.costs.prices import Prices
from bert_horovod.errors import UserError


def add_price_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare --cluster and --price."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--cluster", type=Path, metavar="FILE", help="prices and power, as for plan: adds what it cost")
    either.add_argument("--price", type=float, metavar="X", help="or what an hour of a device costs, as in --price 1.8")


def read_prices(arguments: argparse.Namespace) -> tuple[Prices | None, int | None]:
    """The prices and the cluster's devices, as far as the flags give them; raises UserError."""
    if arguments.cluster is not None:
        cluster = read_cluster(arguments.cluster)
        return cluster.costs, cluster.ranks
    if arguments.price is None:
        return None, None
    if not 0 <= arguments.price < math.inf:
        raise UserError(f"--price {arguments.price:g}: expected 0 or more, what an hour of a device costs")
    return Prices(device_hour=arguments.price), None
