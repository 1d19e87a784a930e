"""Our step and Hugging Face's compiled one (SDPA attention) in turn: the peer section of benchmarks/gpu.py."""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
from typing import Any

from benchmarks.compute import PROJECT, WARM_UP, Contestant
from benchmarks.gpu_work import rates, work_recipe
from bert_horovod.batches.masks import full_row_slots
from bert_horovod.measuring.configuration import describe
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import recipe_to_table

HAS_TORCH = "import torch, transformers, json; print(json.dumps([torch.__version__, torch.cuda.is_available()]))"
# What may lead to TensorFlow's packages and CUDA libraries: PyTorch brings its own.
OF_TENSORFLOW = ("PYTHONPATH", "LD_LIBRARY_PATH", "XLA_FLAGS")


def peer(work: dict[str, Any]) -> dict[str, Any]:
    """Median steps of both, and how many times faster ours is; `python`: the one that has PyTorch."""
    python, versions = work["python"], None
    alone = {name: value for name, value in os.environ.items() if name not in OF_TENSORFLOW}
    for environment in (alone, dict(os.environ)):
        asked = subprocess.run([python, "-c", HAS_TORCH], capture_output=True, text=True, env=environment, check=False)
        if asked.returncode == 0:
            versions = json.loads(asked.stdout.splitlines()[-1])
            break
    if versions is None:
        return {"absent": f"{python} has no torch and transformers; --peer_python names one that has"}
    version, cuda = versions
    if not cuda and work["device"] == "cuda":
        return {"absent": f"torch {version} of {python} has no CUDA; --peer_python names one that has"}
    recipe = work_recipe(work)
    program = str(PROJECT / "benchmarks" / "peers" / "hugging_face.py")
    table = json.dumps({"recipe": recipe_to_table(recipe)})
    contestants: list[Contestant] = []
    try:
        ours = [sys.executable, "-m", "bert_horovod.measuring.step_time", table]
        contestants.append(Contestant("ours", ours, dict(os.environ)))
        contestants.append(Contestant("hugging_face", [python, program, shape(recipe, work["device"])], environment))
        for contestant in contestants:
            contestant.send(WARM_UP)  # both compile at the same time
        for contestant in contestants:
            contestant.first_s = contestant.answer()[0]
        for _ in range(work["rounds"]):
            for contestant in contestants:
                contestant.rounds.append(statistics.median(contestant.ask(work["steps"])))
    finally:
        for contestant in contestants:
            contestant.close()
    mine, other = contestants
    return {
        "configuration": describe(recipe),
        "torch": version,
        "ours": rates(recipe, mine.rounds) | {"first_step_s": mine.first_s},
        "hugging_face": rates(recipe, other.rounds) | {"first_step_s": other.first_s},
        "ratio": statistics.median(b / a for a, b in zip(mine.rounds, other.rounds, strict=True)),
    }


def shape(recipe: Recipe, device: str) -> str:
    """What benchmarks/peers/hugging_face.py is told."""
    length = recipe.phase[0].sequence_length
    return json.dumps(
        {
            "model": dataclasses.asdict(recipe.model),
            "rows": recipe.execution.micro_batch,
            "length": length,
            "slots": full_row_slots(recipe.objective, length),
            "vocabulary": recipe.model.vocab_size,
            "precision": recipe.numerics.precision,
            "threads": len(os.sched_getaffinity(0)),
            "device": device,
        }
    )
