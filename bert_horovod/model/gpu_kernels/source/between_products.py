"""LayerNorm, gelu's gradient and the gradient of a table of embeddings in Triton: elementwise work and column sums.

A kernel reads and writes each tensor once. Sums over rows leave a kernel as float32 partial sums, which its caller adds
up in a fixed order: no kernel has atomic operations, so that two runs give the same bits.
"""

import triton
import triton.language as tl

from bert_horovod.model.gpu_kernels.source.dropout_bits import kept_row


@triton.jit
def norm_forward(
    x, branch, offset, weight, bias, key, first_row, site, sizes, numbers, y, normal, inverse,
    COLUMNS: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """LayerNorm (arXiv 1607.06450) of x + dropout(branch + offset), a row a program: grid (n,).

    x, branch, y, normal: [n, c]. offset: [c]. weight, bias: float32 [c]. normal: y before weight and bias. inverse:
    float32 [n], 1 / standard deviation. sizes: int32 [4]: c / 16, the length of a row of positions, dropout's
    threshold, a number that is added to site. numbers: float32 [2]: epsilon, the factor of kept elements.
    COLUMNS: a power of two, at least c.
    """
    i = tl.program_id(0).to(tl.int64)
    columns = tl.load(sizes) * 16
    epsilon, keep = tl.load(numbers), tl.load(numbers + 1)
    c = tl.arange(0, COLUMNS)
    inside = c < columns
    place = i * columns + c
    added = tl.load(branch + place, inside, 0.0)
    added = (added.to(tl.float32) + tl.load(offset + c, inside, 0.0).to(tl.float32)).to(added.dtype).to(tl.float32)
    if DROPOUT:
        block = (tl.load(first_row) * tl.load(sizes + 1) + i) * (columns // 16)
        kept = kept_row(block, tl.load(site) + tl.load(sizes + 3), tl.load(key), tl.load(sizes + 2), COLUMNS)
        added = tl.where(kept, added * keep, 0.0)
    wide = tl.load(x + place, inside, 0.0).to(tl.float32) + added
    centred = tl.where(inside, wide - tl.sum(wide, 0) / columns, 0.0)
    inverted = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / columns + epsilon)
    scaled = centred * inverted
    result = scaled * tl.load(weight + c, inside, 0.0) + tl.load(bias + c, inside, 0.0)
    tl.store(y + place, result.to(y.dtype.element_ty), inside)
    tl.store(normal + place, scaled.to(normal.dtype.element_ty), inside)
    tl.store(inverse + i, inverted)


@triton.jit
def norm_backward(
    dy, normal, inverse, weight, key, first_row, site, sizes, numbers, dx, dbranch, sums,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Gradients of norm_forward, ROWS rows a program: grid (n / ROWS,).

    dy, dx, dbranch: [n, c]. sums: float32 [n / ROWS, 3, c]: sums over a program's rows of the gradients of weight,
    bias and offset. The other operands are as in norm_forward.
    """
    program = tl.program_id(0).to(tl.int64)
    columns = tl.load(sizes) * 16
    keep = tl.load(numbers + 1)
    c = tl.arange(0, COLUMNS)
    inside = c < columns
    weights = tl.load(weight + c, inside, 0.0)
    dweight = tl.zeros([COLUMNS], tl.float32)
    dbias = tl.zeros([COLUMNS], tl.float32)
    doffset = tl.zeros([COLUMNS], tl.float32)
    if DROPOUT:
        first_block = tl.load(first_row) * tl.load(sizes + 1) * (columns // 16)
        threshold, stream, site_number = tl.load(sizes + 2), tl.load(key), tl.load(site) + tl.load(sizes + 3)
    for j in range(ROWS):
        i = program * ROWS + j
        place = i * columns + c
        gradient = tl.load(dy + place, inside, 0.0).to(tl.float32)
        normals = tl.load(normal + place, inside, 0.0).to(tl.float32)
        dweight += gradient * normals
        dbias += gradient
        scaled = gradient * weights
        mean, product = tl.sum(scaled, 0) / columns, tl.sum(scaled * normals, 0) / columns
        result = tl.load(inverse + i) * (scaled - mean - normals * product)
        tl.store(dx + place, result.to(dx.dtype.element_ty), inside)
        if DROPOUT:
            kept = kept_row(first_block + i * (columns // 16), site_number, stream, threshold, COLUMNS)
            result = tl.where(kept, result * keep, 0.0)
        tl.store(dbranch + place, result.to(dbranch.dtype.element_ty), inside)
        doffset += result
    place = sums + program * 3 * columns + c
    tl.store(place, dweight, inside)
    tl.store(place + columns, dbias, inside)
    tl.store(place + 2 * columns, doffset, inside)


@triton.jit
def gelu_backward(
    x, offset, dy, sizes, dx, sums, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURNS: tl.constexpr, TANH: tl.constexpr
):
    """dy * gelu'(x + offset) (arXiv 1606.08415; TANH: its tanh form), at most TURNS tiles of [ROWS, COLUMNS] a program.

    Grid (ceil(n / ROWS / TURNS), c / COLUMNS). x, dy, dx: [n, c]; ROWS divides n. offset: [c]. sizes: int32 [2]:
    n / ROWS, c / COLUMNS. sums: float32 [ceil(n / ROWS / TURNS), c]: sums of dx over a program's rows.
    """
    block, part = tl.program_id(0), tl.program_id(1)
    columns = tl.load(sizes + 1) * COLUMNS
    c = part * COLUMNS + tl.arange(0, COLUMNS)
    offsets = tl.load(offset + c).to(tl.float32)[None, :]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for turn in range(block * TURNS, tl.minimum((block + 1) * TURNS, tl.load(sizes))):
        n = (turn * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        place = n[:, None] * columns + c[None, :]
        tile = tl.load(x + place)
        wide = (tile.to(tl.float32) + offsets).to(tile.dtype).to(tl.float32)
        if TANH:
            cubic = 0.7978845608028654 * (wide + 0.044715 * wide * wide * wide)
            tanh = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * cubic))
            inner = 0.7978845608028654 * (1.0 + 3 * 0.044715 * wide * wide)
            slope = 0.5 * (1.0 + tanh) + 0.5 * wide * (1.0 - tanh * tanh) * inner
        else:
            density = tl.exp(-0.5 * wide * wide) * 0.3989422804014327
            slope = 0.5 * (1.0 + tl.math.erf(wide * 0.7071067811865476)) + wide * density
        result = tl.load(dy + place).to(tl.float32) * slope
        tl.store(dx + place, result.to(dx.dtype.element_ty))
        total += result
    tl.store(sums + block.to(tl.int64) * columns + c, tl.sum(total, 0))


@triton.jit
def geglu_backward(x, dy, sizes, dx, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The gradient of a and g in gelu(a) g (arXiv 2002.05202), gelu exact: grid (n / ROWS, c / COLUMNS).

    x, dx: [n, 2 c], a before g. dy: [n, c]. sizes: int32 [1]: c / COLUMNS.
    """
    columns = tl.load(sizes) * COLUMNS
    n = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    place = n[:, None] * (2 * columns) + c[None, :]
    inner = tl.load(x + place).to(tl.float32)
    gate = tl.load(x + place + columns).to(tl.float32)
    gradient = tl.load(dy + n[:, None] * columns + c[None, :]).to(tl.float32)
    share = 0.5 * (1.0 + tl.math.erf(inner * 0.7071067811865476))
    slope = share + inner * tl.exp(-0.5 * inner * inner) * 0.3989422804014327
    tl.store(dx + place, (gradient * gate * slope).to(dx.dtype.element_ty))
    tl.store(dx + place + columns, (gradient * inner * share).to(dx.dtype.element_ty))


@triton.jit
def table_gradient(order, starts, values, dense, sizes, table, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The gradient of a looked-up table, beside a dense gradient of it, in a fixed order: grid (v, c / COLUMNS).

    order: int32 [n], lookups sorted by id; starts: int32 [v + 1], the first of each id in `order`. values: float32
    [n, c], the lookups' gradients. dense: [v, c]. sizes: int32 [1]: c / COLUMNS. table: float32 [v, c].
    """
    i, part = tl.program_id(0), tl.program_id(1)
    columns = tl.load(sizes) * COLUMNS
    c = part * COLUMNS + tl.arange(0, COLUMNS)
    first, end = tl.load(starts + i), tl.load(starts + i + 1)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for j in range(first, end, ROWS):
        n = j + tl.arange(0, ROWS)
        rows = tl.load(order + n, n < end, 0).to(tl.int64)
        total += tl.load(values + rows[:, None] * columns + c[None, :], (n < end)[:, None], 0.0)
    place = i.to(tl.int64) * columns + c
    tl.store(table + place, tl.load(dense + place).to(tl.float32) + tl.sum(total, 0))
