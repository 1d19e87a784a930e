"""The rules of exchanges in float64 NumPy, for some ranks, on the gradients of exchange_jobs.py; see published.py too.

Each returns, by step and rank, arrays by the names of the states that `trained` keeps.
"""

import math

import numpy as np

from bert_horovod.costs.buckets import by_size
from bert_horovod.exchange.compressed.payload_parts import LEFT, RIGHT
from bert_horovod.exchange.local.local_step import cut
from bert_horovod.model.parameters import WORD_EMBEDDINGS, decays, initial_values
from bert_horovod.recipe.sections import Recipe
from tests.exchange.exchange_jobs import MATRIX, RANKS, RATE, SHAPES, Tensors, initial, share
from tests.optimizers.test_muon import numpy_orthogonal

States = list[list[dict[str, np.ndarray]]]
CHUNK = 256


def gradients(steps: int, bad: int) -> States:
    """The sum of gradients, by sgd."""
    x = {name: value.astype(np.float64) for name, value in initial().items()}
    history = []
    for step in range(1, steps + 1):
        for rank in range(RANKS if step != bad else 0):
            x = {name: x[name] - RATE * value.astype(np.float64) for name, value in share(rank, step).items()}
        history.append([x] * RANKS)
    return history


def average(values: list[dict[str, np.ndarray]]) -> None:
    """Replace the arrays of each rank by their means over the ranks."""
    for name in SHAPES:
        mean = sum(of_rank[name] for of_rank in values) / RANKS
        for of_rank in values:
            of_rank[name] = mean


def local_adamw(steps: int, bad: int, interval: int) -> States:
    """Local adamw, clipped by each rank's norm."""
    x = [{name: value.astype(np.float64) for name, value in initial().items()} for _ in range(RANKS)]
    m, v = ([{name: np.zeros(shape) for name, shape in SHAPES.items()} for _ in range(RANKS)] for _ in range(2))
    history, t = [], 0
    for step in range(1, steps + 1):
        t += step != bad
        for rank in range(RANKS):
            gradients = {name: RANKS * value.astype(np.float64) for name, value in share(rank, step).items()}
            norm = np.sqrt(sum((value**2).sum() for value in gradients.values()))
            for name, g in gradients.items() if step != bad else ():
                g = g / max(1.0, norm / 30.0)
                m[rank][name] = 0.9 * m[rank][name] + 0.1 * g
                v[rank][name] = 0.99 * v[rank][name] + 0.01 * g**2
                direction = m[rank][name] / (1 - 0.9**t) / (np.sqrt(v[rank][name] / (1 - 0.99**t)) + 1e-6)
                x[rank][name] = x[rank][name] - RATE * (direction + 0.1 * decays(name) * x[rank][name])
        for values in (x, m, v) if step % interval == 0 else ():
            average(values)
        history.append([dict(of_rank) for of_rank in x])
    return history


def dreamddp(steps: int, bad: int, interval: int, full: int) -> States:
    """Of sgd."""
    x = [{name: value.astype(np.float64) for name, value in initial().items()} for _ in range(RANKS)]
    parts, history = cut(SHAPES, interval), []
    for step in range(1, steps + 1):
        if step != bad:
            for name, begin, end in parts[(step - 1) % interval]:
                mean = sum(of_rank[name][begin:end] for of_rank in x) / RANKS
                for of_rank in x:
                    of_rank[name] = of_rank[name].copy()
                    of_rank[name][begin:end] = mean
            for rank in range(RANKS):
                for name, g in share(rank, step).items():
                    x[rank][name] = x[rank][name] - RATE * RANKS * g.astype(np.float64)
        if step % full == 0:
            average(x)
        history.append([dict(of_rank) for of_rank in x])
    return history


