"""Measure this machine: bert-horovod bench BENCHMARK ..."""

import argparse
import sys

from bert_horovod.commands.shared.parser import add_commands


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the benchmarks, each a module of this package, with its flags."""
    add_commands(parser, sys.modules[__name__], "BENCHMARK", "run_benchmark")


def run(arguments: argparse.Namespace) -> int | None:
    """Run the benchmark that was named."""
    return arguments.run_benchmark(arguments)
