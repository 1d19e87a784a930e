"""The pairs in which ranks swap their parts of an all-to-all."""

from collections.abc import Sequence

MOST_IN_PAIRS = 8  # ranks of an all-to-all in pairs; more ranks need too many groups


def meetings(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """All pairs of 3 to MOST_IN_PAIRS ranks, round by round, so that in a round no rank is in two pairs; else none.

    The rounds are those of a tournament: one rank stays, the others move on by a place.

    >>> meetings(range(4))
    [(0, 3), (1, 2), (0, 2), (1, 3), (0, 1), (2, 3)]
    """
    if not 2 < len(ranks) <= MOST_IN_PAIRS:
        return []
    places = [*ranks, *([None] if len(ranks) % 2 else [])]
    pairs = []
    for _ in places[1:]:
        for a, b in zip(places[: len(places) // 2], reversed(places), strict=False):
            if a is not None and b is not None:
                pairs.append((min(a, b), max(a, b)))
        places.insert(1, places.pop())
    return pairs
