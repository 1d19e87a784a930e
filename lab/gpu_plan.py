"""What lab/gpu.py does with a GPU: its pieces of work, the most valuable first, and the seconds of each."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from bert_horovod.costs.derived import derive
from bert_horovod.measuring.configuration import SIZES, size_recipe
from bert_horovod.recipe_files.loading import recipe_to_toml
from lab.cluster import why_not
from lab.curve_recipes import CURVES
from lab.rounds import PROJECT

SECTIONS = ("device", "kernels", "correctness", "step", "resume", "link", "operations", "curves")
SECTIONS += ("same_minutes", "ranks", "tune", "peer", "input", "tests")
SHAPES = [("base", 128, 128), ("large", 128, 64), ("base", 512, 32), ("large", 512, 16)]  # size, length, rows
NO_ATTENTION_DROPOUT = "model.attention_probs_dropout_prob=0"  # as all modern recipes have
MODERNBERT = ("model.architecture=modernbert", "objective.pair=none")
SIGNS = ("exchange.method=onebit_adam", "exchange.dense=0", "phase.0.warmup=0")
TOY = ["model.vocab_size=200", "model.hidden_size=64", "model.num_hidden_layers=1", "model.intermediate_size=128"]
TOY += ["model.num_attention_heads=2"]
MINI = [*(f"model.{name}={value}" for name, value in SIZES["mini"].model.items())]
GIVEN_LOSS = [name for name, curve in CURVES.items() if curve.results.stem == "given-loss"]
GIVEN_LOSS.sort(key=lambda name: ("16 MB" in name, "seed" in name))
MADE_STORE, OF_STORE = "made store", {"resume", "tune", "input"}
BENCH = ["-m", "bert_horovod", "bench"]
ASYNC = "HOROVOD_ENABLE_ASYNC_COMPLETION=1"  # the host does not wait for NCCL
CUBLAS_ALONE = "--xla_gpu_enable_triton_gemm=false"  # else XLA times products of its own beside cuBLAS's
# What --list supposes of the machine.
ASSUMED = {"gpu": "one GPU", "gpus": 1, "compute_capability": (9, 0), "precision": "bfloat16", "without_kernels": None}
ASSUMED |= {"horovod_with": ["Gloo"]}


class Job(NamedTuple):
    """A process's work: it prints what it found, JSON, as its last line."""

    section: str
    name: str
    command: list[str]  # behind the Python
    expected_s: float = 30.0  # with 16 fast cores; with less time left it is not begun
    limit_s: float = 240.0  # then it is ended; XLA's search for the fastest products may take two minutes
    recipe: Any = None  # of a step
    known: dict[str, Any] | None = None  # stands with what it finds
    xla_flags: str = ""  # beside those of XLA_FLAGS
    lacking: str | None = None  # why it is not done here


def part(name: str, work: dict[str, Any]) -> list[str]:
    """The command of a part of lab/gpu_parts.py."""
    return [str(PROJECT / "lab" / "gpu_parts.py"), name, json.dumps(work)]


def batch(length: int, rows: int) -> list[str]:
    """The settings of a step of one micro-batch."""
    return [f"phase.0.sequence_length={length}", f"execution.micro_batch={rows}", f"phase.0.global_batch={rows}"]


def bench_words(size: str, settings: list[str], steps: int) -> list[str]:
    """A size of measuring.configuration with settings, for a command of `bench`."""
    return ["--model", size, "--steps", str(steps), "--json", *(word for each in settings for word in ("--set", each))]


def step_job(
    size: str, length: int, rows: int, settings: list[str], device: dict[str, Any], steps: int = 20, xla_flags: str = ""
) -> Job:
    """Optimizer steps of a size of measuring.configuration, one micro-batch each.

    Where kernels can be used they must: one that does not compile is a failure, not a slower step of that name.
    """
    kernels = not device["without_kernels"] and "execution.kernels=xla" not in settings
    all_settings = [f"numerics.precision={device['precision']}", *batch(length, rows), *settings]
    all_settings += ["execution.kernels=triton"] if kernels else []
    recipe = size_recipe(size, all_settings)
    told = [each for each in settings if each not in TOY and each not in MODERNBERT and each != "execution.xla=off"]
    told = ", ".join(each.rpartition(".")[2].removeprefix("name=").replace("=", " ") for each in told)
    modern = "ModernBERT-" if MODERNBERT[0] in settings else ""
    capability = tuple(device["compute_capability"] or ()) or None
    estimated = derive(recipe, recipe.phase[0], 1, capability=capability).memory_bytes
    name = f"{modern}{size} {length}, {rows} rows{', ' + told if told else ''}{', kernels' if kernels else ''}"
    return Job(
        "step",
        name + (", cuBLAS alone" if xla_flags == CUBLAS_ALONE else ""),
        [*BENCH, "step", *bench_words(size, all_settings, steps)],
        expected_s=60.0 if size == "large" else 40.0,
        recipe=recipe,
        known={"estimated_memory_bytes": estimated},
        xla_flags=xla_flags,
    )


