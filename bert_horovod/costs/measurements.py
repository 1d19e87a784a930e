"""Measurements of a cluster in place of data sheets: reads the files that other commands print with --json."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from bert_horovod.costs.buckets import computed_profile
from bert_horovod.costs.planner import Device, Network, accumulation_bytes, update_bytes
from bert_horovod.errors import UserError
from bert_horovod.model.parameters import trained_shapes
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Recipe
from bert_horovod.storage.reading import read_given_json

_MOST = 1e30  # of a number: sums and products stay finite
_MEASURED = re.compile(r"(\d+) x (\d+), (\d+) rows x (\d+), (\w+), (\w+), XLA \w+(?:, recompute (attention|layer))?")


def measured_device(path: Path, recipe: Recipe, device: Device) -> Device:
    """The device with the rates that `bench step --json` of one rank, or `bench scaling` on 1M1G, measured.

    Raises UserError if the file is not such a measurement, or of another recipe.
    """
    measured = _read(path, "--compute", "bench step", ())
    measured = measured.get("compute", measured)  # `bench scaling` has it under "compute"
    _check(path, "--compute", "bench step", measured, ("step_s", "flops_per_s", "forward_backward_s"))
    match = _MEASURED.fullmatch(str(measured.get("configuration")))
    phase = recipe.phase[0]
    first = recipe.in_phase(phase)  # `bench step` measures the first phase
    model, precision, optimizer = first.model, recipe.numerics.precision, recipe.optimizer.name
    expected = (str(model.num_hidden_layers), str(model.hidden_size), precision, optimizer)
    if match is None or match.group(1, 2, 5, 6) != expected:
        raise UserError(
            f"--compute {path}: it measured {measured.get('configuration')}; the recipe has {expected[0]} x "
            f"{expected[1]}, {precision}, {optimizer}: run `bert-horovod bench step --recipe F --json` with it"
        )
    measured = {"micro_batches": 1} | measured
    _check(path, "--compute", "bench step", measured, ("micro_batches",))
    micro_batches = measured["micro_batches"]
    step_s, forward_backward_s = measured["step_s"], micro_batches * measured["forward_backward_s"]
    # Products that backward repeats are no part of what was measured a second, and a plan counts them.
    plain, all_flops = (
        computed_profile(replace(first, execution=replace(recipe.execution, recompute=each)), phase, 1, 1.0).end_s
        for each in ("none", match[7] or "none")
    )
    flops_per_s = measured["flops_per_s"] * (all_flops / plain) * step_s / forward_backward_s
    shapes = trained_shapes(pretraining_shapes(model, recipe.objective.pairs), model, phase.trained_layers)
    products_s = recipe.optimizer.flops(shapes) / flops_per_s
    rate, update_s = device.memory_bytes_per_s, step_s - forward_backward_s - products_s
    if update_s > 0.01 * step_s:  # a smaller difference is within the noise of the two medians
        added_bytes = accumulation_bytes(recipe, sum(map(math.prod, shapes.values())), micro_batches)
        rate = (added_bytes + update_bytes(recipe, shapes, micro_batches, 1)) / update_s
    return replace(device, name=f"as in {path}", flops_per_s=flops_per_s, product_share=1.0, memory_bytes_per_s=rate)


def measured_network(path: Path, network: Network) -> Network:
    """The network with the rate and latency that `doctor --json`, `bench step --json` or `bench scaling` measured.

    Raises UserError if the file is not such a measurement, or of only one host or rank.
    """
    contents = _read(path, "--link", "doctor", ())
    if "link" in contents:
        _check(path, "--link", "bench step", contents["link"], ("bytes_per_s", "latency_s"))
        _check(path, "--link", "bench step", contents, ("world_size",))
        hops = contents["world_size"]  # of two_step; a ring has more
        bytes_per_s, latency_s = contents["link"]["bytes_per_s"], contents["link"]["latency_s"]
        if contents.get("reduction") != "two_step":
            hops = 2 * (hops - 1)
    elif contents.get("all_reduce"):
        _check(path, "--link", "doctor", contents["all_reduce"], ("ranks", "bits_per_s", "latency_s"))
        measured = contents["all_reduce"]
        if not isinstance(hosts := contents.get("hosts"), dict) or len(hosts) < 2:
            raise UserError(f"--link {path}: doctor looked at one host alone; give it all with -hostfile")
        hops = 2 * (measured["ranks"] - 1)
        bytes_per_s, latency_s = measured["bits_per_s"] / 8, measured["latency_s"]
    else:
        raise UserError(
            f"--link {path}: it holds no all-reduce. Expected what `bert-horovod doctor -hostfile F --json` prints "
            "where no check fails, `bench step --communication on off --json` of several ranks, or "
            "`bench scaling --json` of several hosts"
        )
    return replace(network, bytes_per_s=bytes_per_s, share=1.0, latency_s=latency_s / hops)


def _read(path: Path, flag: str, command: str, numbers: tuple[str, ...]) -> dict[str, Any]:
    contents = read_given_json(path, flag, f"what `bert-horovod {command} --json` prints")
    _check(path, flag, command, contents, numbers)
    return contents


def _check(path: Path, flag: str, command: str, contents: Any, numbers: tuple[str, ...]) -> None:
    """Raise UserError if `contents` is not a JSON object, or one of `numbers` is missing or not above 0."""
    for name in numbers if isinstance(contents, dict) else ("a JSON object",):
        number: Any = contents.get(name) if isinstance(contents, dict) else None
        if not (type(number) in (int, float) and 0 < number < _MOST):
            raise UserError(
                f"{flag} {path}: expected what `bert-horovod {command} --json` prints, with {name}; "
                f"found {number!r:.50}"
            )
