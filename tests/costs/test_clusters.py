"""Cluster files: what they say, what they need, and the examples.

Machines that are taken away: Young's and Daly's formulas beside a simulation.
"""

import math

import numpy as np
import pytest

from bert_horovod.costs.clusters import Losses, parse_rate, parse_size, read_cluster, spot_plan
from bert_horovod.costs.gpus import PRODUCT_SHARE
from bert_horovod.costs.planner import HOPPER_SHARE, SPREAD, plan_phase
from bert_horovod.costs.prices import Bill, Prices, bill
from bert_horovod.errors import UserError
from tests.costs.test_planner import DEVICE, HOP, recipe
from tests.horovod_runs import PROJECT

EXAMPLES = sorted((PROJECT / "run" / "clusters").glob("*.toml"))
WHOLE = """
[hosts]
count = 4
devices = 2
[device]
name = "V100"
memory = "32GiB"
[between]
rate = "10Gb/s"
share = 0.8
[inside]
rate = "8GB/s"
share = 0.5
latency_ms = 0.01
[costs]
device_hour = 2.0
device_w = 400.0
kwh = 0.5
"""


def read(tmp_path, text: str):
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    return read_cluster(path)


def test_a_cluster_is_what_its_file_says_and_data_sheets_the_rest(tmp_path):
    cluster = read(tmp_path, WHOLE)
    assert cluster.ranks == 8
    network = cluster.network
    assert (network.bytes_per_s, network.share, network.latency_s, network.devices) == (1.25e9, 0.8, 5e-5, 2)
    assert (network.inside_bytes_per_s, network.inside_latency_s) == (4e9, 1e-5)
    device = cluster.rank_device("float16")
    assert (device.flops_per_s, device.product_share, device.spread) == (125e12, PRODUCT_SHARE, SPREAD)
    assert (device.memory_bytes, device.memory_bytes_per_s) == (32 * 2**30, 900e9)


@pytest.mark.parametrize(
    ("device", "share"),
    [
        ('name = "T4"', PRODUCT_SHARE),
        ('name = "H200"', HOPPER_SHARE),
        ('name = "RTX 5090"', PRODUCT_SHARE),
        ('name = "H100 SXM"', HOPPER_SHARE / (1 + 0.2 * (4.8e-3 * 989 / 3.35 - 1))),
        ('name = "L40S"', PRODUCT_SHARE / (1 + 0.2 * (4.8e-3 * 362 / 0.864 - 1))),
        ('name = "H200"\nproduct_share = 0.5', 0.5),
        ("tflops = 50.0", PRODUCT_SHARE),
    ],
)
def test_the_share_of_the_peak_is_the_one_given_or_known_of_such_gpus(tmp_path, device, share):
    assert read(tmp_path, f"[device]\n{device}").rank_device("float16").product_share == pytest.approx(share)


def test_one_host_of_one_device_needs_no_link(tmp_path):
    cluster = read(tmp_path, "[device]\nname = 'mine'\ntflops = 50.0")
    assert (cluster.ranks, cluster.network.bytes_per_s) == (1, math.inf)
    device = cluster.rank_device("bfloat16")
    assert (device.name, device.flops_per_s, device.memory_bytes) == ("mine", 50e12, None)


def test_a_bill_has_what_prices_say():
    assert bill(None, 2.0, 4) == Bill(192.0, None, None)
    assert bill(Prices(device_hour=2.0), 2.0, 4) == Bill(192.0, 384.0, None)
    assert bill(Prices(device_w=500.0), 2.0, 4) == Bill(192.0, None, 96.0)
    assert bill(Prices(2.0, "EUR", 500.0, 0.25), 2.0, 4) == Bill(192.0, 384.0 + 24.0, 96.0)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_whole(path):
    cluster = read_cluster(path)
    device = cluster.rank_device("float16")
    assert device.memory_bytes >= 16 * 2**30
    assert device.memory_bytes_per_s > 3e11
    assert cluster.network.inside_bytes_per_s > cluster.network.bytes_per_s / 10
    priced = bill(cluster.costs, 1.0, cluster.ranks)
    assert priced.price > 0
    assert priced.kwh > 0
    assert cluster.costs.currency


