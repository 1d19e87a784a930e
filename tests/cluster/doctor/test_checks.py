"""The doctor's arithmetic, where the illness cannot be had for real: clocks, GPUs, memory, several networks."""

import importlib.metadata
import json
import sys

import pytest

from bert_horovod.cluster.doctor import examination
from bert_horovod.cluster.doctor.ask import HostAnswer, _ask, ask_all, clock_difference, is_here
from bert_horovod.cluster.doctor.checks import (
    FAILED,
    OK,
    WARNING,
    check_clocks,
    check_disks,
    check_gpus,
    check_resources,
    check_ssh,
    check_versions,
)
from bert_horovod.cluster.doctor.examination import (
    Doctor,
    _reason,
    check_all_reduce,
    check_names,
    common_interface,
    link_speed,
    slow_links,
)
from bert_horovod.cluster.doctor.facts import loopback_line, read_gpus, room
from bert_horovod.runtime import children
from tests.horovod_runs import run_process


def facts(**changes) -> dict:
    """Of a host with two networks and two GPUs, that is well."""
    return {
        "name": "node1",
        "python": "3.11.2",
        "packages": {"tensorflow": "2.21.0", "horovod": "0.28.1", "numpy": "2.4.6"},
        "source": "abc",
        "horovod_with": ["Gloo", "NCCL"],
        "horovod_cuda": 12,
        "own_address": "10.0.0.1",
        "loopback_line": None,
        "interfaces": {
            "lo": {"address": "127.0.0.1", "bits_per_s": None},
            "eth0": {"address": "10.0.0.1", "bits_per_s": 1e9},
            "eth1": {"address": "10.1.0.1", "bits_per_s": 25e9},
        },
        "address_to_others": "10.0.0.1",
        "directories": {"/tmp": {"free_bytes": 50e9, "wrong": None}, "/out": {"free_bytes": 50e9, "wrong": None}},
        "memory_bytes": 64e9,
        "cores": 16,
        "gpus": {"names": ["A", "A"], "driver": "550.54.15", "wrong": None},
    } | changes


NO_GPUS = {"names": [], "driver": None, "wrong": None}
H100 = "NVIDIA H100 80GB HBM3"


def test_the_middle_of_a_round_trip_is_when_a_clock_was_read():
    assert clock_difference(100.0, 103.0, 102.0) == (2.0, 1.0)
    assert clock_difference(100.0, 95.05, 100.1) == pytest.approx((-5.0, 0.05))


def test_clocks_that_surely_differ_are_a_warning():
    answers = {"a": HostAnswer({}), "b": HostAnswer({}, clock_s=-2.5, clock_error_s=0.2)}
    (check,) = check_clocks(answers)
    assert (check.level, check.found) == (WARNING, "b: 2.5 s behind this host's")
    unsure = {"a": HostAnswer({}, clock_s=1.5, clock_error_s=0.6)}
    assert check_clocks(unsure)[0].level == OK


def test_what_is_missing_or_out_of_range_is_a_failure():
    hosts = {"a": facts(python="3.14.1", packages={"tensorflow": "2.21.0", "horovod": None, "numpy": "2.4.6"})}
    checks = check_versions(hosts, ">=3.10,<3.14", {"tensorflow": "==2.21.0", "horovod": "==0.28.1"})
    assert [(check.level, check.found) for check in checks] == [
        (FAILED, "a: Python 3.14.1"),
        (FAILED, "a: horovod is missing"),
    ]


def test_without_horovod_one_process_works_and_is_what_the_last_line_starts():
    doctor = Doctor()
    doctor.facts = {"localhost": facts(packages={"tensorflow": "2.21.0", "horovod": None}, horovod_with=[])}
    (check,) = check_versions(doctor.facts, ">=3.10", {"horovod": "==0.28.1"}, alone=True)
    assert (check.level, check.found) == (WARNING, "localhost: horovod is missing; one process works")
    assert check_gpus(doctor.facts, {"localhost": 2}, alone=True)[0].level == OK
    assert doctor.start_line([]).startswith("bert-horovod pretrain --recipe bert-base --data_dir ")
    doctor.hosts = doctor.slots = {"localhost": 2}
    assert doctor.start_line(["-H", "localhost:2"]).startswith("bert-horovod launch -np 2 -H localhost:2 ")


def test_what_installs_horovod_is_named_where_a_wheel_lacks_it(monkeypatch, tmp_path):
    assert children.set_up("node1") == "run/setup.sh on node1"
    monkeypatch.setattr(children, "__file__", str(tmp_path / "bert_horovod" / "runtime" / "children.py"))
    assert children.set_up() == "run/setup.sh of this project's source code"


