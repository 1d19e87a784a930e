"""Measure what a recipe needs and reaches on this machine; needs no data.

bert-horovod bench memory --recipe F --limit 16GiB          the largest micro-batch that fits
"""

import argparse
import importlib
import pkgutil

from bert_horovod import commands

PREFIX = "bench_"  # of the modules of bert_horovod.commands that each are a benchmark


def benchmark_names() -> list[str]:
    """The benchmarks that there are."""
    names = (module.name for module in pkgutil.iter_modules(commands.__path__))
    return sorted(name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the benchmarks and their arguments."""
    benchmarks = parser.add_subparsers(metavar="BENCHMARK", required=True, parser_class=argparse.ArgumentParser)
    for name in benchmark_names():
        module = importlib.import_module(f"{commands.__name__}.{PREFIX}{name}")
        summary = module.__doc__.strip()
        benchmark = benchmarks.add_parser(
            name.replace("_", "-"),
            help=summary.splitlines()[0],
            description=summary,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(benchmark)
        benchmark.set_defaults(benchmark=module.run)


def run(arguments: argparse.Namespace) -> int | None:
    """Run the benchmark."""
    return arguments.benchmark(arguments)
