"""LayerNorm of a ModernBERT in Triton: without bias, in front of a block, with the sum that it normalises kept."""

import triton
import triton.language as tl

from bert_horovod.model.gpu_kernels.source.dropout_bits import kept_row


@triton.jit
def residual_norm_forward(
    x, branch, weight, key, first_row, site, sizes, numbers, total, y, mean, inverse,
    COLUMNS: tl.constexpr, BRANCH: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """LayerNorm without bias of x, or with BRANCH of total = x + dropout(branch), a row a program: grid (n,).

    x, branch, total, y: [n, c]; without BRANCH branch and total are not used. weight: float32 [c]. mean, inverse:
    float32 [n], the sum's mean and 1 / standard deviation. key to numbers: as in norm_forward. COLUMNS: a power of two,
    at least c.
    """
    i = tl.program_id(0).to(tl.int64)
    columns = tl.load(sizes) * 16
    epsilon, keep = tl.load(numbers), tl.load(numbers + 1)
    c = tl.arange(0, COLUMNS)
    inside = c < columns
    place = i * columns + c
    wide = tl.load(x + place, inside, 0.0).to(tl.float32)
    if BRANCH:
        added = tl.load(branch + place, inside, 0.0).to(tl.float32)
        if DROPOUT:
            block = (tl.load(first_row) * tl.load(sizes + 1) + i) * (columns // 16)
            kept = kept_row(block, tl.load(site) + tl.load(sizes + 3), tl.load(key), tl.load(sizes + 2), COLUMNS)
            added = tl.where(kept, added * keep, 0.0)
        narrow = (wide + added).to(total.dtype.element_ty)
        tl.store(total + place, narrow, inside)
        wide = narrow.to(tl.float32)
    middle = tl.sum(wide, 0) / columns
    centred = tl.where(inside, wide - middle, 0.0)
    inverted = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / columns + epsilon)
    result = centred * inverted * tl.load(weight + c, inside, 0.0)
    tl.store(y + place, result.to(y.dtype.element_ty), inside)
    tl.store(mean + i, middle)
    tl.store(inverse + i, inverted)


@triton.jit
def residual_norm_backward(
    dy, dresidual, total, mean, inverse, weight, key, first_row, site, sizes, numbers, dx, dbranch, sums,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Gradients of residual_norm_forward, ROWS rows a program: grid (n / ROWS,).

    dy: [n, c], of y. dresidual: [n, c], of total by another way. total: what was normalised. dx: [n, c], of x; without
    DROPOUT of the branch too, and dbranch is not used. sums: float32 [n / ROWS, c]: sums over a program's rows of the
    weight's gradient.
    """
    program = tl.program_id(0).to(tl.int64)
    columns = tl.load(sizes) * 16
    keep = tl.load(numbers + 1)
    c = tl.arange(0, COLUMNS)
    inside = c < columns
    weights = tl.load(weight + c, inside, 0.0)
    dweight = tl.zeros([COLUMNS], tl.float32)
    if DROPOUT:
        first_block = tl.load(first_row) * tl.load(sizes + 1) * (columns // 16)
        threshold, stream, site_number = tl.load(sizes + 2), tl.load(key), tl.load(site) + tl.load(sizes + 3)
    for j in range(ROWS):
        i = program * ROWS + j
        place = i * columns + c
        gradient = tl.load(dy + place, inside, 0.0).to(tl.float32)
        centred = tl.load(total + place, inside, 0.0).to(tl.float32) - tl.load(mean + i)
        inverted = tl.load(inverse + i)
        normals = tl.where(inside, centred * inverted, 0.0)
        dweight += gradient * normals
        scaled = gradient * weights
        middle, product = tl.sum(scaled, 0) / columns, tl.sum(scaled * normals, 0) / columns
        result = inverted * (scaled - middle - normals * product)
        result += tl.load(dresidual + place, inside, 0.0).to(tl.float32)
        tl.store(dx + place, result.to(dx.dtype.element_ty), inside)
        if DROPOUT:
            kept = kept_row(first_block + i * (columns // 16), site_number, stream, threshold, COLUMNS)
            tl.store(dbranch + place, tl.where(kept, result * keep, 0.0).to(dbranch.dtype.element_ty), inside)
    tl.store(sums + program * columns + c, dweight, inside)