def test_examples_are_of_each_kind_of_device_and_link():
    clusters = [read_cluster(path) for path in EXAMPLES]
    assert {each.device.name.split()[0] for each in clusters} == {"T4", "V100", "A100", "RTX"}
    assert {each.between.rate for each in clusters} == {"1Gb/s", "10Gb/s", "25Gb/s", "100Gb/s"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[hosts", "not valid TOML"),
        ("[nodes]\ncount = 2", r"cluster.toml: unknown key nodes; known are: between, costs, device, hosts, inside"),
        ("hosts = 3", r"hosts = 3: expected a table \[hosts\]"),
        ("[hosts]\ncount = 0", "hosts.count = 0: expected at least 1"),
        ("[device]\nname = 3", "device.name = 3: expected a string"),
        ("[hosts]\ncount = 1", r'which device\? Add under \[device\] a line as name = "A100 80GB" or tflops'),
        (WHOLE.replace('rate = "10Gb/s"', ""), r'no link: add under \[between\] a line as rate = "25Gb/s"'),
        (WHOLE.replace('rate = "8GB/s"', ""), r"2 devices a host, and no link: add under \[inside\] a line as"),
        (WHOLE.replace("10Gb/s", "fast"), "cluster.toml: between.rate = fast: expected a rate above 0"),
        (WHOLE.replace("device_w = 400.0", ""), r"costs.kwh needs the power: add under \[costs\] a line as device_w"),
        (WHOLE.replace("device_hour = 2.0", ""), r"no price: add under \[costs\] a line as device_hour = 1.5"),
    ],
)
def test_a_wrong_file_is_one_message_that_says_which_line_to_add(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        read(tmp_path, text)
    with pytest.raises(UserError, match=r"cannot read the cluster file .*nowhere"):
        read_cluster(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "precision", "message"),
    [
        (
            WHOLE.replace("V100", "K80"),
            "float16",
            r"device.name K80: not known; known are V100S .*, B200\. .* add under \[device\] lines as tflops",
        ),
        (WHOLE, "bfloat16", "device.name V100 does not accelerate numerics.precision = bfloat16"),
        (WHOLE.replace("32GiB", "32"), "float16", "device.memory 32: expected a size above 0"),
    ],
)
def test_a_device_that_no_data_sheet_knows_is_named(tmp_path, text, precision, message):
    with pytest.raises(UserError, match=message):
        read(tmp_path, text).rank_device(precision)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_rate, "10Gb/s", 1.25e9),
        (parse_rate, "100 Mbit/s", 1.25e7),
        (parse_rate, "2.5Gb/s", 3.125e8),
        (parse_rate, "8b/s", 1),
        (parse_rate, "4.8TB/s", 4.8e12),
        (parse_size, "16GiB", 16 * 2**30),
        (parse_size, "16GB", 16e9),
        (parse_size, "512 MiB", 2**29),
        (parse_size, "1.5GiB", 1.5 * 2**30),
    ],
)
def test_rates_and_sizes(parse, text, value):
    assert parse(text, "--flag") == pytest.approx(value)


NO_RATES = ("", "10", "10Gb", "Gb/s", "-1Gb/s", "0Gb/s", "10gb/s", "1e3Mb/s", "10Gb/s ")
NO_SIZES = ("", "16", "16G", "0GiB", "-1GiB", "16gib", "16KiB")


@pytest.mark.parametrize(
    ("parse", "text"), [*((parse_rate, text) for text in NO_RATES), *((parse_size, text) for text in NO_SIZES)]
)
def test_what_is_no_rate_or_size_is_refused_with_its_flag(parse, text):
    with pytest.raises(UserError, match="--flag"):
        parse(text, "--flag")


LOSSES = Losses(mean_s=7200.0, save_s=30.0, restart_s=300.0)
WORK_S = 200 * 3600.0


def simulated_s(losses, work_s, interval_s, random):
    """A training's time, loss by loss: what was done since the last save is lost, also a save that was not ready."""
    now = done = 0.0
    next_loss = random.exponential(losses.mean_s)
    while done < work_s:
        needed = interval_s + losses.save_s
        if now + needed <= next_loss:
            now, done = now + needed, done + interval_s
            continue
        now = next_loss
        while True:  # a loss while it starts again makes it start again
            next_loss = now + random.exponential(losses.mean_s)
            if now + losses.restart_s <= next_loss:
                now += losses.restart_s
                break
            now = next_loss
    return now


def mean_of_simulations(interval_s, count=60):
    random = np.random.default_rng(1)
    work_s = interval_s * round(WORK_S / interval_s)
    return np.mean([simulated_s(LOSSES, work_s, interval_s, random) / work_s for _ in range(count)])


@pytest.mark.parametrize("interval_s", [120.0, 660.0, 3600.0, 7200.0])
def test_the_expected_time_is_a_simulations_mean(interval_s):
    assert LOSSES.expected_s(1.0, interval_s) == pytest.approx(mean_of_simulations(interval_s), rel=0.02)


def test_the_best_interval_is_the_simulations():
    intervals = np.geomspace(60, 6000, 400)
    least = intervals[np.argmin([LOSSES.expected_s(WORK_S, interval) for interval in intervals])]
    assert LOSSES.daly_s == pytest.approx(least, rel=0.02)
    assert LOSSES.young_s == pytest.approx(math.sqrt(2 * 30 * 7200))
    best, half, double = (mean_of_simulations(LOSSES.daly_s * factor) for factor in (1, 1 / 3, 3))
    assert best < min(half, double)


def test_saves_that_take_longer_than_machines_stay_are_told():
    hopeless = Losses(mean_s=10.0, save_s=60.0, restart_s=1.0)
    assert hopeless.daly_s == 10.0
    assert hopeless.expected_s(1e6, 1e6) == math.inf


@pytest.mark.parametrize(("save_s", "steps"), [(0.01, 10), (1.0, 30), (1e4, 100)])
def test_the_best_steps_between_saves_are_some_that_the_exchange_allows(save_s, steps):
    toy = recipe(exchange={"method": "parameters", "interval": 10})
    plan = plan_phase(toy, 0, 2, DEVICE, HOP)
    best = spot_plan(toy, plan, 2, Losses(30 * 30 * plan.step_s**2 / 2, save_s, 1.0), None, 1.0).best_steps
    assert best == steps
    assert recipe(exchange={"method": "parameters", "interval": 10}, execution={"checkpoint_steps": best})
