"""Several runs: which there are, what is summed up of them, and that a finished one is not done again."""

from pathlib import Path

import pytest

from bert_horovod.collectives.world import World
from bert_horovod.errors import DamagedData, UserError
from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.initialisation import Finetuning
from bert_horovod.finetuning.kinds.texts import Texts
from bert_horovod.finetuning.sweep import Finished, Variant, sweep_cells, sweep_summary, train_all, variants
from bert_horovod.finetuning.text_data import glue_data
from bert_horovod.runs.opening import find_checkpoint
from tests.toy_glue import write_checkpoint, write_glue

SOME = Variant(4, 2e-5), Variant(None, 0.0012345678), Variant(None, 0.0012345679), Variant(None, 3e-5), Variant(1, None)
FAST = ("execution.xla='off'", "execution.trackers=[]")


def test_seeds_and_rates_are_all_pairs():
    assert variants(None, None) == []
    assert variants("3", None) == [Variant(0, None), Variant(1, None), Variant(2, None)]
    assert variants("4,2", "2e-5,3e-5") == [Variant(4, 2e-5), Variant(2, 2e-5), Variant(4, 3e-5), Variant(2, 3e-5)]
    assert [variant.name for variant in SOME] == [
        "rate-2e-05-seed-4",
        "rate-0.0012345678",
        "rate-0.0012345679",
        "rate-3e-05",
        "seed-1",
    ]
    assert Variant(4, 2e-5).overrides == ["data.seed=4", "phase.0.learning_rate=2e-05"]


@pytest.mark.parametrize(
    ("seeds", "rates", "match"),
    [
        ("0", None, "--seeds 0: expected at least one"),
        ("-1,2", None, "--seeds -1,2: expected at least one, each 0 or more"),
        ("2,2", None, "none twice"),
        ("a", None, "--seeds a: expected a number of seeds"),
        (None, "fast", "--learning_rates fast: expected numbers"),
        (None, "1e-5,1e-5", "none twice"),
        ("99999999", None, "--seeds 99999999: a single number is how many runs .* is --set data.seed=99999999"),
        ("600", "1e-5,2e-5", "--seeds and --learning_rates make 1,200 runs; expected at most 1,000"),
    ],
)
def test_what_is_no_seed_or_rate_is_refused(seeds, rates, match):
    with pytest.raises(UserError, match=match):
        variants(seeds, rates)


def test_a_summary_has_mean_spread_and_the_best_by_the_first_score():
    scores = [(0.8, 0.7), (0.9, 0.5), (0.85, 0.9)]
    runs = [
        Finished(Variant(seed, 1e-5), Path(f"out/seed-{seed}"), {"f1": f1, "accuracy": accuracy})
        for seed, (f1, accuracy) in enumerate(scores)
    ]
    summarized = sweep_summary("mrpc", runs)
    assert (summarized["decides"], summarized["best"]["seed"]) == ("f1", 1)
    (group,) = summarized["by_learning_rate"]
    assert group["runs"] == 3
    assert group["mean"] == pytest.approx({"f1": 0.85, "accuracy": 0.7})
    assert group["standard_deviation"] == pytest.approx({"f1": 0.05, "accuracy": 0.2})
    assert sweep_cells(summarized)[0] == ["run", "f1", "accuracy"]
    assert sweep_cells(summarized)[1:3] == [["seed-0", "0.8000", "0.7000"], ["seed-1", "0.9000", "0.5000"]]
    assert sweep_cells(summarized)[-1] == ["mean of 3, rate 1e-05", "0.8500 +- 0.0500", "0.7000 +- 0.2000"]


def test_uniformity_decides_nothing():
    runs = [Finished(Variant(seed, None), Path(f"out/seed-{seed}"), {"uniformity": -seed}) for seed in range(2)]
    summarized = sweep_summary("embedding", runs)
    assert (summarized["decides"], summarized["best"]) == (None, None)
    assert len(summarized["runs"]) == 2


@pytest.mark.full
def test_a_finished_run_is_not_done_again_and_a_stopped_one_ends_the_series(tmp_path):
    finetuning = Finetuning(
        Texts(glue_data("sst2", Files(write_glue(tmp_path / "glue", 40, 8)))),
        find_checkpoint(write_checkpoint(tmp_path / "checkpoint")),
    )
    made_of, messages = variants("2", None), []
    directories = [tmp_path / variant.name for variant in made_of]
    for directory in directories:
        directory.mkdir()

    def train(max_steps: int | None = None) -> list[Finished] | None:
        jobs = [
            finetuning.job(directory, 1, [*FAST, *variant.overrides], max_steps=max_steps)
            for directory, variant in zip(directories, made_of, strict=True)
        ]
        return train_all(jobs, made_of, World(), messages.append)

    (directories[0] / "stop").touch()
    assert train() is None
    assert not (directories[1] / "metrics.jsonl").exists()
    (directories[0] / "stop").unlink()
    done = train()
    assert [run.variant.seed for run in done] == [0, 1]
    messages.clear()
    before = (directories[1] / "metrics.jsonl").read_bytes()
    assert train() == done
    assert messages.count("it is finished already") == 2
    assert (directories[1] / "metrics.jsonl").read_bytes() == before
    (directories[1] / "metrics.jsonl").unlink()
    with pytest.raises(DamagedData, match=r"metrics.jsonl is missing, which held the scores of a run that is"):
        train()
