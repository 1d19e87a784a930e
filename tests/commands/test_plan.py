"""bert-horovod plan: what it prints, and what it says to flags that cannot be."""

import json
import re
from xml.etree import ElementTree

import pytest

from bert_horovod.__main__ import parse
from bert_horovod.measuring.configuration import describe_recipe, step_flops
from bert_horovod.recipe_files.loading import load_recipe
from tests.horovod_runs import PROJECT

LARGE = str(PROJECT / "run" / "recipes" / "bert-large-lamb-64k.toml")
CLUSTER = str(PROJECT / "run" / "clusters" / "t4-10gbit.toml")
FLAGS = ("--recipe", LARGE, "--link", "10Gb/s")


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    """Lines are not wrapped, tables not split."""
    monkeypatch.setenv("COLUMNS", "400")


def plan(capsys, *flags: str) -> str:
    """What the command prints, in this process."""
    arguments = parse(["bert-horovod", "plan", *flags])
    arguments.run(arguments)
    return capsys.readouterr().out


def test_a_cluster_file_gives_ranks_prices_and_power(capsys):
    output = plan(capsys, "--recipe", LARGE, "--cluster", CLUSTER)
    assert "; inside a host of 4 35 Gb/s; wire float16\n" in output
    heading = re.search(r"^ranks +rows/s .*$", output, re.M)[0]
    assert heading.endswith("device-hours  cost USD  kWh")
    as_json = json.loads(plan(capsys, "--recipe", LARGE, "--cluster", CLUSTER, "--json"))
    assert [each["world_size"] for each in as_json["plans"]] == [1, 2, 4, 8, 16, 32] * 2
    for each in as_json["plans"]:
        assert each["device_hours"] == pytest.approx(24 * each["days"] * each["world_size"])
        assert each["price"] == pytest.approx(0.35 * each["device_hours"])
        assert each["kwh"] == pytest.approx(0.11 * each["device_hours"])
        assert each["tokens_per_s_of_a_device"] * each["world_size"] == pytest.approx(each["tokens_per_s"])
    last = [each for each in as_json["plans"] if each["world_size"] == 32]
    total = re.search(r"^ +32 rank\(s\): .*, ([\d,]+) device-hours, ([\d,]+) USD, [\d,]+ kWh$", output, re.M)
    sums = [sum(each[name] for each in last) for name in ("device_hours", "price")]
    assert [int(total[i].replace(",", "")) for i in (1, 2)] == [round(each) for each in sums]


def test_what_is_read_of_one_store_without_a_name_is_told(capsys, store):
    output = plan(capsys, "--recipe", LARGE, "--device", "V100", "--data_dir", str(store.path))
    assert re.search(r"^phase 1: store +100\.0% +[\d,]+ tokens +[\d.e+]+ epochs$", output, re.M)
    assert "warning: the run reads store " in output


def test_advice_has_figures(capsys):
    words = ("--recipe", LARGE, "--cluster", CLUSTER)
    output = plan(capsys, *words, "--efficiency", "0.5")
    assert output.count("for an efficiency of 50% on 32 ranks, cheapest: the recipe as it is\n") == 2
    assert re.search(r"^the largest micro-batch that fits by .*: \d+ with 'none', \d+ with 'attention', ", output, re.M)
    assert re.search(r"^efficiency x speed-up is largest on 32 rank\(s\); until 32 rank\(s\) each", output, re.M)
    # One rank's rows: every step is an exchange, and so slow that no wire mends it.
    few = (*words, "--set", "phase.0.global_batch=32", "--set", "phase.1.global_batch=32")
    few = (*few, "--set", "execution.micro_batch=1", "--efficiency", "1")
    assert "on 32 ranks, nothing here reaches it; most has " in plan(capsys, *few)
    advice = json.loads(plan(capsys, *few, "--json"))["advice"]
    assert [(each["phase"], each["world_size"], each["wished_efficiency"]) for each in advice] == [
        (0, 32, 1),
        (1, 32, 1),
    ]
    assert advice[0]["knee"] < 32
    assert advice[0]["worth_until"] < 32
    assert list(advice[0]["largest_micro_batch"]) == ["none", "attention", "layer"]
    settings = [each["setting"] for each in advice[0]["choices"]]
    assert {'exchange.method = "onebit_lamb"', 'exchange.method = "powersgd"'} <= set(settings)
    assert any(setting.startswith('exchange.method = "diloco", exchange.interval = ') for setting in settings)


