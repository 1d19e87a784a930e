"""Dropout masks inside Triton kernels: bit for bit those of model/forward.py.

The generator is Philox 4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") with TensorFlow's
counter: its low 64 bits are the block's number, its high 64 bits the dropout site. A block gives four words, a word
four bytes, the lowest first; an element is dropped where its byte is below the threshold.
"""

import triton
import triton.language as tl


@triton.jit
def philox(block, site, key):
    """The four uint32 words of each block: int64 block numbers of any shape, int64 scalars site and key."""
    word_0 = (block & 0xFFFFFFFF).to(tl.uint32)
    word_1 = (block >> 32).to(tl.uint32)
    word_2 = tl.zeros_like(word_0) + (site & 0xFFFFFFFF).to(tl.uint32)
    word_3 = tl.zeros_like(word_0) + (site >> 32).to(tl.uint32)
    key_0 = (key & 0xFFFFFFFF).to(tl.uint32)
    key_1 = (key >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        before_0 = word_0
        before_2 = word_2
        # Full tensors of the multipliers, because tl.umulhi takes no Python numbers.
        word_0 = tl.umulhi(before_2, tl.full((), 0xCD9E8D57, tl.uint32) + tl.zeros_like(before_2)) ^ word_1 ^ key_0
        word_2 = tl.umulhi(before_0, tl.full((), 0xD2511F53, tl.uint32) + tl.zeros_like(before_0)) ^ word_3 ^ key_1
        word_1 = before_2 * 0xCD9E8D57
        word_3 = before_0 * 0xD2511F53
        key_0 = key_0 + 0x9E3779B9
        key_1 = key_1 + 0xBB67AE85
    return word_0, word_1, word_2, word_3


@triton.jit
def interleaved(part_0, part_1, part_2, part_3):
    """[..., 4]: four tensors of one shape, element by element in the order 0, 1, 2, 3."""
    return tl.join(tl.join(part_0, part_2), tl.join(part_1, part_3))


@triton.jit
def kept_of(words, threshold):
    """Whether each byte of uint32 words is at least the threshold: int8 [..., 2, 2] of uint32 [...]."""
    return interleaved(
        ((words & 0xFF) >= threshold).to(tl.int8),
        (((words >> 8) & 0xFF) >= threshold).to(tl.int8),
        (((words >> 16) & 0xFF) >= threshold).to(tl.int8),
        ((words >> 24) >= threshold).to(tl.int8),
    )


@triton.jit
def kept_row(first_block, site, key, threshold, COLUMNS: tl.constexpr):
    """Whether dropout keeps elements that follow each other: bool [COLUMNS], from Philox block `first_block` on."""
    word_0, word_1, word_2, word_3 = philox(first_block + tl.arange(0, COLUMNS // 16).to(tl.int64), site, key)
    words = interleaved(word_0, word_1, word_2, word_3)
    return tl.reshape(kept_of(tl.reshape(words, [COLUMNS // 4]), threshold), [COLUMNS]) != 0


@triton.jit
def kept_tile(
    first_block, rows, first_column, blocks_per_row, site, key, threshold, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Whether dropout keeps the elements of a tile of a matrix: bool [ROWS, COLUMNS].

    first_block: int64, the Philox block of the matrix's first element. rows: int32 [ROWS], the tile's rows.
    first_column: of the tile; 16 divides it. blocks_per_row: of the matrix.
    """
    columns = first_column // 16 + tl.arange(0, COLUMNS // 16)
    blocks = (rows * blocks_per_row)[:, None] + columns[None, :]  # (ROWS, COLUMNS // 16)
    word_0, word_1, word_2, word_3 = philox(first_block + blocks.to(tl.int64), site, key)
    words = interleaved(word_0, word_1, word_2, word_3)
    return tl.reshape(kept_of(tl.reshape(words, [ROWS, COLUMNS // 4]), threshold), [ROWS, COLUMNS]) != 0
