"""Short scripts: published plans, serving by two runtimes, stores of hard links, traces, runs with faults."""

import json

import numpy as np
import pytest

from bert_horovod.corpus.store import verify
from lab import size
from lab.cluster import why_not
from tests.lab.scripts import load_script, run_here, run_script
from tests.toys import write_toy_store


@pytest.mark.slow
def test_published_and_measured_rows_are_reproduced_but_for_those_that_have_a_reason():
    done = run_here("planner", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    far = [row for row in rows if abs(row["deviation"]) > 0.1]
    assert all(row["reason"] and row["reason"] in done.stderr for row in far)
    assert len(rows) > 60
    assert len(far) < len(rows) / 5
    marked = [row for row in rows if row["calibrates"]]
    assert len(marked) == 11
    assert all(abs(row["deviation"]) < 1e-6 for row in marked)


@pytest.mark.parametrize(("most", "shards", "parts"), [(1000, 7, 1), (3, 2, 3)])
def test_a_store_of_links_is_whole_and_repeats_the_text(tmp_path, monkeypatch, most, shards, parts):
    monkeypatch.setattr(size, "MOST_SHARDS", most)
    base = write_toy_store(tmp_path / "base", shards=2)  # whose shards say that they are of one byte of text
    store = verify(size.linked_store(base, tmp_path / "work" / "store", 7e-9))
    assert [len(shard.split()) for shard in store.shards] == [parts] * shards
    assert {entry["bytes"] for entry in store.manifest["shards"]} == {parts}
    assert np.array_equal(store.shards[0].split()[0].tokens, base.shards[0].tokens)
    assert store.manifest["totals"]["tokens"] == sum(len(shard.tokens) for shard in store.shards)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_run_with_faults_ends_as_one_without(tmp_path):
    pytest.importorskip("horovod")
    if lacking := why_not():
        pytest.skip(lacking)
    done = run_script("soak", "--directory", tmp_path, "--minutes", 0.01, "--seed", 3)
    assert done.returncode == 0, done.stdout + done.stderr
    *faults, end = map(json.loads, (tmp_path / "faults.jsonl").read_text().splitlines())
    assert 1 <= len(faults) <= load_script("soak").FAULTS
    assert end == {"run": 0, "problem": ""}
    again = run_script("soak", "--directory", tmp_path, "--table")
    assert again.returncode == 0
    assert again.stdout == done.stdout