@pytest.mark.parametrize(
    "checks",
    [
        check_ssh({"b": HostAnswer(wrong="it cannot be reached")}),
        check_versions({"b": facts(python="3.14.1")}, "<3.14", {}),
        check_versions({"b": facts(horovod_with=["MPI"])}, ">=3.10", {}),
        check_disks({"b": facts(directories={"/tmp": {"free_bytes": 1e9, "wrong": "Read-only file system"}})}, "/tmp"),
        check_gpus({"b": facts(gpus={"names": [], "driver": None, "wrong": "nvidia-smi says: no"})}, {"b": 2}),
        check_gpus({"b": facts(gpus={"names": ["A"], "driver": "550.54.15", "wrong": None})}, {"b": 2}),
        check_gpus({"b": facts(gpus={"names": ["A", "A"], "driver": "470.9", "wrong": None})}, {"b": 2}),
        check_gpus({"b": facts(horovod_with=["Gloo"])}, {"b": 2}),
        check_names({"b": facts(own_address=None)}, None, False),
        check_names({"a": facts(), "b": facts(own_address="127.0.1.1")}, None, False),
        check_names({"a": facts(gpus=NO_GPUS), "b": facts(own_address="10.1.0.1", gpus=NO_GPUS)}, "eth0", True),
        common_interface({"a": facts(), "b": facts(interfaces={})}, "eth0")[1],
    ],
)
def test_a_failure_tells_scripts_too_which_host_is_to_blame(checks):
    assert [(check.level, check.hosts, check.found[:3]) for check in checks] == [(FAILED, ("b",), "b: ")]


def test_where_hosts_differ_the_fewer_are_to_blame_or_else_the_later():
    old = facts(source="old")
    for hosts, blamed in (({"a": facts(), "b": old}, ("b",)), ({"a": old, "b": facts(), "c": facts()}, ("a",))):
        (check,) = check_versions(hosts, ">=3.10", {})
        assert check.hosts == blamed


def test_builds_of_horovod_that_differ_or_lack_gloo_are_a_failure():
    (check,) = check_versions({"a": facts(horovod_with=["MPI"])}, ">=3.10", {"horovod": "==0.28.1"})
    assert (check.level, check.found) == (FAILED, "a: Horovod with MPI")
    (check,) = check_versions({"a": facts(), "b": facts(horovod_with=["Gloo"])}, ">=3.10", {"numpy": "<2.5"})
    assert (check.level, check.found) == (FAILED, "Horovod with: Gloo and NCCL on a; Gloo on b")


@pytest.mark.parametrize(("gpus", "level"), [(NO_GPUS, FAILED), (facts()["gpus"], WARNING)])
def test_an_own_name_on_another_network_than_the_named_one_is_told(gpus, level):
    hosts = {"a": facts(gpus=gpus), "b": facts(gpus=gpus, own_address="10.1.0.1")}
    (check,) = check_names(hosts, "eth1", named=True)
    assert (check.level, check.mend) == (level, "on a, give node1 the address of eth1 in /etc/hosts")
    assert check_names({"a": facts(), "b": facts()}, "eth0", named=False)[0].level == OK


@pytest.mark.parametrize("address", ["127.0.1.1", "::1", "fe80::5054:ff:fe12:3456"])
def test_a_name_that_others_cannot_reach_matters_only_between_hosts(address):
    alone = facts(own_address=address)
    assert check_names({"a": alone}, None, named=False)[0].level == OK
    assert [check.level for check in check_names({"a": alone, "b": facts()}, "eth0", named=False)] == [FAILED]