def test_without_prices_the_line_to_add_is_said(capsys, tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text('[device]\nname = "V100"\n')
    output = plan(capsys, "--recipe", LARGE, "--cluster", str(path))
    assert "cost is not known: add under [costs] of the cluster file a line as device_hour = 1.5\n" in output
    assert "energy is not known: add under [costs] of the cluster file a line as device_w = 350.0\n" in output
    assert "cost USD" not in output
    as_json = json.loads(plan(capsys, "--recipe", LARGE, "--cluster", str(path), "--json"))
    assert {(each["price"], each["kwh"]) for each in as_json["plans"]} == {(None, None)}
    assert as_json["network"]["bytes_per_s"] is None  # one device has no link, and JSON no infinity
    path.write_text('[device]\nname = "V100"\n[hosts]\ndevices = 4\n[inside]\nrate = "300Gb/s"\n')
    assert "\none host; inside a host of 4 " in (output := plan(capsys, "--recipe", LARGE, "--cluster", str(path)))
    assert "inf Gb/s" not in output


def test_hosts_that_are_taken_away_cost_time_and_less_money(capsys):
    words = ("--recipe", LARGE, "--cluster", CLUSTER, "--world_size", "4", "32", "--spot", "0.4")
    words = (*words, "--hours_between_losses", "12", "--save_s", "20")
    output = plan(capsys, *words)
    assert "on hosts that are taken away after 12 h in the mean, for 40% of the price" in output
    as_json = json.loads(plan(capsys, *words, "--json"))
    usual = {(each["phase"], each["world_size"]): each for each in as_json["plans"]}
    spot = [(each["phase"], each["world_size"], each["hosts"]) for each in as_json["spot"]]
    assert spot == [(0, 4, 1), (0, 32, 8), (1, 4, 1), (1, 32, 8)]
    for each in as_json["spot"]:
        days = usual[each["phase"], each["world_size"]]["days"]
        assert days < each["best_days"] <= each["days"]
        assert each["losses"] == pytest.approx(each["days"] * 2 * each["hosts"])
        assert each["price"] == pytest.approx(0.4 * each["usual_price"] * each["days"] / days)
    longest, other = as_json["spot"][1::2]
    assert longest["days"] > other["days"]
    assert longest["best_steps"] != other["best_steps"]
    advice = f"for 32 rank(s) in phase 0, the longest: --set execution.checkpoint_steps={longest['best_steps']} ("
    assert advice in output
    totals = [sum(each[name] for each in as_json["spot"][1::2]) for name in ("days", "device_hours", "price")]
    of_32 = re.findall(r" 32 rank\(s\): (\S+) days, (\S+) device-hours, (\S+) USD", output)[-1]
    assert [float(text.replace(",", "")) for text in of_32] == pytest.approx(totals, rel=5e-3)
    assert "hosts lost" in output
    assert "cost USD" not in plan(capsys, *FLAGS, "--device", "V100", "--spot", "0.4")
    output = plan(capsys, *words[:-4], "--hours_between_losses", "0.01")
    assert "32 rank(s) lose hosts too often to get to the end, however they save" in output
    assert "--set execution.checkpoint_steps=" not in output


def test_measurements_take_the_place_of_data_sheets(capsys, tmp_path):
    recipe = load_recipe(LARGE)
    measured = {"configuration": describe_recipe(recipe), "step_s": 1.1, "forward_backward_s": 1.0}
    compute, link = tmp_path / "bench.json", tmp_path / "doctor.json"
    compute.write_text(json.dumps(measured | {"flops_per_s": step_flops(recipe) / 1.1}))
    doctor = {"all_reduce": {"ranks": 8, "bits_per_s": 6e9, "latency_s": 2.8e-3}, "hosts": dict.fromkeys("ab")}
    link.write_text(json.dumps(doctor))
    for others in ((), ("--cluster", CLUSTER)):
        words = ("--recipe", LARGE, "--compute", str(compute), "--link", str(link), *others, "--json")
        planned = json.loads(plan(capsys, *words))
        assert planned["device"]["memory_bytes"] == (16 * 2**30 if others else None)
        network = planned["network"]
        assert [network[name] for name in ("bytes_per_s", "share")] == [7.5e8, 1.0]
        assert network["latency_s"] == pytest.approx(2e-4)
        first = planned["plans"][0]
        assert first["forward_backward_s"] == pytest.approx(first["micro_batches"])


def test_json_has_the_parts_of_a_step(capsys):
    planned = json.loads(plan(capsys, *FLAGS, "--device", "V100 32GB", "--json"))
    assert planned["device"]["memory_bytes"] == 32 * 2**30
    assert planned["device"]["memory_bytes_per_s"] == 9e11
    assert planned["network"]["bytes_per_s"] == 1.25e9
    expected = [(phase, ranks) for phase in (0, 1) for ranks in (1, 2, 4, 8, 16, 32)]
    assert [(each["phase"], each["world_size"]) for each in planned["plans"]] == expected
    for each in planned["plans"]:
        parts = [each[f"{part}_s"] for part in ("forward_backward", "accumulation", "update", "waiting", "exposed")]
        assert each["step_s"] == pytest.approx(sum(parts))
        assert each["update_s"] > 0


def test_what_sending_less_gains_is_below_the_table(capsys):
    output = plan(capsys, *FLAGS, "--device", "V100", "--world_size", "8").splitlines()
    lines = [line for line in output if line.startswith("a step on 8 ranks: ")]
    assert len(lines) == 2
    for line in lines:
        assert re.search(
            r'[\d.]+ s with numerics.wire = "float16", [\d.]+ s with numerics.wire = "int8", '
            r'[\d.]+ s with exchange.method = "powersgd", [\d.]+ s with exchange.method = "onebit_lamb"; '
            r'below [\d.]+ Gb/s numerics.wire = "int8" pays: more than 5% of float16\'s step is exposed communication$',
            line,
        )
    output = json.loads(plan(capsys, *FLAGS, "--device", "V100", "--world_size", "1", "8", "--json"))
    assert [(each["phase"], each["world_size"]) for each in output["advice"]] == [(0, 8), (1, 8)]
    wide = next(each for each in output["plans"] if (each["phase"], each["world_size"]) == (0, 8))
    assert output["advice"][0]["step_s"]['numerics.wire = "float16"'] == wide["step_s"]
    assert "a step on" not in plan(capsys, *FLAGS, "--device", "V100", "--world_size", "1")


def test_a_method_is_planned_by_its_stages(capsys):
    method = ("--set", "exchange.method=onebit_lamb", "--set", "exchange.dense=0.3")
    output = plan(capsys, *FLAGS, "--device", "V100", "--world_size", "32", *method)
    assert "wire float16; exchange onebit_lamb\n" in output
    stages = re.findall(
        r"^on 32 rank\(s\): dense in 30% of the steps, (\d+) MB a rank, .* exposed; compressed in 70%", output, re.M
    )
    assert len(stages) == 2
    assert "exchange onebit_lamb" not in plan(capsys, *FLAGS, "--device", "V100", "--world_size", "32")


def test_a_narrow_terminal_gets_narrow_tables_with_the_same_cells_and_a_plot_on_request(capsys, monkeypatch, tmp_path):
    words = ("--recipe", LARGE, "--cluster", CLUSTER)
    wide = plan(capsys, *words, "--plot", str(tmp_path / "plan.svg"))
    assert ElementTree.parse(tmp_path / "plan.svg").getroot().tag.endswith("svg")
    monkeypatch.setenv("COLUMNS", "80")
    narrow = plan(capsys, *words)
    assert max(map(len, narrow.splitlines())) <= 80
    assert set(wide.split()) == set(narrow.split())


def test_one_gpu_needs_no_link_and_its_data_sheet_is_named(capsys):
    lines = plan(capsys, "--recipe", LARGE, "--device", "H100").splitlines()
    assert lines[0].startswith("device H100 (here H100 SXM): 989 TFLOP/s in float16")
    assert lines[1].startswith("one rank, no link ")
    assert re.match(r" +1 rank\(s\): [\d.]+ days", lines[-1])
    assert len(re.findall(r"rank\(s\)", "\n".join(lines))) == 1
    assert "device V100 SXM2 32GB: " in plan(capsys, "--recipe", LARGE, "--device", "V100 SXM2 32GB")


def test_one_number_of_ranks_that_is_too_many_is_not_recommended(capsys):
    output = plan(capsys, "--recipe", "bert-base", "--device", "A100", "--link", "1Gb/s", "--world_size", "16")
    assert output.count("\non 16 ranks each one added brings less than 50% of the rows/s of a rank alone\n") == 2
    assert "until" not in output
    assert "efficiency x speed-up is largest" not in output


def test_an_l40s_is_not_faster_than_an_a100_because_its_memory_is_slower(capsys):
    """Its peak is higher, but kernels between products wait for its memory."""
    days = []
    for device in ("A100", "L40S"):
        plans = json.loads(plan(capsys, "--recipe", "bert-base", "--device", device, "--json"))["plans"]
        assert all(each["update_s"] > 0 and each["kernels_s"] > 0 for each in plans)
        days.append(sum(each["days"] for each in plans))
    assert days[0] < days[1] < 1.2 * days[0]


def test_ranks_are_at_most_the_rows_unless_they_are_asked_for(capsys):
    few = (*FLAGS, "--device", "V100", "--set", "phase.1.global_batch=6", "--json")
    assert {each["world_size"] for each in json.loads(plan(capsys, *few))["plans"]} == {1, 2, 4, 6}
