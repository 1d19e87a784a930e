"""The world of ranks: what launchers say, and what collectives return."""

import itertools
import socket
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.collectives.launched import Launch, launch
from bert_horovod.collectives.starting import MOST_IN_PAIRS, RendezvousBoard, _host_groups, connect, knobs, meetings
from bert_horovod.collectives.world import World
from bert_horovod.errors import UserError
from bert_horovod.exchange.link_measurement import measure_link
from tests.exchange.two_step_jobs import ENCODINGS, NUMBERS, shares
from tests.horovod_runs import run_ranks

LAUNCHERS = [
    ("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpirun", "PMI_RANK", "PMI_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
]


RANKS = 2
DTYPES = ("float16", "float32", "float64", "int32", "int64")


def values(rank: int, dtype: str) -> np.ndarray:
    """What a rank puts into a collective: small whole numbers, exact in every dtype."""
    return np.random.default_rng(rank).integers(-50, 50, (4, 3)).astype(dtype)


def collectives(world: World) -> dict[str, np.ndarray]:
    """Every collective once, by name; and the link between the ranks."""
    arrays = {"world": np.array([world.rank, world.size, world.local_rank, world.local_size])}
    for dtype in DTYPES:
        mine = tf.constant(values(world.rank, dtype))
        arrays[f"all_reduce.{dtype}"] = world.all_reduce(mine, f"all_reduce.{dtype}").numpy()
        arrays[f"all_reduce.graph.{dtype}"] = tf.function(world.all_reduce)(mine, f"graph.{dtype}").numpy()
        arrays[f"broadcast.{dtype}"] = world.broadcast(mine, f"broadcast.{dtype}").numpy()
    mine = tf.constant(values(world.rank, "float32"))
    arrays["all_gather"] = world.all_gather(mine[: 3 - world.rank], "all_gather").numpy()
    arrays["all_gather.empty"] = world.all_gather(mine[:0] if world.rank == 1 else mine, "all_gather.empty").numpy()
    arrays["all_reduce_max"] = world.all_reduce_max(tf.constant(values(world.rank, "uint8")), "all_reduce_max").numpy()
    arrays["all_to_all"] = world.all_to_all(mine, "all_to_all").numpy()
    arrays["hosts"] = np.array([world.join_hosts().inside.size, world.join_hosts().across.size])
    arrays["in_flight"] = np.array(world.in_flight(), dtype=str)  # once hosts are known: groups are asked too
    arrays["link"] = np.array(measure_link(world, world.all_reduce, tf.float16, 2)[:2])
    return arrays


@pytest.fixture(scope="module")
def ranks(two_ranks) -> list[dict[str, np.ndarray]]:
    """What each of two ranks got from its collectives."""
    return [answer.value for answer in two_ranks.run(collectives)]


@pytest.fixture
def environment(monkeypatch):
    """A function that sets variables, in an environment that no launcher has touched."""
    for _, *names in (*LAUNCHERS, (None, "SLURM_JOB_ID", "SLURM_STEP_ID")):
        for name in names:
            monkeypatch.delenv(name, raising=False)
    return lambda **variables: [monkeypatch.setenv(name, value) for name, value in variables.items()]


@pytest.mark.parametrize(("launcher", "rank", "size"), LAUNCHERS)
def test_each_launcher_is_known_by_its_variables(environment, launcher, rank, size):
    environment(**{rank: "3", size: "8"}, SLURM_STEP_ID="0")
    assert launch() == Launch(launcher, 3, 8)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, Launch(None, 0, 1)),
        ({"SLURM_NTASKS": "8"}, Launch(None, 0, 1)),  # the size of an allocation alone
        (
            {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}
            | {"HOROVOD_RANK": "5", "HOROVOD_SIZE": "8"},
            Launch("horovodrun", 5, 8),  # inside an allocation
        ),
    ],
)
def test_without_a_launcher_it_is_a_world_of_one_and_horovodrun_wins(environment, variables, expected):
    environment(**variables)
    assert launch() == expected


def test_collectives_of_a_world_of_one_return_what_they_are_given():
    world = connect(Launch())
    assert (world.rank, world.size, world.local_rank, world.local_size) == (0, 1, 0, 1)
    tensor = tf.constant(values(0, "float32"))
    for collective in (world.all_reduce, world.broadcast, world.all_gather, world.all_to_all):
        np.testing.assert_array_equal(collective(tensor, "name"), tensor)
    world.barrier()
    world.shutdown()


def test_a_launcher_that_starts_one_process_makes_a_world_of_one():
    assert type(connect(Launch("horovodrun", 0, 1))) is World


