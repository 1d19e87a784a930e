"""Attention of a ModernBERT in Triton: rotary positions in the loads, sliding windows in the limits of loops.

Operands of both kernels; the others are as in attention.py:
  qkv: [rows * length, 3 hidden]: query, key and value of all heads, not yet turned.
  cosines, sines: float32 [rows, length, head size / 2]: of each position's rotary angles.
  sizes: int32 [3]: length / 64, heads, the window: a position attends to those of its sequence at most so many places
    away; the length where it attends to all.
  numbers: float32 [1]: the scores' scale.

A head is computed in two halves, because rotation takes an element of the first with one of the second.
"""

import triton
import triton.language as tl

from bert_horovod.model.gpu_kernels.source.attention import LOG2_E, MASKED, reach_of


@triton.jit
def turn_of(cosines, sines, rows, HALF: tl.constexpr):
    """Cosines and sines of positions, float32 [n, HALF] each."""
    place = rows[:, None] * HALF + tl.arange(0, HALF)[None, :]
    return tl.load(cosines + place), tl.load(sines + place)


@triton.jit
def turned_halves(x, cosines, sines, rows, width, first_column, HALF: tl.constexpr):
    """The two halves of a head's tile of x, [n, HALF] each, turned."""
    cosine, sine = turn_of(cosines, sines, rows, HALF)
    place = rows[:, None] * width + first_column + tl.arange(0, HALF)[None, :]
    first, second = tl.load(x + place), tl.load(x + place + HALF)
    wide_first, wide_second = first.to(tl.float32), second.to(tl.float32)
    return (
        (wide_first * cosine - wide_second * sine).to(first.dtype),
        (wide_second * cosine + wide_first * sine).to(first.dtype),
    )


@triton.jit
def store_turned_back(first, second, dqkv, cosines, sines, rows, width, first_column, HALF: tl.constexpr):
    """Store the gradient of a head's tile before it was turned, from that of its turned halves, float32 [n, HALF]."""
    cosine, sine = turn_of(cosines, sines, rows, HALF)
    place = rows[:, None] * width + first_column + tl.arange(0, HALF)[None, :]
    tl.store(dqkv + place, (first * cosine + second * sine).to(dqkv.dtype.element_ty))
    tl.store(dqkv + place + HALF, (second * cosine - first * sine).to(dqkv.dtype.element_ty))


@triton.jit
def near_scores(query_1, query_2, keys_1, keys_2, mine, theirs, m, n, window, scale):
    """Scores in units of log2, float32 [queries, keys]; MASKED across sequences and beyond the window."""
    scores = tl.dot(query_2, tl.trans(keys_2), tl.dot(query_1, tl.trans(keys_1))) * (scale * LOG2_E)
    apart = m[:, None] - n[None, :]
    near = (apart <= window) & (apart >= -window)
    return tl.where((mine[:, None] == theirs[None, :]) & near, scores, MASKED)


