"""Measure this machine: bert-horovod bench BENCHMARK ..."""

import argparse

from bert_horovod.commands import benchmarks
from bert_horovod.commands.shared.parser import add_commands


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the benchmarks, each with its flags."""
    add_commands(parser, benchmarks, "BENCHMARK", "run_benchmark")


def run(arguments: argparse.Namespace) -> int | None:
    """Run the benchmark that was named."""
    return arguments.run_benchmark(arguments)
