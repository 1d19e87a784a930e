"""The start of a run: its stages come in their order."""

import json
import os
import re

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.collectives.launched import Launch
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.training import entering, loop
from bert_horovod.training.initial import Initial
from bert_horovod.training.job import pretraining_job
from tests.horovod_runs import PROJECT
from tests.toy_glue import write_checkpoint
from tests.toy_runs import metrics, pretrain_arguments
from tests.toys import toy_recipe


def test_a_run_starts_stage_by_stage_as_the_page_says(store, tmp_path, monkeypatch):
    page = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition("\n## The start of a run")[2].partition("\n## ")[0]
    told = re.findall(r"^\d\. `(\w+)`: ", section, re.MULTILINE)
    output_dir, came = tmp_path / "run", []

    def noted(name, stage):
        def call(*arguments):
            came.append((name, len(metrics(output_dir)) if (output_dir / "metrics.jsonl").exists() else 0))
            return stage(*arguments)

        return call

    for module in (entering, loop):
        for name in set(told) & vars(module).keys():
            monkeypatch.setattr(module, name, noted(name, getattr(module, name)))
    arguments = pretrain_arguments(tmp_path, store, output_dir, phase={"steps": 2}, execution={"log_steps": 1})
    assert dispatch(parse(["bert-horovod", "pretrain", *arguments])) == 0
    assert came == [(name, 0) for name in told]
    assert len(metrics(output_dir)) == 2


def test_each_of_several_runs_records_its_own_start(store, tmp_path):
    starts = [write_checkpoint(tmp_path / name, scale=scale) for name, scale in (("one", 0.1), ("other", 0.2))]
    jobs = [
        pretraining_job(toy_recipe(), store, tmp_path / f"{start.name}-run", initial=Initial(find_checkpoint(start)))
        for start in starts
    ]
    for lock in entering.claim_directories(jobs, Launch(), ["probe"]):
        os.close(lock)
    records = [json.loads((job.output_dir / "run.json").read_text(encoding="utf-8"))["start"] for job in jobs]
    assert [record["checkpoint"] for record in records] == [str(start) for start in starts]
    assert records[0]["weights"] != records[1]["weights"]
