"""Attention in Triton: softmax and dropout never leave the chip (Dao et al. 2022, arXiv 2205.14135).

Tiles of keys and values go from memory straight to the products, so that Triton can load the next ones ahead: softmax
does not see the keys' biases, because they add the same to all scores of a query; those of values are added at the end.

Operands of all kernels here:
  qkv: [rows * length, 3 hidden]: query, key and value of all heads, without their biases.
  biases: [3 hidden], of qkv's dtype.
  sequences: int32 [rows, length]; a position attends only to positions of the same number.
  reach: int32 [rows, length / 64, 2]: for each block of 64 positions the first block, and the block after the last
    one, that may hold positions of the same sequences; see call.py.
  key, first_row, site: int64 [1] or scalars: the dropout stream, see model/forward.py.
  sizes: int32 [4]: length / 64, heads, dropout's threshold, a number that is added to site.
  numbers: float32 [2]: the scores' scale, the factor of kept probabilities.
  context: [rows * length, hidden], of qkv's dtype: attention's result.
  normalizer: float32 [rows, heads, length]: log2 of the softmax's denominator, maximum included, without keys' biases.
"""

import triton
import triton.language as tl

from bert_horovod.model.gpu_kernels.source.dropout_bits import kept_tile

LOG2_E = tl.constexpr(1.4426950408889634)
MASKED = tl.constexpr(-1.0e30)  # the score of a pair of positions of different sequences


@triton.jit
def tile_of(x, rows, width, first_column, HEAD_SIZE: tl.constexpr):
    """x[rows, first_column: first_column + HEAD_SIZE]; x has `width` columns."""
    return tl.load(x + rows[:, None] * width + first_column + tl.arange(0, HEAD_SIZE)[None, :])


@triton.jit
def bias_of(biases, first_column, HEAD_SIZE: tl.constexpr):
    """The biases of a head's query, key or value, float32 [1, HEAD_SIZE]."""
    return tl.load(biases + first_column + tl.arange(0, HEAD_SIZE)).to(tl.float32)[None, :]


@triton.jit
def query_of(qkv, biases, rows, width, first_column, HEAD_SIZE: tl.constexpr):
    """As tile_of, with its bias, in qkv's dtype."""
    tile = tile_of(qkv, rows, width, first_column, HEAD_SIZE)
    return (tile.to(tl.float32) + bias_of(biases, first_column, HEAD_SIZE)).to(tile.dtype)


@triton.jit
def scores_of(query, keys, mine, theirs, scale):
    """Scores in units of log2, float32 [queries, keys]; MASKED across sequences."""
    scores = tl.dot(query, tl.trans(keys)) * (scale * LOG2_E)
    return tl.where(mine[:, None] == theirs[None, :], scores, MASKED)