def test_the_line_of_the_hosts_file_is_named(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("# a comment\n127.0.0.1 localhost\n127.0.1.1\tnode1.example.org node1 # Debian\n10.0.0.1 node1\n")
    assert loopback_line(hosts, "node1") == 'line 3, "127.0.1.1 node1.example.org node1 # Debian"'
    assert loopback_line(hosts, "node2") is None
    assert loopback_line(tmp_path / "absent", "node1") is None


def test_interfaces_with_other_names_or_speeds_are_told():
    renamed = {"lo": facts()["interfaces"]["lo"], "ens3": facts()["interfaces"]["eth0"]}
    interface, (check,) = common_interface({"a": facts(), "b": facts(interfaces=renamed)}, None)
    assert (interface, check.level, check.found) == (None, FAILED, "interfaces differ: eth0 on a, ens3 on b")
    slower = facts()["interfaces"] | {"eth0": {"address": "10.0.0.1", "bits_per_s": 1e8}}
    interface, (check,) = common_interface({"a": facts(), "b": facts(interfaces=slower)}, None)
    assert (interface, check.level) == ("eth0", WARNING)
    assert "1 Gb/s on a, 0.1 Gb/s on b" in check.found
    interface, (check,) = common_interface({"a": facts(address_to_others=None)}, None)
    assert (check.level, check.found) == (FAILED, "a: no way to the other hosts")


def test_the_slowest_interface_that_gloo_uses_sets_what_is_expected():
    assert link_speed({"a": facts(), "b": facts(own_address="10.1.0.1")}) == 1e9
    assert link_speed({"a": facts(), "b": facts(own_address="192.168.0.1")}) is None


@pytest.mark.parametrize(
    ("room", "level"),
    [
        ({"free_bytes": 50e9, "wrong": None}, OK),
        ({"free_bytes": 5e9, "wrong": None}, WARNING),
        ({"free_bytes": 1e9, "wrong": None}, FAILED),
        ({"free_bytes": 50e9, "wrong": "Read-only file system"}, FAILED),
    ],
)
def test_room_for_checkpoints_is_asked_of_the_first_host_alone(room, level):
    first = facts(directories=facts()["directories"] | {"/out": room})
    second = facts(directories=facts()["directories"] | {"/out": {"free_bytes": 0, "wrong": None}})
    (check,) = check_disks({"a": first, "b": second}, "/tmp", "/out")
    assert check.level == level
    assert ("Read-only" in check.found) == (room["wrong"] is not None)


def test_ranks_without_a_core_or_memory_are_a_warning():
    checks = check_resources({"a": facts(cores=2, memory_bytes=4e9)}, {"a": 4})
    assert [(check.name, check.level) for check in checks] == [("cores", WARNING), ("memory", WARNING)]
    assert check_resources({"a": facts()}, {"a": 4})[0].level == OK


def test_gpus_are_read_from_their_tool():
    table = "535.104.05, NVIDIA A100-SXM4-40GB\n535.104.05, NVIDIA A100-SXM4-40GB\n"
    assert read_gpus(table, 0) == {"names": ["NVIDIA A100-SXM4-40GB"] * 2, "driver": "535.104.05", "wrong": None}
    assert read_gpus("Failed to initialize NVML:\nmismatch\n", 18)["wrong"] == (
        "nvidia-smi says: Failed to initialize NVML: mismatch"
    )


@pytest.mark.parametrize(
    ("changes", "level", "found"),
    [
        ({}, OK, "2 of A, driver 550.54.15, NCCL"),
        ({"gpus": NO_GPUS}, OK, "none; ranks compute on the CPU"),
        ({"gpus": {"names": ["A"], "driver": "550.54.15", "wrong": None}}, FAILED, "a: 1 GPUs for 2 ranks"),
        ({"gpus": {"names": ["A", "A"], "driver": "470.9", "wrong": None}}, FAILED, "a: driver 470.9"),
        ({"gpus": {"names": [H100] * 2, "driver": "550.54.15", "wrong": None}}, FAILED, "a: driver 550.54.15"),
        (
            {"gpus": {"names": [H100] * 2, "driver": "555.42.02", "wrong": None}},
            OK,
            f"2 of {H100}, driver 555.42.02, NCCL",
        ),
        ({"horovod_cuda": 13}, FAILED, "a: driver 550.54.15"),
        (
            {"horovod_cuda": 13, "gpus": {"names": ["A", "A"], "driver": "580.65.06", "wrong": None}},
            OK,
            "2 of A, driver 580.65.06, NCCL",
        ),
        ({"gpus": {"names": ["A", "B"], "driver": "550.1", "wrong": None}}, WARNING, "several kinds: A, B"),
        ({"gpus": NO_GPUS | {"wrong": "nvidia-smi says: no"}}, FAILED, "a: nvidia-smi says: no"),
        ({"horovod_with": ["Gloo"]}, FAILED, "a: Horovod without NCCL"),
    ],
)
def test_gpus_are_enough_alike_and_with_nccl(changes, level, found):
    (check,) = check_gpus({"a": facts(**changes)}, {"a": 2})
    assert (check.level, check.found) == (level, found)


@pytest.mark.parametrize(
    ("links", "found"),
    [
        ([1e9, 1e9, 1e9, 1e9], ""),
        ([1e9, 1e8, 1e8, 1e9], "c, 0.1 Gb/s in and out"),
        ([1e8, 1e9, 1e9, 1e8], "a, 0.1 Gb/s in and out"),
        ([1e9, 0.0, 1e9, 1e9], "b to c, 0 Gb/s"),
        ([1e8, 1e9], "a to b, 0.1 Gb/s"),
        ([1e8, 2e8], "a to b, 0.1 Gb/s; b to a, 0.2 Gb/s"),
        ([1e8, 1e8, 1e8, 1e8], "a to b, 0.1 Gb/s; b to c, 0.1 Gb/s; c to d, 0.1 Gb/s; d to a, 0.1 Gb/s"),
    ],
)
def test_slow_links_are_named_by_what_they_share(links, found):
    assert slow_links(links, list("abcd")[: len(links)], 1e9) == found


def measured(bits_per_s: float, links: tuple = ()) -> dict:
    return {
        "ranks": 3,
        "bytes": 1 << 24,
        "seconds": 0.3,
        "latency_s": 2e-3,
        "bits_per_s": bits_per_s,
        "links": list(links),
    }


def test_a_ring_below_seven_tenths_fails_where_a_link_alone_is_slow_too():
    hosts = ["a", "b", "c"]
    assert check_all_reduce(measured(0.71e9), hosts, 1e9).level == OK
    assert check_all_reduce(measured(0.1e9), hosts, None).level == OK
    busy = check_all_reduce(measured(0.69e9, [0.9e9] * 3), hosts, 1e9)
    assert (busy.level, "each by itself carries 0.9 Gb/s" in busy.mend) == (WARNING, True)
    slow = check_all_reduce(measured(0.1e9, (1e9, 1e8, 1e8)), hosts, 1e9)
    assert (slow.level, "Slow: c, 0.1 Gb/s in and out" in slow.found) == (FAILED, True)


def test_of_a_failed_launch_the_telling_line_is_shown():
    output = "[0]<stderr>:terminate called\n"
    output += "[1]<stderr>:  what():  [/tmp/gloo/pair.cc:799] connect [127.0.0.1]: refused\nRuntimeError: x\n"
    assert _reason(output) == "what():  connect [127.0.0.1]: refused"
    assert _reason("") == "no word"


def test_the_job_whose_hosts_are_checked_is_named():
    check = next(Doctor({"a": 2, "b": 2}, source="/etc/mpi/hostfile of a job in Kubernetes").examine_facts())
    assert (check.name, check.found) == ("job", "2 hosts, 4 slots, from /etc/mpi/hostfile of a job in Kubernetes")


@pytest.mark.slow
def test_this_host_alone_is_examined_too_and_json_has_all_of_it(tmp_path):
    pytest.importorskip("horovod")
    command = [sys.executable, "-m", "bert_horovod", "doctor", "--json", "--output_dir", tmp_path / "run"]
    done = run_process(command)
    report = json.loads(done.stdout)
    assert {check["name"] for check in report["checks"]} >= {"versions", "name", "disk", "GPUs", "all-reduce"}
    assert report["hosts"]["localhost"]["packages"]["numpy"] == importlib.metadata.version("numpy")
    assert str(tmp_path / "run") in report["hosts"]["localhost"]["directories"]
    assert (done.returncode, report["ok"]) == (0, True), done.stdout + done.stderr
    assert report["all_reduce"]["ranks"] == 2
    assert report["all_reduce"]["bits_per_s"] > 0
    assert report["start"].startswith("bert-horovod launch -np 1 -- pretrain --recipe bert-base --data_dir ")
    assert report["start"].endswith(f"--output_dir {tmp_path / 'run'}")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["node1..example", f"{'x' * 64}.example"])
def test_a_name_that_no_host_can_have_is_not_found(name):
    assert not is_here(name)


def test_a_machine_without_ssh_is_told_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    (answer,) = ask_all(["node1..example"], None, [], []).values()
    assert (answer.facts, answer.wrong) == (None, "this host has no ssh to ask it")


def test_a_host_that_answers_and_hears_nothing_is_told_as_one_that_fails():
    answer = _ask(["sh", "-c", "exec <&-; echo '{\"name\": 1}'"], "node1", None, [])
    assert (answer.facts, answer.wrong) == (None, "it fails: no word, exit code 0")


def test_a_directory_that_may_not_be_looked_into_has_the_room_of_the_one_above_it(tmp_path):
    assert room(tmp_path / ("x" * 300) / "run")["wrong"] is None  # as without the right to look: no "no such file"


def test_a_tmpdir_that_is_set_and_empty_is_none_as_for_python(monkeypatch):
    asked = []
    monkeypatch.setenv("TMPDIR", "")
    monkeypatch.setattr(examination, "ask_all", lambda *question: asked.append(question[-1]) or {})
    assert [check.name for check in Doctor().examine_facts()] == ["ssh"]
    assert asked == [["/tmp"]]