def flat(parameters: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([parameters[name].reshape(-1) for name in SHAPES])


def named(numbers: np.ndarray, prefix: str = "") -> dict[str, np.ndarray]:
    """The arrays of which `flat` makes these numbers."""
    parts = np.split(numbers, np.cumsum([math.prod(shape) for shape in SHAPES.values()])[:-1])
    return {prefix + name: part.reshape(SHAPES[name]) for name, part in zip(SHAPES, parts, strict=True)}


def places(fragments: int) -> list[np.ndarray]:
    """Of each fragment, which of all numbers belong to it: bool."""
    masks = []
    for pieces in cut(SHAPES, fragments):
        marks = {name: np.zeros(shape, bool) for name, shape in SHAPES.items()}
        for name, begin, end in pieces:
            marks[name][begin:end] = True
        masks.append(flat(marks))
    return masks


def diloco(
    steps: int,
    bad: int,
    ranks: int,
    interval: int,
    fragments: int = 1,
    delay: int = 0,
    muon: bool = False,
) -> States:
    """The published rules, of adamw or of muon with half of the rate for adamw; `steps` is the phase's last one."""
    decayed = flat({name: np.full(shape, 0.1 * decays(name)) for name, shape in SHAPES.items()})
    common = flat(initial()).astype(np.float64)
    x = np.tile(common, (ranks, 1))
    m, v, b = np.zeros_like(x), np.zeros_like(x), np.zeros_like(common)
    matrix = flat({name: np.full(shape, muon and name == MATRIX) for name, shape in SHAPES.items()})
    beta, rates = np.where(matrix, 0.95, 0.9), np.where(matrix | (not muon), RATE, RATE / 2)
    parts, on_the_way, history, t = places(fragments), {}, [], 0
    for step in range(1, steps + 1):
        t += step != bad
        for rank in range(ranks if step != bad else 0):
            g = ranks * flat(share(rank, step)).astype(np.float64)
            g /= max(1.0, np.linalg.norm(g) / 30.0)
            m[rank] = beta * m[rank] + (1 - beta) * g
            v[rank] = 0.99 * v[rank] + 0.01 * g**2
            direction = m[rank] / (1 - 0.9**t) / (np.sqrt(v[rank] / (1 - 0.99**t)) + 1e-3)
            if muon:
                ahead = (0.95 * m[rank] + 0.05 * g)[matrix].reshape(SHAPES[MATRIX])
                direction[matrix] = 0.2 * np.sqrt(max(ahead.shape)) * numpy_orthogonal(ahead).reshape(-1)
            x[rank] -= rates * (direction + decayed * x[rank])
        due = [step] if step % (interval // fragments) == 0 else []
        for begun in due:
            on_the_way[begun] = common - x.mean(0)
        for begun in [begun for begun in on_the_way if step == begun + delay]:
            part = parts[(begun // (interval // fragments) - 1) % fragments]
            d = on_the_way.pop(begun)[part]
            b[part] = 0.9 * b[part] + d
            common[part] -= 0.7 * (d + 0.9 * b[part])
            own = 0.5 if delay else 0.0
            x[:, part] = own * x[:, part] + (1 - own) * common[part]
        history.append((x.copy(), common.copy()))
    at_once = steps % (interval // fragments) == 0 and not delay
    kept = parts[(steps // (interval // fragments) - 1) % fragments] & at_once
    common[~kept] = x.mean(0)[~kept]  # at the last step, what is not due becomes the mean
    history[-1] = (np.tile(common, (ranks, 1)), common)
    return [[named(own[rank]) | named(shared, "common/") for rank in range(ranks)] for own, shared in history]


def bucket_of(values: dict[str, np.ndarray], bucket: list[str]) -> np.ndarray:
    """A bucket as chunks, float64, zeros at its end."""
    joined = np.concatenate([values[name].reshape(-1) for name in bucket]).astype(np.float64)
    return np.pad(joined, (0, -len(joined) % CHUNK)).reshape(-1, CHUNK)


def largest_chunks(steps: int, bad: int, dense_steps: int) -> States:
    """A tenth of the chunks, after the dense steps; of sgd."""
    x = {name: value.astype(np.float64) for name, value in words_initial().items()}
    owed = [[np.zeros_like(bucket_of(x, bucket)) for bucket in WORDS.buckets] for _ in range(RANKS)]
    chosen = [np.arange(math.ceil(0.1 * len(owed[0][i]))) for i in range(len(WORDS.buckets))]
    history = []
    for step in range(1, steps + 1):
        if step != bad:
            for i, bucket in enumerate(WORDS.buckets):
                sent = np.arange(len(owed[0][i])) if step <= dense_steps else chosen[i]
                total, norms = np.zeros_like(owed[0][i]), 0.0
                for rank in range(RANKS):
                    g = bucket_of(words_share(rank, step), bucket)
                    owed[rank][i] = owed[rank][i] + g
                    total[sent] += owed[rank][i][sent]
                    owed[rank][i][sent] = 0
                    norms = norms + np.abs(owed[rank][i] + g).sum(1)
                chosen[i] = np.argsort(-norms, kind="stable")[: len(chosen[i])]
                place = 0
                for name in bucket:
                    size = math.prod(WORDS_SHAPES[name])
                    x[name] = x[name] - WORDS_RATE * total.reshape(-1)[place : place + size].reshape(WORDS_SHAPES[name])
                    place += size
        kept = [{f"residual.{i}": each.reshape(-1).copy() for i, each in enumerate(of_rank)} for of_rank in owed]
        history.append([x | of_rank for of_rank in kept])
    return history


# The tensors of PowerSGD and the largest chunks: word embeddings, and matrices of one shape and of others.
WORDS_RATE = 0.32
WORDS_SHAPES = {
    WORD_EMBEDDINGS: (70, 24),
    "a.weight": (24, 24),
    "b.weight": (24, 24),
    "b.bias": (24,),
    "c.weight": (48, 20),
    "d.LayerNorm.weight": (13,),
    "e.weight": (6, 5),  # too small for rank 2
}


def words_initial() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in WORDS_SHAPES.items()}


def words_share(rank: int, step: int) -> dict[str, np.ndarray]:
    """A rank's share of a step's gradient; tensors are of different size, and most rows of a table zero."""
    random = np.random.default_rng([rank, step])
    gradients = {
        name: (i + 1) / 32 * random.standard_normal(shape) for i, (name, shape) in enumerate(WORDS_SHAPES.items())
    }
    gradients[WORD_EMBEDDINGS] *= random.random((70, 1)) < 0.3
    return {name: value.astype(np.float32) for name, value in gradients.items()}


WORDS = Tensors(  # three buckets; the word embeddings have one of their own
    words_initial, words_share, WORDS_RATE, by_size(WORDS_SHAPES, 4 * 1600).buckets
)


def started(recipe: Recipe, slot: str) -> dict[str, np.ndarray]:
    """The random factors at the phase's beginning, by parameter, float64."""
    ranks = {name: recipe.exchange.rank_of(name, shape) for name, shape in WORDS_SHAPES.items()}
    shapes = {f"{slot}/{name}": (WORDS_SHAPES[name][slot == RIGHT], rank) for name, rank in ranks.items() if rank}
    values = initial_values(shapes, 1.0, recipe.data.seed)
    return {name.removeprefix(f"{slot}/"): value.astype(np.float64) for name, value in values.items()}


def chunked(matrix: np.ndarray) -> np.ndarray:
    return np.pad(matrix.reshape(-1), (0, -matrix.size % CHUNK)).reshape(-1, CHUNK)


def powersgd(recipe: Recipe, steps: int, bad: int = 0, ranks: int = RANKS) -> States:
    """Of sgd. A factor is there as the matrix of its space, because a basis is any one of it: LEFT/name @ its own."""
    settings = recipe.exchange
    x = {name: value.astype(np.float64) for name, value in words_initial().items()}
    owed = [{name: np.zeros(shape) for name, shape in WORDS_SHAPES.items()} for _ in range(ranks)]
    left, right = started(recipe, LEFT), started(recipe, RIGHT)
    count, sent = settings.chunks(70 * 24)
    chosen, history = np.arange(sent), []
    for step in range(1, steps + 1):
        m = [{name: owed[rank][name] + words_share(rank, step)[name] for name in WORDS_SHAPES} for rank in range(ranks)]
        after = step - settings.dense_steps(recipe.phase[0])
        if step != bad:
            norms = np.zeros(count)
            for name in WORDS_SHAPES:
                if after <= 0 or (name not in left and name != WORD_EMBEDDINGS):
                    g = sum(each[name] for each in m)
                    if name == WORD_EMBEDDINGS:
                        norms = np.abs(chunked(g)).sum(1)
                elif name not in left:
                    g, own = np.zeros((count, CHUNK)), []
                    for rank in range(ranks):
                        rest = chunked(m[rank][name])
                        g[chosen] += rest[chosen]
                        rest[chosen] = 0
                        norms = norms + np.abs(rest + chunked(words_share(rank, step)[name].astype(np.float64))).sum(1)
                        owed[rank][name] = rest.reshape(-1)[: 70 * 24].reshape(70, 24)
                    g = g.reshape(-1)[: 70 * 24].reshape(70, 24)
                elif after % 2:
                    basis = np.linalg.qr(left[name])[0]
                    own = [each[name].T @ basis for each in m]
                    for rank in range(ranks):
                        owed[rank][name] = m[rank][name] - basis @ own[rank].T
                    right[name] = sum(own)
                    g = basis @ right[name].T
                else:
                    basis = np.linalg.qr(right[name])[0]
                    own = [each[name] @ basis for each in m]
                    for rank in range(ranks):
                        owed[rank][name] = m[rank][name] - own[rank] @ basis.T
                    left[name] = sum(own)
                    g = left[name] @ basis.T
                x[name] = x[name] - WORDS_RATE * g
            chosen = np.argsort(-norms, kind="stable")[:sent]
        spaces = {f"{slot}@{name}": f @ f.T for slot, of in ((LEFT, left), (RIGHT, right)) for name, f in of.items()}
        history.append([x | spaces | {f"residual/{name}": value for name, value in each.items()} for each in owed])
    return history
