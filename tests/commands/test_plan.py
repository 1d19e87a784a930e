"""bert-horovod plan: what it prints, and what it says to flags that cannot be."""

import json
import re
import time

import pytest

from bert_horovod.__main__ import parse
from bert_horovod.commands.plan import SlowLink, parse_rate, parse_size
from bert_horovod.errors import UserError
from tests.horovod_runs import PROJECT, run_command

LARGE = str(PROJECT / "run" / "recipes" / "bert-large-lamb-64k.toml")
FLAGS = ("--recipe", LARGE, "--link", "10Gb/s")


def plan(capsys, *flags: str) -> str:
    """What the command prints, in this process."""
    arguments = parse(["bert-horovod", "plan", *flags])
    arguments.run(arguments)
    return capsys.readouterr().out


def test_a_table_for_each_phase():
    began = time.perf_counter()
    done = run_command("plan", *FLAGS, "--device", "V100", "--world_size", "1", "32")
    assert (done.returncode, done.stderr) == (0, "")
    assert time.perf_counter() - began < 30  # TensorFlow alone takes longer on a busy machine; usually under a second
    lines = done.stdout.splitlines()
    assert lines[0].startswith(
        "device V100: 125 TFLOP/s in float16, of which forward and backward reach 35%; memory 16"
    )
    assert lines[1] == "link 10 Gb/s, of which all-reduces reach 90%, 0.05 ms a hop; wire float16"
    assert [line for line in lines if line.startswith("phase")] == [
        "phase 0: 7,038 steps of 65,536 rows x 128, micro-batches of 32",
        "phase 1: 1,563 steps of 32,768 rows x 512, micro-batches of 32",
    ]
    tables = [line.split() for line in lines if line.lstrip().split(" ")[0] in ("1", "32")]
    assert [(row[0], row[1], row[-2]) for row in tables[::2]] == [("1", "2048", "100.0%"), ("1", "1024", "100.0%")]
    assert [row[0] for row in tables] == ["1", "32", "1", "32"]
    assert "GiB a rank are more than the device's 16 GiB: --set execution.micro_batch=N" in done.stdout
    assert lines[-1].startswith("all phases: ")


def test_json_has_the_parts_of_a_step(capsys):
    found = json.loads(plan(capsys, *FLAGS, "--tflops", "100", "--memory", "32GiB", "--memory_rate", "1TB/s", "--json"))
    assert found["device"]["memory_bytes"] == 32 * 2**30
    assert found["device"]["memory_bytes_per_s"] == 1e12
    assert found["network"]["bytes_per_s"] == 1.25e9
    assert [(each["phase"], each["world_size"]) for each in found["plans"]] == [
        (phase, ranks) for phase in (0, 1) for ranks in (1, 2, 4, 8, 16, 32)
    ]
    for each in found["plans"]:
        parts = [each[f"{part}_s"] for part in ("forward_backward", "accumulation", "update", "exposed")]
        assert each["step_s"] == pytest.approx(sum(parts))
        assert each["update_s"] > 0


def test_what_sending_less_gains_is_below_the_table(capsys):
    found = plan(capsys, *FLAGS, "--device", "V100", "--world_size", "8").splitlines()
    lines = [line for line in found if line.startswith("a step on 8 ranks: ")]
    assert len(lines) == 2
    for line in lines:
        assert re.search(
            r'[\d.]+ s with numerics.wire = "float16", [\d.]+ s with numerics.wire = "int8", '
            r'[\d.]+ s with exchange.method = "onebit_lamb"; '
            r'below [\d.]+ Gb/s numerics.wire = "int8" pays: more than 5% of float16\'s step is exposed communication$',
            line,
        )
    found = json.loads(plan(capsys, *FLAGS, "--device", "V100", "--world_size", "1", "8", "--json"))
    assert [(each["phase"], each["world_size"]) for each in found["slow_links"]] == [(0, 8), (1, 8)]
    wide = next(each for each in found["plans"] if (each["phase"], each["world_size"]) == (0, 8))
    assert found["slow_links"][0]["step_s"]['numerics.wire = "float16"'] == wide["step_s"]
    assert "a step on" not in plan(capsys, *FLAGS, "--device", "V100", "--world_size", "1")


