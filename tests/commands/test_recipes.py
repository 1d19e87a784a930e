"""bert-horovod recipes: the list with a plan of each, in a clone and installed, and one recipe printed."""

import json

import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.recipe_files.loading import TAKE, load_recipe, shipped_recipes


def recipes(capsys, *words: str) -> str:
    """What the command prints, in this process."""
    assert dispatch(parse(["bert-horovod", "recipes", *words])) == 0
    return capsys.readouterr().out


def test_every_shipped_recipe_is_planned_and_listed(capsys):
    entries = {entry["name"]: entry for entry in json.loads(recipes(capsys, "--json"))}
    assert entries.keys() == shipped_recipes().keys()
    days = [entry["days"] for entry in entries.values()]
    assert days == sorted(days)
    assert min(days) > 0
    for name, entry in entries.items():
        recipe = load_recipe(shipped_recipes()[name])
        assert entry["steps"] == recipe.total_steps
        assert entry["tokens"] == sum(p.steps * p.global_batch * p.sequence_length for p in recipe.phase)
        assert entry["reproduces"]
    base = entries["bert-base"]
    assert (base["layers"], base["hidden_size"], base["parameters"]) == (12, 768, 110_106_428)
    assert base["device"] == "A100"
    assert entries["bert-mini8-mslt"]["parameters"] == entries["bert-mini8"]["parameters"]  # of the whole model
    listed, _, taken = recipes(capsys).partition("\n\n")
    assert [line.split()[1] for line in taken.splitlines()] == list(TAKE)
    assert set(TAKE) < set(entries)
    assert {name for name, entry in entries.items() if entry["take"]} == set(TAKE)
    assert [name for name, entry in entries.items() if entry["experiments"]] == ["bert-mini8-mslt"]
    assert all(sentence in listed for sentence in entries["bert-mini8-mslt"]["experiments"])
    lines = [line for line in listed.splitlines() if " is an experiment" not in line]
    assert lines[0].endswith("on one A100")
    assert [line.split()[0] for line in lines[1::2]] == list(entries)
    assert [line.strip() for line in lines[2::2]] == [entry["reproduces"] for entry in entries.values()]
    assert lines[1].endswith("under a minute")
    for column in ("rows a step x length", "optimizer", "on one A100"):  # begins in each row where its heading begins
        begin = lines[0].index(column)
        assert {line[begin - 2 : begin] for line in lines[1::2]} == {"  "}, column
        assert not any(line[begin].isspace() for line in lines[1::2]), column
    row = next(line for line in lines if line.startswith("bert-base "))
    assert row.split()[1:9] == ["12", "x", "768", "110", "M", "42.6", "G", "256"]
    assert row.endswith(f"{base['days']:.1f} days")


def test_days_are_those_of_plan(capsys):
    entry = json.loads(recipes(capsys, "bert-large-lamb-64k", "--device", "V100", "--json"))
    flags = ["--recipe", entry["path"], "--device", "V100", "--link", "1Gb/s", "--world_size", "1", "--json"]
    dispatch(parse(["bert-horovod", "plan", *flags]))
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert len(plans) == 2
    assert entry["days"] == pytest.approx(sum(plan["days"] for plan in plans))


def test_a_device_without_bfloat16_trains_in_float16(capsys):
    on = {name: json.loads(recipes(capsys, "bert-base", "--device", name, "--json")) for name in ("V100", "A100")}
    assert (on["V100"]["precision"], on["A100"]["precision"]) == ("float16", "bfloat16")
    assert on["V100"]["days"] == pytest.approx(on["A100"]["days"] * 312 / 125, rel=0.1)


def test_one_recipe_is_printed_as_it_is(capsys):
    assert recipes(capsys, "bert-base") == shipped_recipes()["bert-base"].read_text(encoding="utf-8")