def jobs(device: dict[str, Any], arguments: argparse.Namespace, scratch: Path) -> list[Job]:
    """All work after the device's facts, the most valuable first; in toy sizes with --smoke.

    First what no GPU has shown of the program as it is, ModernBERT included, then two ranks, which may wait for each
    other, what steps are made of, the curves of docs/results/learning.md, and what was seen on one GPU before or takes
    long.
    """
    smoke, kernels = arguments.smoke, not device["without_kernels"]
    shapes, precisions, steps, toy = SHAPES, ("bfloat16", "float16", "float32"), 20, []
    if smoke:
        shapes, precisions, steps = [("mini", 64, 4)], ("bfloat16" if kernels else "float32",), 3
        toy = [*TOY, *([] if kernels else ["execution.xla=off"])]
    modes = ["triton", "elementwise"] if smoke else ["triton", "layers", "off"]
    (size, length, rows), long, large = shapes[0], shapes[-2:][0], shapes[-1]
    numbers = f"numerics.precision={device['precision']}"
    store = arguments.data_dir or str(scratch / "store")
    without_nccl = None if "NCCL" in device["horovod_with"] else "Horovod is without NCCL"
    without_horovod = None if device["horovod_with"] else "Horovod is not installed"

    def steps_with(*settings: str, of: list[tuple[str, int, int]] = shapes, xla_flags: str = "") -> list[Job]:
        return [step_job(*shape, [*toy, *settings], device, steps, xla_flags) for shape in of]

    def words_of(shape: tuple[str, int, int], *settings: str) -> list[str]:
        return bench_words(shape[0], [*toy, numbers, *batch(*shape[1:]), *settings], steps)

    def correctness(precision: str) -> Job:
        work = {"precision": precision, "modes": modes, "steps": steps, "layers": 1 if smoke else 2}
        return Job("correctness", precision, part("correctness", work), 100.0)  # a CPU computes slowly in float16

    def resume(count: int) -> Job:
        settings = ["phase.0.global_batch=64", numbers, *toy, f"execution.micro_batch={64 // count}"]
        settings += ["execution.evaluate_steps=0", "execution.trackers=[]"]
        work = {"store": store, "settings": settings, "steps": 8 if smoke else 200}
        return Job("resume", f"K = {count}", part("resume", work), 80.0)

    def link(name: str, *settings: str, variables: tuple[str, ...] = (), lacking: str | None = None) -> Job:
        command = [str(PROJECT / "lab" / "cluster.py"), "--hosts", "2", "--link", "1gbit", "--", "env", *variables]
        command += [sys.executable, "-m", "bert_horovod", "launch", "-np", "2"]
        command += ["-hostfile", "{hostfile}", "--", "bench", "step", "--communication", "on", "off"]
        shape = [*batch(length, rows), f"phase.0.global_batch={2 * rows}"]
        command += bench_words(size, [*toy, numbers, *shape, *settings], 5)
        return Job("link", f"1 Gb/s, {name}", command, 90.0, lacking=without_horovod or lacking or why_not())

    def peer(shape: tuple[str, int, int]) -> Job:
        words = ["--shape", shape[0], "--rows", str(shape[2]), "--length", str(shape[1]), "--precision"]
        words += [device["precision"], "--peer", "hugging_face", "--peer_python", arguments.peer_python]
        words += ["--device", "cuda", "--json", *(word for each in toy for word in ("--set", each))]
        command = [str(PROJECT / "lab" / "compute.py"), *words, "--xla", "layers", "--steps", "10"]
        return Job("peer", f"{shape[0]} {shape[1]}, {shape[2]} rows", command, 75.0, 180.0)

    def operations(name: str, shape: tuple[str, int, int], *settings: str) -> Job:
        return Job("operations", name, [str(PROJECT / "lab" / "operations.py"), *words_of(shape, *settings)], 40.0)

    def curve(name: str) -> Job:
        flag = "small_data_dir" if "16 MB" in name else "data_dir"
        directory = getattr(arguments, flag)
        work = {"name": name, "store": directory, "work": str(arguments.output.absolute().with_suffix(".curves"))}
        lacking = None if directory else f"--{flag} names no token store of books"
        return Job("curves", name, part("curve", work), 110.0, 300.0, lacking=lacking)

    def contest(name: str, seconds: float, *words: str) -> Job:
        net = "--layers 12 --hidden 384 --epochs 10 --device cuda --pilot_rows 12800"
        net = "--layers 1 --hidden 64 --epochs 0.02 --device cpu --pilot_rows 640" if smoke else net
        flags = [*net.split(), "--work", str(arguments.contest_dir), "--peer_python", arguments.peer_python]
        flags += ["--results", str(arguments.output.absolute().with_suffix(".same-minutes.jsonl"))]
        flags += ["--seeds", "1", "--json"]
        command = [str(PROJECT / "lab" / "same_minutes.py"), *flags, *words]
        lacking = None if arguments.contest_dir else "--contest_dir names no texts of lab/same_minutes.py"
        return Job("same_minutes", name, command, seconds, 470.0, lacking=lacking)

    # 13 million tokens ten times, a word being 1.3 tokens. A token takes (a) 0.15 and (c), whose head computes all
    # positions, 0.20 GFLOP, so 20 and 26 PFLOP: 130 s and 170 s at 150 TFLOP/s, 15 % of an H100's. (a)'s 21,000 steps
    # of 128 rows take 210 s if the host needs 10 ms for each. A start and its compilation take 50 s, a judgement 15 s.
    contests = [
        contest("(a)'s pace", 60, "--only", "a", "--most", "1"),
        contest("(a), 10 epochs", 50 + 210 + 5 * 15, "--only", "a"),
        contest("(c)'s pilots of rates", 3 * (50 + 17 + 15), "--only", "c", "--most", "3"),
        contest("(c)'s other pilots", 3 * (50 + 17 + 15), "--only", "c", "--most", "3"),
        contest("(c), 10 epochs", 50 + 170 + 5 * 15, "--only", "c"),
    ]
    made = [] if arguments.data_dir else [made_store(store, 200 if smoke else 30522)]
    toml = scratch / "input.toml"
    packed = size_recipe(size, [*batch(length, rows), "data.packing=true", numbers, *toy])
    toml.write_text(recipe_to_toml(packed), "utf-8")
    from_store = ["--recipe", str(toml), "--data_dir", store, "--index_dir", str(scratch / "index")]
    mini = ["--try", f"micro_batch={rows // 2}", "--try", f"micro_batch={rows}", "--json"]
    mini += [] if smoke else [word for each in MINI for word in ("--set", each)]
    modern = [("mini", 64, 4)] if smoke else [("base", 1024, 16), ("base", 8192, 2)]
    gpus = device["gpus"] or (2 if smoke else 0)
    one_gpu = None if gpus > 1 else f"it needs two GPUs, this host has {gpus}"
    scaling = [*BENCH, "scaling", "-H", f"localhost:{gpus}", *words_of(shapes[0])]
    gpu_tests = None if device["gpu"] and not smoke else "it is for a GPU, in whole sizes"
    errors = [str(PROJECT / "lab" / "gpu_kernels.py"), *(["--only", "broken"] if smoke else [])]
    plan = [
        Job("kernels", "errors, a broken one", errors, 120.0, 300.0),
        correctness(precisions[0]),
        *steps_with(of=shapes[:2]),
        *made,
        resume(4),
        resume(1),
        *(steps_with(of=list(dict.fromkeys([shapes[0], large])), xla_flags=CUBLAS_ALONE) if kernels else []),
        *([] if smoke else steps_with(of=[("base", 128, 256)])),
        *steps_with(NO_ATTENTION_DROPOUT, of=shapes[-2:]),
        *steps_with(*MODERNBERT, of=modern),
        *(steps_with(*MODERNBERT, "execution.kernels=xla", of=modern[:1]) if kernels else []),
        link("int8", "numerics.wire=int8"),
        link("signs", *SIGNS),
        operations(f"{size} {length}", shapes[0]),
        operations("without attention dropout", long, NO_ATTENTION_DROPOUT),
        *([] if smoke else [operations("ModernBERT", modern[0], *MODERNBERT)]),
        *steps_with(of=shapes[2:]),
        *steps_with("optimizer.name=muon", of=shapes[:1]),
        *([] if smoke else [peer(shapes[1])]),
        *([] if smoke else map(curve, GIVEN_LOSS)),
        *contests,
        Job("ranks", f"{size} {length}", scaling, 90.0, lacking=one_gpu or without_horovod),
        link("float16", "numerics.wire=float16"),
        link("float16, ASYNC", "numerics.wire=float16", variables=(ASYNC,), lacking=without_nccl),
        Job("tune", "mini", ["-m", "bert_horovod", "tune", *from_store, *mini], 250.0, 400.0),
        *map(correctness, precisions[1:]),
        *(steps_with("execution.kernels=xla") if kernels else []),
        *(peer(shape) for shape in shapes if smoke or shape != shapes[1]),
        Job("input", f"{size} {length}", [*BENCH, "step", *from_store, "--steps", str(3 * steps), "--json"], 40.0),
        *steps_with("execution.recompute=layer", of=[large] if smoke else [large, ("large", 512, 32)]),
        *([] if smoke else steps_with(of=[("large", 512, 32)])),
        *([] if smoke else steps_with("execution.xla=elementwise", "execution.kernels=xla")),
        Job("tests", "pytest -m gpu", part("tests", {}), 300.0, 460.0, lacking=gpu_tests),
    ]
    return [job._replace(limit_s=5 * job.limit_s) for job in plan] if smoke else plan  # a busy machine may try it


def made_store(path: str, vocabulary: int) -> Job:
    """The work that writes a token store of random sentences."""
    return Job("input", MADE_STORE, part("store", {"path": path, "vocabulary": vocabulary}), 10.0)
