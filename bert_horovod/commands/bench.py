"""Measure this machine: bert-horovod bench BENCHMARK ..."""

import argparse
import importlib
import pkgutil

from bert_horovod.commands import benchmarks
from bert_horovod.commands.shared.parser import Parser


def benchmark_names() -> list[str]:
    """The names of the benchmarks: the modules of `bert_horovod.commands.benchmarks`."""
    return sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the benchmarks, each with its flags."""
    subparsers = parser.add_subparsers(metavar="BENCHMARK", required=True, parser_class=Parser)
    for name in benchmark_names():
        module = importlib.import_module(f"{benchmarks.__name__}.{name}")
        description = module.__doc__.strip()
        subparser = subparsers.add_parser(
            name,
            help=description.splitlines()[0],
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            inherited_absl_flags=None,
        )
        module.add_arguments(subparser)
        subparser.set_defaults(run_benchmark=module.run)


def run(arguments: argparse.Namespace) -> int | None:
    """Run the benchmark that was named."""
    return arguments.run_benchmark(arguments)
