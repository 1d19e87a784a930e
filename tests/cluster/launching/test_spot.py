"""Machines that are taken away: hosts that say it before, hosts that vanish, and others that come."""

import re
import signal
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.launches import LAUNCH, QUICK, launched
from tests.horovod_runs import PATIENCE_S, PROJECT, clean_environment
from tests.toy_runs import metrics, pretrain_arguments

pytestmark = pytest.mark.slow


def test_the_run_goes_on_where_hosts_are_taken_away_and_others_come(start_cluster, store, tmp_path):
    box, steps = start_cluster(hosts=3), 120
    fleet, run_dir = tmp_path / "fleet", tmp_path / "run"
    fleet.write_text("node1 slots=1\nnode2 slots=1\n")
    execution = QUICK | {"checkpoint_steps": 10, "stall_s": 20.0}
    flags = pretrain_arguments(tmp_path, store, run_dir, phase={"steps": steps}, execution=execution)
    notice = f"test -e {tmp_path}/notice-$(hostname)"
    words = [*LAUNCH, "--restarts", "3", "--discover", f"cat {fleet}", "--wait_for_hosts", "3m"]
    words += ["--", "pretrain", *flags, "--stop_when", notice]
    with launched(words, tmp_path, str(run_dir), partial(box.start, "node1", env=clean_environment())) as run:
        run.await_output("step 3/")
        (tmp_path / "notice-node2").touch()
        run.await_error("the host of rank 1, node2, goes away: the ranks have saved and stopped")
        run.await_error("leaving out node2: --stop_when says that it goes away", "1 of 2 slots are there; waiting")
        box.cut("node2")
        fleet.write_text("node1 slots=1\nnode3 slots=1\n")
        run.await_error("restart 1 of 3 with 2 rank(s) on node1:1, node3:1")
        run.await_output("resuming from", "step 2", "step ")
        box.cut("node3")  # without a word
        run.await_error("restart 2 of 3 in", "leaving out node3: ssh: it cannot be reached")
        box.mend("node2")
        (tmp_path / "notice-node2").unlink()
        fleet.write_text("node2 slots=1\nnode1 slots=1\n")
        run.await_error("restart 2 of 3 with 2 rank(s) on node2:1, node1:1")
        output, errors = run.end()
    assert output.count("world: 2 rank(s)") == 3
    assert "Traceback" not in errors
    assert [line["step"] for line in metrics(run_dir)] == list(range(1, steps + 1))


def test_a_launcher_that_does_not_see_the_run_asks_rank_0s_host_to_stop(start_cluster, store, tmp_path):
    box = start_cluster(hosts=2)
    assert box.run("node2", ["mount", "-t", "tmpfs", "tmpfs", "/mnt"]).returncode == 0
    flags = pretrain_arguments(tmp_path, store, Path("/mnt/run"), phase={"steps": 100_000}, execution=QUICK)
    words = [*LAUNCH, "-H", "node2:1", "--", "pretrain", *flags]
    with launched(words, tmp_path, str(tmp_path), partial(box.start, "node1", env=clean_environment())) as run:
        run.await_output("step 1/")
        run.signal(signal.SIGTERM)
        output, errors = run.end()
    assert "SIGTERM: asked the ranks to save and stop (/mnt/run/stop); once more kills" in errors
    assert "asked to stop: saved at step" in output


def test_the_line_of_the_page_for_skypilot_trains_on_all_nodes(start_cluster, store, tmp_path):
    box = start_cluster(hosts=2)
    page = (PROJECT / "docs" / "cluster.md").read_text(encoding="utf-8")
    line = re.search(r'\[ "\$SKYPILOT_NODE_RANK" .*?(?=`)', page)[0].replace("\\|", "|")
    flags = pretrain_arguments(tmp_path, store, tmp_path / "run", phase={"steps": 2}, execution=QUICK)
    line = line.replace("bert-horovod", f"{sys.executable} -m bert_horovod")
    line = line.replace("--recipe R --data_dir D --output_dir O", " ".join(flags))
    nodes = {"SKYPILOT_NODE_IPS": "10.77.0.1\n10.77.0.2", "SKYPILOT_NUM_GPUS_PER_NODE": "0"}
    for rank, said in ((1, ""), (0, "2 hosts, 2 slots, from SKYPILOT_NODE_IPS, which tells of no GPU\n")):
        environment = clean_environment(SKYPILOT_NODE_RANK=str(rank), **nodes)
        done = box.run(f"node{rank + 1}", ["bash", "-c", line], env=environment, timeout=PATIENCE_S)
        assert (done.returncode, done.stderr) == (0, said)
    assert "world: 2 rank(s)" in done.stdout
    assert metrics(tmp_path / "run")[-1]["step"] == 2
