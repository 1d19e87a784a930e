"""Token ids of pieces of text that are kept, because words come again and again; the memory of them is bounded.

Python's dictionary knows the place of each piece's ids. In front of it NumPy looks up the pieces of at most 16 bytes,
nearly all, in a hash table whose keys are the pieces themselves.
"""

from collections.abc import Callable

import numpy as np

# A place is a number: 256 times where a piece's ids begin, and how many there are. These are of the byte between
# sentences, and of pieces whose sentence the library is to take whole.
SEPARATOR, ODD = 0, 256
_MOST_IDS = 255
_KEY_BYTES = 16
_SLOT_BITS = 17
_KEPT_PIECES = 1 << 18  # about 45 MB
_KEPT_IDS = 1 << 20
_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no bit of a key is lost; of the golden ratio
_MIX_AGAIN = np.uint64(0xC2B2AE3D27D4EB4F)
_HALF, _SLOT_SHIFT = np.uint64(32), np.uint64(64 - _SLOT_BITS)
# Masks for the first and the second 8 bytes of a key, by the piece's length: uint64 [18]; none for longer pieces.
_LOW_MASK = np.array([(1 << 8 * min(size, 8)) - 1 for size in range(_KEY_BYTES + 1)] + [0], np.uint64)
_HIGH_MASK = np.array([(1 << 8 * max(size - 8, 0)) - 1 for size in range(_KEY_BYTES + 1)] + [0], np.uint64)

# New pieces to (ids int32 of all of them, number of ids of each piece, whether each is odd).
EncodePieces = Callable[[list[bytes]], tuple[np.ndarray, np.ndarray, np.ndarray]]


class KeptIds:
    """The ids of pieces; new pieces are encoded, all others are looked up.

    Args:
        encode: computes the ids of new pieces.
        separator: the byte that ends a sentence, as a piece; it has no ids.
    """

    def __init__(self, encode: EncodePieces, separator: bytes = b"\n"):
        self._encode, self._separator = encode, separator
        self._clear()

    def _clear(self) -> None:
        self._places = {self._separator: SEPARATOR}
        self._ids, self._used = np.zeros(1 << 10, np.int32), 2
        # Rows of a key's two halves and its place. A row and its neighbour, whose number differs in the last bit, are
        # where a key may be.
        self._slots = np.zeros((1 << _SLOT_BITS, 3), np.uint64)

    def places(self, text: bytes, begins: np.ndarray) -> np.ndarray:
        r"""The places of the pieces that a text consists of: int64 [pieces].

        Args:
            text: in UTF-8, without "\0".
            begins: int64 [pieces], rising from 0, where each piece begins; it ends where the next one begins.
        """
        if len(self._places) > _KEPT_PIECES or self._used > _KEPT_IDS:
            self._clear()
        sizes = np.empty_like(begins)
        np.subtract(begins[1:], begins[:-1], out=sizes[:-1])
        sizes[-1] = len(text) - begins[-1]
        short = np.minimum(sizes, _KEY_BYTES + 1)
        words = np.ndarray(len(text) + 9, "<u8", text + bytes(_KEY_BYTES), 0, (1,))  # the 8 bytes from each byte on
        low, high = words[begins], words[8:][begins]
        low &= _LOW_MASK.take(short)
        high &= _HIGH_MASK.take(short)
        mixed = low * _MIX
        mixed ^= mixed >> _HALF
        mixed += high
        mixed *= _MIX_AGAIN
        mixed >>= _SLOT_SHIFT
        numbers = mixed.view(np.int64)
        places, differs = self._look(numbers, low, high)
        missed = np.flatnonzero(differs)
        if len(missed):
            low, high, numbers = low[missed], high[missed], numbers[missed]
            places[missed], differs = self._look(numbers ^ 1, low, high)
            again = np.flatnonzero(differs)
            if len(again):
                missed = missed[again]
                ends = begins[missed] + sizes[missed]
                pieces = [text[begin:end] for begin, end in zip(begins[missed].tolist(), ends.tolist(), strict=True)]
                places[missed] = found = self._find(pieces)
                self._put(numbers[again], low[again], high[again], found)
        return places

    def ids(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ids of pieces, one after another: int32 [ids], and where each piece's end: int64 [pieces]."""
        counts, sources = places & 255, places >> 8
        ends = np.cumsum(counts)
        targets = ends - counts
        ids = np.empty(ends[-1], np.int32)
        pieces = np.flatnonzero(counts)
        counts, sources, targets = counts.take(pieces), sources.take(pieces), targets.take(pieces)
        ids[targets] = self._ids.take(sources)
        number = 1
        while len(more := np.flatnonzero(counts > number)):
            counts, sources, targets = counts.take(more), sources.take(more), targets.take(more)
            ids[targets + number] = self._ids.take(sources + number)
            number += 1
        return ids, ends

    def _look(self, numbers: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The places in these slots, int64, and whether each slot has another key or the piece has none."""
        slots = self._slots.take(numbers, 0)
        differs = slots[:, 0] != low
        differs |= slots[:, 1] != high
        differs |= low == 0
        return slots[:, 2].astype(np.int64), differs

    def _find(self, pieces: list[bytes]) -> np.ndarray:
        """The places of pieces: int64 [pieces]; new ones are encoded."""
        known = self._places
        new = [piece for piece in dict.fromkeys(pieces) if piece not in known]
        if new:
            ids, counts, odd = self._encode(new)
            places = self._used + np.cumsum(counts) - counts << 8 | counts
            places[odd | (counts > _MOST_IDS)] = ODD
            known.update(zip(new, places.tolist(), strict=True))
            if self._used + len(ids) > len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros(max(len(self._ids), len(ids)), np.int32)])
            self._ids[self._used : self._used + len(ids)] = ids
            self._used += len(ids)
        return np.fromiter(map(known.__getitem__, pieces), np.int64, len(pieces))

    def _put(self, numbers: np.ndarray, low: np.ndarray, high: np.ndarray, places: np.ndarray) -> None:
        """Put keys into their slots: the first one if it is free, else the second."""
        rows = np.stack([low, high, places.view(np.uint64)], 1)[low != 0]
        numbers = numbers[low != 0]
        numbers ^= self._slots[numbers, 0] != 0
        self._slots[numbers] = rows
