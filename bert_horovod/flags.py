"""Flags that several commands and benchmarks share."""

import argparse


def add_overrides(parser: argparse.ArgumentParser, example: str = "execution.micro_batch=8") -> None:
    """Declare --set KEY=VALUE; config.load_recipe reads what it gathers in `overrides`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help=f"override a setting of the recipe, as in --set {example}; repeatable",
    )
