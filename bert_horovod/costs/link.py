"""The link between ranks as two numbers: fitted to all-reduces that were timed, or computed for a ring."""

from typing import NamedTuple

import numpy as np


class Link(NamedTuple):
    """An all-reduce of b bytes takes latency_s + b * s_per_byte."""

    latency_s: float
    s_per_byte: float  # of payload

    def seconds(self, payload_bytes: float) -> float:
        """Of one all-reduce."""
        return self.latency_s + payload_bytes * self.s_per_byte

    def slower(self, times: float) -> "Link":
        """One that carries so many times fewer bytes a second."""
        return Link(self.latency_s, self.s_per_byte * times)

    def bytes_per_s(self, world_size: int) -> float:
        """What a rank sends a second in a ring: 2 (n - 1) / n of the payload."""
        return 2 * (world_size - 1) / world_size / self.s_per_byte


def ring(world_size: int, bytes_per_s: float, hop_latency_s: float) -> Link:
    """The link of ring all-reduces (Patarasuk & Yuan 2009): 2 (n - 1) hops, 2 (n - 1) / n of the payload on each.

    Args:
        world_size: n, ranks; a ring of one sends nothing.
        bytes_per_s: that the slowest hop carries, as a rule between two hosts: all of a host's ranks share one hop.
        hop_latency_s: of a message from a rank to its neighbour.
    """
    hops = 2 * (world_size - 1)
    return Link(hops * hop_latency_s, hops / world_size / bytes_per_s)


def fit(seconds: list[tuple[int, float]]) -> Link:
    """The link of (bytes, seconds) of all-reduces, from small to large: slope from the large, latency from the small.

    A switch or a shaped link lets a burst through at a higher rate, so that the rate of what is sent for long is that
    between the two largest.
    """
    payload, taken = (np.array(values, np.float64) for values in zip(*seconds, strict=True))
    slope = max((taken[-1] - taken[-2]) / (payload[-1] - payload[-2]), 1e-15)
    latency = float(np.median((taken - slope * payload)[: max(1, len(taken) // 2)]))
    return Link(latency if latency > 0 else float(taken.min()), float(slope))
