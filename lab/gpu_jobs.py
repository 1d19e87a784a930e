"""The pieces of work of lab/gpu.py, in the order of their value."""

from typing import Any, NamedTuple

SHAPES = [("base", 128, 64), ("large", 128, 32), ("base", 512, 16), ("large", 512, 8)]  # size, length, rows
TOY = ["model.vocab_size=200", "model.hidden_size=64", "model.num_hidden_layers=1", "model.intermediate_size=128"]
PEER = "Hugging Face, torch.compile"


class Job(NamedTuple):
    """A process's work."""

    section: str
    name: str
    work: dict[str, Any]  # what gpu_sections.py reads
    least_s: float = 20.0  # with less time left it is not begun
    limit_s: float = 90.0  # then it is ended


def jobs(precision: str, gpus: int, peer_python: str, data_dir: str | None) -> list[Job]:
    """All work on GPUs after the device's facts, the most valuable first.

    With 16 fast cores about 25 s are expected of a piece (most of them imports, tracing and compiling), 50 s of a peer
    of BERT-base, 75 s of BERT-large. Facts 8 s, correctness 75 s, four steps 100 s, a peer 50 s, kernels 25 s, XLA's
    modes 50 s, recomputation 50 s, input 25 s and matrix 30 s are 413 s on one GPU; the other peers follow.
    """
    main = [_step_job(*shape, "layers", "none", precision) for shape in SHAPES]
    base = main[0].work
    peers = [
        Job(
            "peer",
            f"{PEER}: {job.name}",
            job.work | {"device": "cuda", "python": peer_python, "rounds": 3, "steps": 10},
            least_s=80.0 if job.work["size"] == "large" else 45.0,
            limit_s=150.0,
        )
        for job in main
    ]
    shapes = [{"size": size, "length": length, "rows": rows} for size, length, rows in SHAPES]
    precisions = [precision, *(entry for entry in ("float32", "bfloat16", "float16") if entry != precision)]
    matrix = [
        Job("matrix", entry, {"shapes": shapes, "precision": entry}, least_s=30.0, limit_s=120.0)
        for entry in precisions
    ]
    several = base | {"ranks": gpus, "steps": 20}
    more = [
        ("large", 512, 32, "layers", "layer"),
        ("large", 512, 32, "layers", "attention"),
        ("large", 512, 32, "layers", "none"),
        ("base", 128, 256, "layers", "none"),
        *((*shape, xla, "none") for shape in SHAPES[:0:-1] for xla in ("elementwise", "off")),
    ]
    return [
        *(_correctness_job(entry, ["layers", "off"], 20) for entry in ("float32", "bfloat16", "float16")),
        *main,
        peers[0],
        Job("ranks", f"{base['size']} {base['length']}", several, least_s=60.0, limit_s=180.0),
        Job("kernels", f"{base['size']} {base['length']}", base | {"steps": 5}),
        *(_step_job("base", 128, 64, xla, "none", precision) for xla in ("elementwise", "off")),
        *(_step_job("large", 512, 8, "layers", recompute, precision) for recompute in ("attention", "layer")),
        Job("input", f"{base['size']} {base['length']}", base | {"data_dir": data_dir, "seconds": 5.0}),
        matrix[0],
        *reversed(peers[1:]),  # large 512 has most to gain from fused attention
        *(_step_job(*configuration, precision) for configuration in more),
        *matrix[1:],
    ]


def smoke_jobs(precision: str, gpus: int, peer_python: str, data_dir: str | None) -> list[Job]:
    """The same kinds of work in toy sizes; two ranks on a CPU."""
    toy = {"size": "mini", "length": 16, "rows": 4, "precision": precision, "settings": TOY}
    recipe = toy | {"xla": "off", "steps": 2}
    plan = [
        _correctness_job("float32", ["elementwise"], 3, layers=1),
        Job("step", "toy", recipe),
        Job("step", "toy, recompute layer", recipe | {"recompute": "layer"}),
        Job("peer", PEER, recipe | {"device": "cuda", "python": peer_python, "rounds": 1}),
        Job("ranks", "toy", recipe | {"ranks": gpus or 2}),
        Job("kernels", "toy", recipe),
        Job("input", "toy", recipe | {"data_dir": data_dir, "seconds": 0.5}),
        Job(
            "matrix",
            precision,
            {"shapes": [toy | {"settings": [*TOY, "model.num_hidden_layers=2"]}], "precision": precision},
        ),
    ]
    return [job._replace(least_s=1.0, limit_s=300.0) for job in plan]  # a busy CPU takes long


def _step_job(size: str, length: int, rows: int, xla: str, recompute: str, precision: str) -> Job:
    work = {"size": size, "length": length, "rows": rows, "xla": xla, "recompute": recompute, "precision": precision}
    name = f"{size} {length}, {rows} rows, {xla}" + (f", recompute {recompute}" if recompute != "none" else "")
    return Job("step", name, work | {"steps": 20}, limit_s=120.0)


def _correctness_job(precision: str, xla_modes: list[str], steps: int, layers: int = 2) -> Job:
    work = {"precision": precision, "xla": xla_modes, "steps": steps, "layers": layers}
    return Job("correctness", precision, work, limit_s=150.0)  # a CPU computes slowly in float16