@triton.jit
def near_reach(reach, block, window, length, BLOCK: tl.constexpr):
    """As reach_of, not beyond the window."""
    first, end = reach_of(reach, block, BLOCK)
    nearest = tl.maximum(block * BLOCK - window, 0) // 64 * 64
    farthest = tl.minimum(((block + 1) * BLOCK + window + 63) // 64 * 64, length)
    return tl.maximum(first, nearest), tl.minimum(end, farthest)


@triton.jit
def rotary_attention_forward(
    qkv, sequences, reach, cosines, sines, sizes, numbers, context, normalizer,
    HEAD_SIZE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Grid (length / QUERIES, heads, rows). QUERIES, KEYS: of a tile."""
    HALF: tl.constexpr = HEAD_SIZE // 2
    block, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length, heads, window = tl.load(sizes) * 64, tl.load(sizes + 1), tl.load(sizes + 2)
    scale = tl.load(numbers)
    hidden = heads * HEAD_SIZE
    width, column = 3 * hidden, head * HEAD_SIZE
    qkv += row.to(tl.int64) * length * width
    sequences += row * length
    cosines += row * length * HALF
    sines += row * length * HALF
    m = block * QUERIES + tl.arange(0, QUERIES)
    query_1, query_2 = turned_halves(qkv, cosines, sines, m, width, column, HALF)
    mine = tl.load(sequences + m)
    d = tl.arange(0, HEAD_SIZE)
    first, end = near_reach(reach + 2 * row * (length // 64), block, window, length, QUERIES)
    largest = tl.full([QUERIES], MASKED, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    sums = tl.zeros([QUERIES, HEAD_SIZE], tl.float32)
    for start in range(first, end, KEYS):
        n = start + tl.arange(0, KEYS)
        keys_1, keys_2 = turned_halves(qkv, cosines, sines, n, width, hidden + column, HALF)
        values = tl.load(qkv + n[:, None] * width + 2 * hidden + column + d[None, :])
        theirs = tl.load(sequences + n)
        scores = near_scores(query_1, query_2, keys_1, keys_2, mine, theirs, m, n, window, scale)
        new = tl.maximum(largest, tl.max(scores, 1))
        exponents = tl.exp2(scores - new[:, None])
        shrink = tl.exp2(largest - new)
        total = total * shrink + tl.sum(exponents, 1)
        sums = sums * shrink[:, None]
        sums += tl.dot(exponents.to(values.dtype), values)
        largest = new
    place = (row.to(tl.int64) * length + m)[:, None] * hidden + column + d[None, :]
    tl.store(context + place, (sums / total[:, None]).to(context.dtype.element_ty))
    tl.store(normalizer + (row * heads + head).to(tl.int64) * length + m, largest + tl.log2(total))


@triton.jit
def score_gradients(
    query_1, query_2, keys_1, keys_2, values, context, dcontext, normalizers, mine, theirs, m, n, window, scale
):
    """Probabilities and gradients of the scores of a tile, [queries, keys] of query's dtype."""
    rows = tl.sum(context.to(tl.float32) * dcontext.to(tl.float32), 1)
    scores = near_scores(query_1, query_2, keys_1, keys_2, mine, theirs, m, n, window, scale)
    probabilities = tl.exp2(scores - normalizers[:, None])
    dscores = probabilities * (tl.dot(dcontext, tl.trans(values)) - rows[:, None]) * scale
    return probabilities.to(query_1.dtype), dscores.to(query_1.dtype)


@triton.jit
def rotary_attention_backward(
    qkv, sequences, reach, cosines, sines, sizes, numbers, context, normalizer, dcontext, dqkv,
    HEAD_SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (2 length / BLOCK, heads, rows). Of the programs of a head the first half has a block of keys each and
    computes the gradients of keys and values; the second half has a block of queries each.

    dcontext: [rows * length, hidden]. dqkv: [rows * length, 3 hidden].
    """
    HALF: tl.constexpr = HEAD_SIZE // 2
    block, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length, heads, window = tl.load(sizes) * 64, tl.load(sizes + 1), tl.load(sizes + 2)
    scale = tl.load(numbers)
    hidden = heads * HEAD_SIZE
    width, column = 3 * hidden, head * HEAD_SIZE
    qkv += row.to(tl.int64) * length * width
    dqkv += row.to(tl.int64) * length * width
    context += row.to(tl.int64) * length * hidden + column
    dcontext += row.to(tl.int64) * length * hidden + column
    normalizer += (row * heads + head).to(tl.int64) * length
    sequences += row * length
    cosines += row * length * HALF
    sines += row * length * HALF
    d = tl.arange(0, HEAD_SIZE)
    blocks = length // BLOCK
    of_queries = block >= blocks
    block = tl.where(of_queries, block - blocks, block)
    first, end = near_reach(reach + 2 * row * (length // 64), block, window, length, BLOCK)
    own = block * BLOCK + tl.arange(0, BLOCK)
    own_sequences = tl.load(sequences + own)
    if of_queries:
        query_1, query_2 = turned_halves(qkv, cosines, sines, own, width, column, HALF)
        forward = tl.load(context + own[:, None] * hidden + d[None, :])
        gradient = tl.load(dcontext + own[:, None] * hidden + d[None, :])
        normalizers = tl.load(normalizer + own)
        dquery_1 = tl.zeros([BLOCK, HALF], tl.float32)
        dquery_2 = tl.zeros([BLOCK, HALF], tl.float32)
        for start in range(first, end, BLOCK):
            n = start + tl.arange(0, BLOCK)
            keys_1, keys_2 = turned_halves(qkv, cosines, sines, n, width, hidden + column, HALF)
            values = tl.load(qkv + n[:, None] * width + 2 * hidden + column + d[None, :])
            _, dscores = score_gradients(
                query_1, query_2, keys_1, keys_2, values, forward, gradient, normalizers, own_sequences,
                tl.load(sequences + n), own, n, window, scale,
            )  # fmt: skip
            dquery_1 += tl.dot(dscores, keys_1)
            dquery_2 += tl.dot(dscores, keys_2)
        store_turned_back(dquery_1, dquery_2, dqkv, cosines, sines, own, width, column, HALF)
    else:
        keys_1, keys_2 = turned_halves(qkv, cosines, sines, own, width, hidden + column, HALF)
        values = tl.load(qkv + own[:, None] * width + 2 * hidden + column + d[None, :])
        dkeys_1 = tl.zeros([BLOCK, HALF], tl.float32)
        dkeys_2 = tl.zeros([BLOCK, HALF], tl.float32)
        dvalues = tl.zeros([BLOCK, HEAD_SIZE], tl.float32)
        for start in range(first, end, BLOCK):
            m = start + tl.arange(0, BLOCK)
            query_1, query_2 = turned_halves(qkv, cosines, sines, m, width, column, HALF)
            forward = tl.load(context + m[:, None] * hidden + d[None, :])
            gradient = tl.load(dcontext + m[:, None] * hidden + d[None, :])
            weights, dscores = score_gradients(
                query_1, query_2, keys_1, keys_2, values, forward, gradient, tl.load(normalizer + m),
                tl.load(sequences + m), own_sequences, m, own, window, scale,
            )  # fmt: skip
            dvalues += tl.dot(tl.trans(weights), gradient)
            dkeys_1 += tl.dot(tl.trans(dscores), query_1)
            dkeys_2 += tl.dot(tl.trans(dscores), query_2)
        store_turned_back(dkeys_1, dkeys_2, dqkv, cosines, sines, own, width, hidden + column, HALF)
        place = own[:, None] * width + 2 * hidden + column + d[None, :]
        tl.store(dqkv + place, dvalues.to(dqkv.dtype.element_ty))
