"""The bytes that the log says a rank sends are those that the kernel counts on a link between hosts."""

import json
import math
import sys
from pathlib import Path

import pytest

from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import recipe_to_toml
from lab.cluster import INTERFACE
from tests.horovod_runs import PATIENCE_S, PROJECT, clean_environment
from tests.toy_runs import metrics
from tests.toys import toy_recipe

MODEL = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 4}


def counted(box, store, tmp_path: Path, recipe: Recipe, ranks_per_host: int = 1) -> tuple[list[float], list[list[int]]]:
    """Train; what the log says that a rank sent in each step, and what left the host of each rank."""
    (tmp_path / "recipe.toml").write_text(recipe_to_toml(recipe), encoding="utf-8")
    output_dir = tmp_path / "run"
    output_dir.mkdir()
    ranks = ranks_per_host * len(box.hosts)
    hosts = ",".join(f"{host}:{ranks_per_host}" for host in box.hosts)
    command = [
        Path(sys.executable).with_name("horovodrun"),
        "--gloo",
        "--disable-cache",
        "-np",
        str(ranks),
        "-H",
        hosts,
    ]
    arguments = ["-m", "tests.training.counted_ranks", tmp_path / "recipe.toml", store.path, output_dir, INTERFACE]
    done = box.run(
        "node1", [*command, sys.executable, *arguments], timeout=PATIENCE_S, env=clean_environment(), cwd=PROJECT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    logged = [line["wire_bytes"] for line in metrics(output_dir) if "wire_bytes" in line]
    return logged, [json.loads((output_dir / f"sent-{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "wire"), [(2, "float32"), (3, "float16"), (2, "int8")])
def test_the_logs_wire_bytes_are_those_that_leave_the_interface(start_cluster, store, tmp_path, hosts, wire):
    pytest.importorskip("horovod")
    execution = {"micro_batch": 6, "bucket_bytes": "auto"}
    phase = {"global_batch": 12 * hosts, "steps": 3}
    recipe = toy_recipe(model=MODEL, execution=execution, numerics={"wire": wire}, phase=phase)
    logged, sent = counted(start_cluster(hosts=hosts), store, tmp_path, recipe)
    assert len(logged) == 3
    for of_rank in sent:  # but for the first step, whose bytes may have the last of a measurement's before them
        assert sum(of_rank[1:]) == pytest.approx(sum(logged[1:]), rel=0.05)


ONE_BIT = {"method": "onebit_adam", "dense": 0.0}  # one step is dense all the same


@pytest.mark.slow
@pytest.mark.parametrize(
    ("exchange", "wire", "bits"),
    [(ONE_BIT, "float32", 1 + 16 / 256), ({"method": "gradients"}, "int8", 8 + 16 / 256)],
)
def test_a_number_leaves_a_host_with_several_ranks_once(start_cluster, store, tmp_path, exchange, wire, bits):
    """2 hosts of 2 ranks: half of the encoded numbers goes to the other host, for its sums, and half comes as sums."""
    pytest.importorskip("horovod")
    execution = {"micro_batch": 6, "bucket_bytes": 1 << 30}
    phase = {"global_batch": 24, "steps": 4, "warmup": 0.0}
    recipe = toy_recipe(model=MODEL, execution=execution, numerics={"wire": wire}, phase=phase, exchange=exchange)
    logged, sent = counted(start_cluster(hosts=2), store, tmp_path, recipe, ranks_per_host=2)
    shapes = pretraining_shapes(recipe.model, recipe.objective.pairs)
    numbers = sum(math.prod(shape) for shape in shapes.values())
    for of_rank in sent:  # ranks of a host see the same card
        for step in (2, 3):
            # Headers and what ranks agree on before a collective are 8 % of the little that is sent here.
            assert of_rank[step] == pytest.approx(numbers * bits / 8, rel=0.1)
            assert of_rank[step] == pytest.approx(2 * logged[step], rel=0.1)
