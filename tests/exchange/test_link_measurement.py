"""The measured link, by a clock that the test moves."""

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.exchange import link_measurement

LATENCY_S, S_PER_BYTE = 0.01, 1e-8
SHARE = 0.5  # of the time of bytes, where collectives begin together


class Network(World):
    """Two ranks, of which one is here; a clock stands still but for its collectives."""

    size = 2

    def __init__(self) -> None:
        super().__init__()
        self.now_s, self.begun = 0.0, []

    def barrier(self) -> None:
        self.begun.clear()

    def collective(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        def begin(numbers: np.ndarray) -> np.ndarray:
            self.begun.append((name, numbers.nbytes))
            return numbers

        return tf.numpy_function(begin, [tensor], tensor.dtype)

    def perf_counter(self) -> float:
        """The time, once all collectives that began since the barrier have ended."""
        if self.begun:
            share = SHARE if len(self.begun) > 1 else 1.0
            self.now_s += LATENCY_S + share * S_PER_BYTE * sum(payload for _, payload in self.begun)
        return self.now_s


def test_the_link_is_scaled_to_sums_that_begin_together(monkeypatch):
    network = Network()
    monkeypatch.setattr(link_measurement.time, "perf_counter", network.perf_counter)
    link = link_measurement.measure_link(network, network.collective, tf.float16, 2)
    names = {name for name, _ in network.begun}
    assert len(names) == len(network.begun) == 4  # Horovod would refuse two with one name
    size = network.begun[0][1]
    times = (LATENCY_S + SHARE * S_PER_BYTE * 4 * size) / (4 * (LATENCY_S + S_PER_BYTE * size))
    assert link.latency_s == pytest.approx(times * LATENCY_S)
    assert link.s_per_byte == pytest.approx(times * S_PER_BYTE)
    assert 4 * link.seconds(size) == pytest.approx(LATENCY_S + SHARE * S_PER_BYTE * 4 * size)
