"""Measure the all-reduce: each rank runs this module for `bert-horovod doctor`; rank 0 prints one line of JSON.

horovodrun ... python -m bert_horovod.cluster.doctor.all_reduce EXPECTED

EXPECTED: bit/s of a link, or 0. A ring that is slow beside it lets each link be measured alone.
"""

import contextlib
import json
import signal
import socket
import statistics
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from bert_horovod.cluster.doctor.facts import own_address
from bert_horovod.collectives.launched import launch
from bert_horovod.runtime import lazy_tensorflow as tf

if TYPE_CHECKING:
    from bert_horovod.collectives.world import World

LIMIT_S = 100  # a rank ends itself after this time, even if its launcher is gone
MARK = '{"ranks": '
SLOW = 0.7  # fraction of the expected rate: headers, latency and other traffic take the rest
_SECONDS = 0.3  # target time of one all-reduce, so that latency counts little
_FIRST_BYTES, _MOST_BYTES = 1 << 20, 1 << 27
_REPETITIONS = 5
_ADDRESS_BYTES = 64


def measure_all_reduce(world: "World", expected_bits_per_s: float) -> dict:
    """Measure latency and bandwidth of the all-reduce, and each link alone if the ring is slow; equal on all ranks.

    The world has one rank on each host; `expected_bits_per_s` of a link is 0 if nothing is expected.
    """

    def seconds(count: int, repetitions: int, choose: Callable[[list[float]], float]) -> float:
        """One of the times of an all-reduce of `count` bytes, by rank 0's clock; equal on all ranks."""
        numbers, times = tf.ones([count // 4]), []
        for repetition in range(repetitions):
            world.barrier()
            start = time.perf_counter()
            world.all_reduce(numbers, f"doctor.{count}.{repetition}").numpy()
            times.append(time.perf_counter() - start)
        chosen_s = choose(times) if world.rank == 0 else 0.0
        return float(world.all_reduce(tf.constant(chosen_s, tf.float64), f"doctor.time.{count}.{repetitions}"))

    seconds(4, 5, statistics.median)  # opens the connections
    latency_s = seconds(4, 21, statistics.median)
    # The quickest sum shows what links and hosts can do; the others may have waited for another program.
    first_s = seconds(_FIRST_BYTES, 2, min)
    count = int(min(_MOST_BYTES, max(_FIRST_BYTES, _FIRST_BYTES * _SECONDS / first_s))) // 4096 * 4096
    taken_s = seconds(count, _REPETITIONS, min)
    bits_per_s = 2 * (world.size - 1) / world.size * count * 8 / taken_s  # that a ring sends over each link
    return {
        "ranks": world.size,
        "bytes": count,
        "seconds": taken_s,
        "latency_s": latency_s,
        "bits_per_s": bits_per_s,
        "links": links(world) if bits_per_s < SLOW * expected_bits_per_s else [],
    }


def links(world: "World") -> list[float]:
    """Bit/s over plain TCP from each rank to the next (the last to the first), one link at a time; 0 if one failed."""
    address = own_address() or ""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        server.settimeout(10)
        own_server = f"{address} {server.getsockname()[1]}".ljust(_ADDRESS_BYTES).encode()
        table = world.all_gather(tf.constant([list(own_server)], tf.int32), "doctor.addresses").numpy()
        received = 0.0
        for sender in range(world.size):
            world.barrier()
            receiver = (sender + 1) % world.size
            with contextlib.suppress(OSError):
                if world.rank == sender:
                    address, port = bytes(table[receiver].tolist()).decode().split()
                    _send(address, int(port))
                elif world.rank == receiver:
                    received = _receive(server)
    rates = world.all_gather(tf.constant([received], tf.float64), "doctor.links").numpy().tolist()
    return rates[1:] + rates[:1]  # a rank measures the link that ends at it: rank 0 the last


def _send(address: str, port: int) -> None:
    chunk = bytes(1 << 18)
    with socket.create_connection((address, port), timeout=10) as connection:
        end = time.perf_counter() + _SECONDS
        while time.perf_counter() < end:
            connection.sendall(chunk)


def _receive(server: socket.socket) -> float:
    """Receive until the sender closes the connection; returns bit/s."""
    connection, _ = server.accept()
    with connection:
        connection.settimeout(10)
        buffer, count, start = bytearray(1 << 18), 0, time.perf_counter()
        while got := connection.recv_into(buffer):
            count += got
    return count * 8 / (time.perf_counter() - start)


def main() -> None:
    """Join the world, measure, print."""
    signal.alarm(LIMIT_S)
    expected_bits_per_s = float(sys.argv[1])
    from bert_horovod.collectives.starting import connect
    from bert_horovod.runtime.devices import use_devices

    world = connect(launch())
    use_devices(world.local_rank, world.local_size, 0)
    measured = measure_all_reduce(world, expected_bits_per_s)
    if world.rank == 0:
        print(json.dumps(measured), flush=True)
    world.shutdown()


if __name__ == "__main__":
    main()