@triton.jit
def reach_of(reach, block, BLOCK: tl.constexpr):
    """First and end, in positions, of what block number `block` of BLOCK positions may attend to."""
    place = reach + 2 * block * (BLOCK // 64)
    first = tl.load(place)
    end = tl.load(place + 1)
    for i in tl.static_range(1, BLOCK // 64):
        first = tl.minimum(first, tl.load(place + 2 * i))
        end = tl.maximum(end, tl.load(place + 2 * i + 1))
    return first * 64, end * 64


@triton.jit
def attention_forward(
    qkv, biases, sequences, reach, key, first_row, site, sizes, numbers, context, normalizer,
    HEAD_SIZE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, WHOLE: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Grid (length / QUERIES, heads, rows). QUERIES, KEYS: of a tile. WHOLE: KEYS is the length."""
    block, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length, heads = tl.load(sizes) * 64, tl.load(sizes + 1)
    scale, keep = tl.load(numbers), tl.load(numbers + 1)
    hidden = heads * HEAD_SIZE
    width, column = 3 * hidden, head * HEAD_SIZE
    qkv += row.to(tl.int64) * length * width
    sequences += row * length
    m = block * QUERIES + tl.arange(0, QUERIES)
    query = query_of(qkv, biases, m, width, column, HEAD_SIZE)
    mine = tl.load(sequences + m)
    if DROPOUT:
        threshold, stream, site_number = tl.load(sizes + 2), tl.load(key), tl.load(site) + tl.load(sizes + 3)
        square = (length // 16).to(tl.int64) * length  # Philox blocks of a head
        first_block = ((tl.load(first_row) + row) * heads + head) * square
    if WHOLE:
        first, end = 0, KEYS
    else:
        first, end = reach_of(reach + 2 * row * (length // 64), block, QUERIES)
        if KEYS > 64:  # KEYS divides the length, so that no tile goes beyond the row
            first = first // KEYS * KEYS
    largest = tl.full([QUERIES], MASKED, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    kept_total = tl.zeros([QUERIES], tl.float32)
    sums = tl.zeros([QUERIES, HEAD_SIZE], tl.float32)
    for start in range(first, end, KEYS):
        n = start + tl.arange(0, KEYS)
        keys = tile_of(qkv, n, width, hidden + column, HEAD_SIZE)
        values = tile_of(qkv, n, width, 2 * hidden + column, HEAD_SIZE)
        scores = scores_of(query, keys, mine, tl.load(sequences + n), scale)
        new = tl.maximum(largest, tl.max(scores, 1))
        exponents = tl.exp2(scores - new[:, None])
        shrink = tl.exp2(largest - new)
        total = total * shrink + tl.sum(exponents, 1)
        if DROPOUT:
            kept = kept_tile(first_block, m, start, length // 16, site_number, stream, threshold, QUERIES, KEYS)
            exponents = tl.where(kept, exponents, 0.0)
            kept_total = kept_total * shrink + tl.sum(exponents, 1)
        sums = sums * shrink[:, None]
        sums += tl.dot(exponents.to(values.dtype), values)
        largest = new
    if not DROPOUT:
        kept_total = total
    sums = (sums + kept_total[:, None] * bias_of(biases, 2 * hidden + column, HEAD_SIZE)) * (keep / total)[:, None]
    d = tl.arange(0, HEAD_SIZE)
    place = (row.to(tl.int64) * length + m)[:, None] * hidden + column + d[None, :]
    tl.store(context + place, sums.to(context.dtype.element_ty))
    tl.store(normalizer + (row * heads + head).to(tl.int64) * length + m, largest + tl.log2(total))


@triton.jit
def gradients_of(
    query, keys, values, value_bias, context, dcontext, normalizers, mine, theirs, scale, keep, kept,
    DROPOUT: tl.constexpr,
):  # fmt: skip
    """Attention weights and gradients of the scores of a tile, [queries, keys] of query's dtype."""
    wide = dcontext.to(tl.float32)
    rows = tl.sum(context.to(tl.float32) * wide, 1)
    probabilities = tl.exp2(scores_of(query, keys, mine, theirs, scale) - normalizers[:, None])
    dweights = tl.dot(dcontext, tl.trans(values)) + tl.sum(wide * value_bias, 1)[:, None]
    weights = probabilities
    if DROPOUT:
        weights = tl.where(kept, probabilities * keep, 0.0)
        dweights = tl.where(kept, dweights * keep, 0.0)
    dscores = probabilities * (dweights - rows[:, None]) * scale
    return weights.to(query.dtype), dscores.to(query.dtype)


@triton.jit
def store_gradient(gradient, dqkv, sums, rows, width, first_column, HEAD_SIZE: tl.constexpr):
    """Store the gradient, float32 [n, HEAD_SIZE], in dqkv, and the sums of its columns in `sums`."""
    d = first_column + tl.arange(0, HEAD_SIZE)
    tl.store(dqkv + rows[:, None] * width + d[None, :], gradient.to(dqkv.dtype.element_ty))
    tl.store(sums + d, tl.sum(gradient, 0))


@triton.jit
def attention_backward_whole(
    qkv, biases, sequences, key, first_row, site, sizes, numbers, context, normalizer, dcontext, dqkv, sums,
    HEAD_SIZE: tl.constexpr, LENGTH: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Grid (heads, rows): a program has a head of a row, so that five products do it. LENGTH: the row's, at most 128.

    dcontext: [rows * length, hidden]. dqkv: [rows * length, 3 hidden]. sums: float32 [rows, 3 hidden], dqkv's sums over
    a row, which are parts of the biases' gradients.
    """
    head, row = tl.program_id(0), tl.program_id(1)
    heads = tl.load(sizes + 1)
    scale, keep = tl.load(numbers), tl.load(numbers + 1)
    hidden = heads * HEAD_SIZE
    width, column = 3 * hidden, head * HEAD_SIZE
    qkv += row.to(tl.int64) * LENGTH * width
    dqkv += row.to(tl.int64) * LENGTH * width
    m = tl.arange(0, LENGTH)
    place = (row.to(tl.int64) * LENGTH + m)[:, None] * hidden + column + tl.arange(0, HEAD_SIZE)[None, :]
    query = query_of(qkv, biases, m, width, column, HEAD_SIZE)
    keys = tile_of(qkv, m, width, hidden + column, HEAD_SIZE)
    values = tile_of(qkv, m, width, 2 * hidden + column, HEAD_SIZE)
    value_bias = bias_of(biases, 2 * hidden + column, HEAD_SIZE)
    ids = tl.load(sequences + row * LENGTH + m)
    kept = ids  # unused without dropout
    if DROPOUT:
        first_block = ((tl.load(first_row) + row) * heads + head) * (LENGTH * LENGTH // 16)
        kept = kept_tile(
            first_block, m, 0, LENGTH // 16, tl.load(site) + tl.load(sizes + 3), tl.load(key), tl.load(sizes + 2),
            LENGTH, LENGTH,
        )  # fmt: skip
    gradient = tl.load(dcontext + place)
    normalizers = tl.load(normalizer + (row * heads + head).to(tl.int64) * LENGTH + m)
    weights, dscores = gradients_of(
        query, keys, values, value_bias, tl.load(context + place), gradient, normalizers, ids, ids, scale, keep, kept,
        DROPOUT,
    )  # fmt: skip
    sums += row.to(tl.int64) * width
    store_gradient(tl.dot(tl.trans(weights), gradient), dqkv, sums, m, width, 2 * hidden + column, HEAD_SIZE)
    store_gradient(tl.dot(dscores, keys), dqkv, sums, m, width, column, HEAD_SIZE)
    store_gradient(tl.dot(tl.trans(dscores), query), dqkv, sums, m, width, hidden + column, HEAD_SIZE)


@triton.jit
def attention_backward(
    qkv, biases, sequences, reach, key, first_row, site, sizes, numbers, context, normalizer, dcontext, dqkv, sums,
    HEAD_SIZE: tl.constexpr, BLOCK: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Grid (2 length / BLOCK, heads, rows). Of the programs of a head the first half has a block of keys each and
    computes the gradients of keys and values; the second half has a block of queries each.

    dcontext, dqkv: as in attention_backward_whole. sums: float32 [rows, length / BLOCK, 3 hidden].
    """
    block, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length, heads = tl.load(sizes) * 64, tl.load(sizes + 1)
    scale, keep = tl.load(numbers), tl.load(numbers + 1)
    hidden = heads * HEAD_SIZE
    width, column = 3 * hidden, head * HEAD_SIZE
    qkv += row.to(tl.int64) * length * width
    dqkv += row.to(tl.int64) * length * width
    context += row.to(tl.int64) * length * hidden + column
    dcontext += row.to(tl.int64) * length * hidden + column
    normalizer += (row * heads + head).to(tl.int64) * length
    sequences += row * length
    d = tl.arange(0, HEAD_SIZE)
    value_bias = bias_of(biases, 2 * hidden + column, HEAD_SIZE)
    blocks = length // BLOCK
    of_queries = block >= blocks
    block = tl.where(of_queries, block - blocks, block)
    sums += (row * blocks + block).to(tl.int64) * width
    first, end = reach_of(reach + 2 * row * (length // 64), block, BLOCK)
    if DROPOUT:
        threshold, stream, site_number = tl.load(sizes + 2), tl.load(key), tl.load(site) + tl.load(sizes + 3)
        square = (length // 16).to(tl.int64) * length  # Philox blocks of a head
        first_block = ((tl.load(first_row) + row) * heads + head) * square
    if of_queries:
        m = block * BLOCK + tl.arange(0, BLOCK)
        query = query_of(qkv, biases, m, width, column, HEAD_SIZE)
        forward = tl.load(context + m[:, None] * hidden + d[None, :])
        gradient = tl.load(dcontext + m[:, None] * hidden + d[None, :])
        normalizers = tl.load(normalizer + m)
        mine = tl.load(sequences + m)
        dquery = tl.zeros([BLOCK, HEAD_SIZE], tl.float32)
        for start in range(first, end, BLOCK):
            n = start + tl.arange(0, BLOCK)
            keys = tile_of(qkv, n, width, hidden + column, HEAD_SIZE)
            values = tile_of(qkv, n, width, 2 * hidden + column, HEAD_SIZE)
            theirs = tl.load(sequences + n)
            kept = theirs  # unused without dropout
            if DROPOUT:
                kept = kept_tile(first_block, m, start, length // 16, site_number, stream, threshold, BLOCK, BLOCK)
            _, dscores = gradients_of(
                query, keys, values, value_bias, forward, gradient, normalizers, mine, theirs, scale, keep, kept,
                DROPOUT,
            )  # fmt: skip
            dquery += tl.dot(dscores, keys)
        store_gradient(dquery, dqkv, sums, m, width, column, HEAD_SIZE)
    else:
        n = block * BLOCK + tl.arange(0, BLOCK)
        keys = tile_of(qkv, n, width, hidden + column, HEAD_SIZE)
        values = tile_of(qkv, n, width, 2 * hidden + column, HEAD_SIZE)
        theirs = tl.load(sequences + n)
        dkeys = tl.zeros([BLOCK, HEAD_SIZE], tl.float32)
        dvalues = tl.zeros([BLOCK, HEAD_SIZE], tl.float32)
        for start in range(first, end, BLOCK):
            m = start + tl.arange(0, BLOCK)
            query = query_of(qkv, biases, m, width, column, HEAD_SIZE)
            forward = tl.load(context + m[:, None] * hidden + d[None, :])
            gradient = tl.load(dcontext + m[:, None] * hidden + d[None, :])
            mine = tl.load(sequences + m)
            kept = mine  # unused without dropout
            if DROPOUT:
                kept = kept_tile(
                    first_block, m, block * BLOCK, length // 16, site_number, stream, threshold, BLOCK, BLOCK
                )
            weights, dscores = gradients_of(
                query, keys, values, value_bias, forward, gradient, tl.load(normalizer + m), mine, theirs, scale, keep,
                kept, DROPOUT,
            )  # fmt: skip
            dvalues += tl.dot(tl.trans(weights), gradient)
            dkeys += tl.dot(tl.trans(dscores), query)
        store_gradient(dkeys, dqkv, sums, n, width, hidden + column, HEAD_SIZE)
        store_gradient(dvalues, dqkv, sums, n, width, 2 * hidden + column, HEAD_SIZE)