def test_ranks_know_their_place(ranks):
    assert [list(arrays["world"]) for arrays in ranks] == [[rank, RANKS, rank, RANKS] for rank in range(RANKS)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_reduce_gives_every_rank_the_sum(ranks, dtype):
    expected = sum(values(rank, dtype) for rank in range(RANKS))
    for arrays in ranks:
        for name in (f"all_reduce.{dtype}", f"all_reduce.graph.{dtype}"):
            assert arrays[name].dtype == dtype
            np.testing.assert_array_equal(arrays[name], expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcast_gives_every_rank_what_rank_0_has(ranks, dtype):
    for arrays in ranks:
        assert arrays[f"broadcast.{dtype}"].dtype == dtype
        np.testing.assert_array_equal(arrays[f"broadcast.{dtype}"], values(0, dtype))


def test_all_gather_joins_tensors_of_different_length_by_rank(ranks):
    for arrays in ranks:
        np.testing.assert_array_equal(
            arrays["all_gather"], np.concatenate([values(0, "float32")[:3], values(1, "float32")[:2]])
        )
        np.testing.assert_array_equal(arrays["all_gather.empty"], values(0, "float32"))


def test_all_to_all_gives_each_rank_its_share_of_every_ranks_tensor(ranks):
    for rank, arrays in enumerate(ranks):
        shares = [np.split(values(source, "float32"), RANKS)[rank] for source in range(RANKS)]
        np.testing.assert_array_equal(arrays["all_to_all"], np.concatenate(shares))


IN_PAIRS = """
import sys
import numpy as np
import tensorflow as tf
from bert_horovod.collectives.launched import launch
from bert_horovod.collectives.starting import connect
from tests.exchange.two_step_jobs import in_two_steps, sums

world = connect(launch(), in_two_steps())
rows = tf.reshape(tf.range(3 * world.size, dtype=tf.int32), [-1, 3]) + 100 * world.rank
in_graph = tf.function(lambda rows: world.all_to_all(tf.cast(rows, tf.float16), "graph"))
arrays = {"eager": world.all_to_all(rows, "eager"), "graph": in_graph(rows)} | sums(world)
assert world.in_flight() == []
assert world._in_pairs  # else these tests would look at Gloo's own all-to-all
np.savez(f"{sys.argv[1]}/{world.rank}.npz", **arrays)
world.barrier()
world.shutdown()
"""


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_several_ranks_swap_their_shares_in_pairs(size, tmp_path):
    done = run_ranks(size, IN_PAIRS, str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    of_ranks = [np.load(tmp_path / f"{rank}.npz") for rank in range(size)]
    for rank, arrays in enumerate(of_ranks):
        expected = np.array([np.arange(3 * rank, 3 * rank + 3) + 100 * source for source in range(size)])
        np.testing.assert_array_equal(arrays["eager"], expected)
        np.testing.assert_array_equal(arrays["graph"], expected.astype(np.float16))
        for key in (f"{encoding}.{numbers}" for encoding in ENCODINGS for numbers in NUMBERS):
            exact = sum(shares(source, int(key.split(".")[1]), 0).astype(np.float64) for source in range(size))
            np.testing.assert_allclose(arrays[key], exact, atol=np.abs(exact).max() * (2**-10 if "16" in key else 0.03))
            np.testing.assert_array_equal(arrays[key], of_ranks[0][key])
            assert not np.isfinite(arrays[f"{key}.broken"][-1])


def test_nothing_is_in_flight_between_collectives_in_any_group(ranks):
    for arrays in ranks:
        assert list(arrays["hosts"]) == [1, RANKS]
        assert arrays["in_flight"].size == 0


def test_one_process_works_without_horovod_and_two_are_told_to_build_it(monkeypatch):
    for name in knobs():
        monkeypatch.setenv(name, "0")  # what connect() would set for good
    monkeypatch.setitem(sys.modules, "horovod", None)
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", None)
    assert connect(Launch()).all_reduce(5, "five") == 5
    with pytest.raises(UserError) as caught:
        connect(Launch("srun", 0, 2))
    assert str(caught.value).startswith("srun started 2 processes, but Horovod cannot be imported (import of horovod")
    assert "run/setup.sh builds it; one process works without it" in str(caught.value)


def test_all_reduce_max_gives_every_rank_the_largest(ranks):
    expected = np.maximum(*(values(rank, "uint8") for rank in range(RANKS)))
    for arrays in ranks:
        np.testing.assert_array_equal(arrays["all_reduce_max"], expected)


def test_the_link_between_two_ranks_is_the_same_on_both(ranks):
    np.testing.assert_array_equal(ranks[0]["link"], ranks[1]["link"])
    assert (ranks[0]["link"][:2] > 0).all()


def test_horovod_fuses_nothing_and_its_timeline_waits_to_be_started():
    assert knobs()["HOROVOD_FUSION_THRESHOLD"] == "0"
    assert "HOROVOD_TIMELINE" not in knobs()
    assert knobs(timeline=True)["HOROVOD_TIMELINE"] == "DYNAMIC"


@pytest.mark.parametrize("size", [3, 4, 5, 8])
def test_in_a_round_of_meetings_no_rank_is_in_two_pairs_and_each_pair_meets_once(size):
    pairs = meetings(range(10, 10 + size))
    assert sorted(pairs) == list(itertools.combinations(range(10, 10 + size), 2))
    a_round = size // 2
    for begin in range(0, len(pairs), a_round):
        members = [rank for pair in pairs[begin : begin + a_round] for rank in pair]
        assert len(members) == len(set(members)) == 2 * a_round


def test_hosts_with_other_numbers_of_ranks_make_no_groups_on_any_rank(monkeypatch):
    ranks = [Launch("horovodrun", 0, 4, 0, 2), Launch("horovodrun", 3, 4, 0, 1)]  # of hosts with 2, 1 and 1
    monkeypatch.setenv("BERT_HOROVOD_UNEVEN", "1")
    assert [_host_groups(rank) for rank in ranks] == [([], [])] * 2
    monkeypatch.delenv("BERT_HOROVOD_UNEVEN")
    assert _host_groups(ranks[0]) == ([[0, 1], [2, 3]], [[0, 2], [1, 3]])


def test_two_ranks_and_many_ranks_make_no_pairs():
    assert meetings(range(2)) == meetings(range(MOST_IN_PAIRS + 1)) == []


def test_a_store_without_a_port_or_whose_answer_breaks_off_is_one_that_does_not_answer(monkeypatch):
    """Else the watchdog's thread would end, and with it, after a while, the rank."""
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")
    monkeypatch.delenv("HOROVOD_GLOO_RENDEZVOUS_PORT", raising=False)
    assert not RendezvousBoard().write(0, 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", str(server.getsockname()[1]))

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 12)
                connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\n[1")

        answering = threading.Thread(target=answer)
        answering.start()
        assert RendezvousBoard().read(0) is None
        answering.join()
