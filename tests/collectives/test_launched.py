"""Who started this process, and whom no world is joined for."""

import subprocess
import sys
from pathlib import Path

import pytest

from bert_horovod.collectives.launched import Launch, launch
from tests.horovod_runs import clean_environment


def test_an_elastic_horovodrun_is_refused_and_restarts_are_named(tmp_path):
    pytest.importorskip("horovod")
    discovery = tmp_path / "discovery.sh"
    discovery.write_text("#!/bin/sh\necho localhost:2\n")
    discovery.chmod(0o755)
    rank = [sys.executable, "-m", "bert_horovod", "pretrain", "--recipe", "r", "--data_dir", "d"]
    elastic = [Path(sys.executable).with_name("horovodrun"), "-np", "2", "--host-discovery-script", discovery]
    done = subprocess.run(
        [*elastic, "--network-interfaces", "lo", *rank, "--output_dir", tmp_path / "run"],
        capture_output=True,
        text=True,
        timeout=120,
        env=clean_environment(),
    )
    assert done.returncode == 1
    assert "bert-horovod: error: found an elastic horovodrun (--host-discovery-script)" in done.stderr
    assert "bert-horovod launch --restarts N" in done.stderr
    assert not (tmp_path / "run").exists()


def test_horovods_own_word_for_not_elastic_is_taken(monkeypatch):
    monkeypatch.setenv("HOROVOD_ELASTIC", "0")
    monkeypatch.setenv("HOROVOD_RANK", "1")
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    assert launch() == Launch("horovodrun", 1, 2)