def test_a_method_is_planned_by_its_stages(capsys):
    method = ("--set", "exchange.method=onebit_lamb", "--set", "exchange.dense=0.3")
    found = plan(capsys, *FLAGS, "--device", "V100", "--world_size", "32", *method)
    assert "wire float16; exchange onebit_lamb\n" in found
    stages = re.findall(
        r"^on 32 rank\(s\): dense in 30% of the steps, (\d+) MB a rank, .* exposed; compressed in 70%", found, re.M
    )
    assert len(stages) == 2
    assert "exchange onebit_lamb" not in plan(capsys, *FLAGS, "--device", "V100", "--world_size", "32")


def test_where_int8_never_pays_no_rate_is_named():
    assert SlowLink(0, 2, {"a": 1.0}, None).describe() == (
        "a step on 2 ranks: 1 s with a; int8 pays over float16 at no rate of the link"
    )


def test_what_is_not_known_is_said(capsys):
    found = plan(capsys, *FLAGS, "--tflops", "100")
    assert "memory unknown, rate unknown: update is not counted (--memory_rate)" in found


def test_ranks_are_at_most_the_rows_unless_they_are_asked_for(capsys):
    few = (*FLAGS, "--device", "V100", "--set", "phase.1.global_batch=6", "--json")
    assert {each["world_size"] for each in json.loads(plan(capsys, *few))["plans"]} == {1, 2, 4}
    with pytest.raises(UserError, match="global_batch = 6 is a batch that the ranks cannot share: there are 8 ranks"):
        plan(capsys, *few, "--world_size", "8")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--device", "K80"), r"--device K80: not known; known are V100S, .*, B200\. .* --tflops 125"),
        (("--device", "V100 MIG"), "--device V100 MIG: not known"),
        (("--device", "V100", "--set", "numerics.precision=bfloat16"), "V100 does not accelerate .*float16"),
        (("--tflops", "0"), "--tflops 0: expected a number above 0"),
        (("--tflops", "nan"), "--tflops nan: expected a number above 0"),
        (("--device", "V100", "--product_share", "1.5"), "--product_share 1.5: expected a share above 0, at most 1"),
        (("--device", "V100", "--link_share", "0"), "--link_share 0: expected a share"),
        (("--device", "V100", "--latency_ms", "-1"), "--latency_ms -1: expected 0 or more"),
        (("--device", "V100", "--link", "10"), "--link 10: expected a rate above 0 as in 10Gb/s"),
        (("--device", "V100", "--memory", "16"), "--memory 16: expected a size above 0 as in 16GiB"),
        (("--device", "V100", "--memory_rate", "900"), "--memory_rate 900: expected a rate"),
        (("--device", "V100", "--world_size", "0"), "--world_size 0: expected at least 1"),
        (("--device", "V100", "--set", "phase.0.steps=0"), "phase.0.steps"),
        (("--device", "V100", "--recipe", "/nowhere"), "cannot read the recipe /nowhere"),
    ],
)
def test_a_wrong_flag_is_one_message(capsys, flags, message):
    with pytest.raises(UserError, match=message):
        plan(capsys, *FLAGS, *flags)


def test_a_device_is_needed(capsys):
    with pytest.raises(SystemExit) as ended:
        plan(capsys, *FLAGS)
    assert ended.value.code == 2
    assert "one of the arguments --device --tflops is required" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("10Gb/s", 1.25e9),
        ("100 Mbit/s", 1.25e7),
        ("900GB/s", 9e11),
        ("2.5Gb/s", 3.125e8),
        ("8b/s", 1),
        ("4.8TB/s", 4.8e12),
    ],
)
def test_rates(text, bytes_per_s):
    assert parse_rate(text, "--link") == pytest.approx(bytes_per_s)


@pytest.mark.parametrize("text", ["", "10", "10Gb", "Gb/s", "-1Gb/s", "0Gb/s", "10gb/s", "1e3Mb/s", "10Gb/s "])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(UserError, match="--link"):
        parse_rate(text, "--link")


@pytest.mark.parametrize(
    ("text", "size"), [("16GiB", 16 * 2**30), ("16GB", 16e9), ("512 MiB", 2**29), ("1.5GiB", 1.5 * 2**30)]
)
def test_sizes(text, size):
    assert parse_size(text, "--memory") == size


@pytest.mark.parametrize("text", ["", "16", "16G", "0GiB", "-1GiB", "16gib", "16KiB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UserError, match="--memory"):
        parse_size(text, "--memory")
