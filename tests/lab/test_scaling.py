"""lab/scaling.py and its peers: on a cluster in a box, and by their numbers."""

import json
import math
import sys

import pytest

from bert_horovod.measuring.configuration import size_recipe
from bert_horovod.model.shapes import pretraining_shapes
from tests.horovod_runs import clean_environment
from tests.lab.scripts import DIRECTORY, cells, load_script, run_script

ROWS, LENGTH = 2, 32
MODEL = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
SETTINGS = ["execution.xla=off", *(f"model.{name}={value}" for name, value in MODEL.items())]  # XLA takes seconds
TINY = ["--model", "mini", "--rows", ROWS, "--length", LENGTH, *(word for each in SETTINGS for word in ("--set", each))]
PROFILE = {"forward_s": 0.02, "head_s": 0.01, "layers_s": [0.02, 0.03], "embeddings_s": 0.01, "update_s": 0.02}
PARAMETERS = sum(map(math.prod, pretraining_shapes(size_recipe("mini", SETTINGS).model, True).values()))


@pytest.fixture(scope="module")
def scaling():
    return load_script("scaling")


@pytest.mark.slow
def test_hosts_and_peers_stand_in_one_table(start_cluster, tmp_path):
    del start_cluster  # asked for because it skips where there can be no hosts
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(PROFILE))
    words = ("--hosts", 1, "--hosts", 2, "--link", "100mbit", "--micro_batches", 3, "--wire", "float32", "--steps", 1)
    done = run_script("scaling", *TINY, *words, "--delay", profile, "--peer", "horovod", "--json")
    assert done.returncode == 0, done.stderr
    lines = {(each["program"], each["hosts"]): each for each in json.loads(done.stdout)["lines"]}
    alone, two = lines["horovod", 1], lines["horovod", 2]
    for each in lines.values():
        assert each["compute_s"] > 3 * 0.09 + 0.02
        assert each["rows_per_s"] * each["step_s"] == pytest.approx(ROWS * 3 * each["hosts"])
    assert alone["efficiency"] == 1
    assert two["efficiency"] == pytest.approx(two["rows_per_s"] / 2 / alone["rows_per_s"])
    assert two["wire_bytes"] == 4 * PARAMETERS
    assert two["step_s"] > 4 * PARAMETERS * 8 / 100e6  # the link takes so long
    assert two["exposed_s"] == pytest.approx(two["step_s"] - two["compute_s"])
    assert cells(done.stderr.split("\n\n")[0].splitlines()[-1])


@pytest.mark.slow
def test_float16_halves_what_a_peer_sends(start_cluster, tmp_path):
    box = start_cluster(hosts=2, link="1gbit")
    script = DIRECTORY / "peers" / "distributed_data_parallel.py"
    horovodrun = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "--network-interfaces", "eth0"]
    before = box.traffic("node1")[0]
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(PROFILE))
    sizes = ["--set", f"execution.micro_batch={ROWS}", "--set", f"phase.0.sequence_length={LENGTH}"]
    words = [*TINY[:2], *TINY[6:], *sizes, "--micro_batches", 3, "--steps", 1, "--wire", "float16", "--delay", profile]
    command = [*horovodrun, "-np", "2", "-H", "node1:1,node2:1", sys.executable, script, *map(str, words)]
    done = box.run("node1", command, env=clean_environment())
    assert done.returncode == 0, done.stderr
    (figures,) = [json.loads(line.partition(":")[2]) for line in done.stdout.splitlines() if "{" in line]
    assert figures["wire_bytes"] == 2 * PARAMETERS
    # Two steps of the gradients, and once the parameters in float32, which rank 0 gives to all.
    assert 2 * 2 * PARAMETERS + 4 * PARAMETERS < box.traffic("node1")[0] - before < 10 * PARAMETERS + 400_000


def test_figures_of_a_line(scaling):
    cell = scaling.Cell("ours", "float16", 4, "100mbit", 4)
    answers = [
        {
            "step_s": on,
            "communication": {
                "off": {"step_s": off, "cores_busy": 0.2},
                "on": {"step_s": on, "cores_busy": 0.9},
            },
            "wire_bytes": 25e6,
        }
        for off, on in ((2.0, 2.4), (1.0, 2.5), (2.2, 2.7))
    ]
    line = scaling.line(cell, [scaling.figures(answer) for answer in answers], 16, 10.0)
    assert line["step_s"] == 2.5
    assert line["compute_s"] == 2.0
    assert line["exposed_s"] == pytest.approx(0.5)  # of 0.4, 1.5 and 0.5
    assert line["rows_per_s"] == pytest.approx(16 * 4 * 4 / 2.5)
    assert line["efficiency"] == pytest.approx(16 * 4 / 2.5 / 10)
    assert line["link_use"] == pytest.approx(25e6 * 8 / 2.5 / 100e6)


def test_one_host_has_no_wire_and_no_link(scaling):
    groups = list(scaling.groups(scaling.parse(["--hosts", "4", "--hosts", "1"])))
    assert [len(group) for group in groups] == [3] * 3 + [5] * 6
    assert {(cell.wire, cell.link) for group in groups[:3] for cell in group} == {("float32", None)}
    cell = groups[0][0]
    answer = {"step_s": 2.0, "communication": {"off": {"step_s": 2.0, "cores_busy": 0.5}}}
    line = scaling.line(cell, [scaling.figures(answer)], 16, None)
    assert (line["rows_per_s"], line["efficiency"]) == (8.0, 1.0)
    assert "exposed_s" not in line
