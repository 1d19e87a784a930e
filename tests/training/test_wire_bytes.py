"""The bytes that the log says a rank sends are those that the kernel counts on a link between hosts."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.cluster import INTERFACE
from bert_horovod.recipe.loading import recipe_to_toml
from tests.horovod_runs import PROJECT, clean_environment
from tests.toy_runs import metrics
from tests.toys import toy_recipe

MODEL = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 4}


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "wire"), [(2, "float32"), (3, "float16")])
def test_the_logs_wire_bytes_are_those_that_leave_the_interface(start_cluster, store, tmp_path, hosts, wire):
    pytest.importorskip("horovod")
    box = start_cluster(hosts=hosts)
    execution = {"micro_batch": 6, "bucket_bytes": "auto"}
    phase = {"global_batch": 12 * hosts, "steps": 3}
    recipe = toy_recipe(model=MODEL, execution=execution, numerics={"wire": wire}, phase=phase)
    (tmp_path / "recipe.toml").write_text(recipe_to_toml(recipe), encoding="utf-8")
    output_dir = tmp_path / "run"
    output_dir.mkdir()
    horovodrun = Path(sys.executable).with_name("horovodrun")
    command = [horovodrun, "--gloo", "--disable-cache", "-np", str(hosts), "-H", ",".join(f"{h}:1" for h in box.hosts)]
    arguments = ["-m", "tests.training.counted_ranks", tmp_path / "recipe.toml", store.path, output_dir, INTERFACE]
    done = box.run("node1", [*command, sys.executable, *arguments], timeout=240, env=clean_environment(), cwd=PROJECT)
    assert done.returncode == 0, done.stdout + done.stderr
    logged = [line["wire_bytes"] for line in metrics(output_dir)]
    assert len(logged) == 3
    for rank in range(hosts):
        sent = json.loads((output_dir / f"sent-{rank}.json").read_text())
        assert sum(sent) == pytest.approx(sum(logged), rel=0.05)
