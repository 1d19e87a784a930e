"""The published rules in float64 NumPy, for two ranks, on the gradients of moments.py; independent of the program."""

import ml_dtypes
import numpy as np

from bert_horovod.recipe.sections import Recipe
from tests.exchange.moments import BUCKETS, LEARNING_RATE, RANKS, SHAPES, TABLE, gradients, parameters

BLOCK = 256
CLIPPED = 3.0


def share(rank: int, step: int) -> dict[str, np.ndarray]:
    """A rank's gradient, float64, the table's whole."""
    dense, ids, values = gradients(rank, step)
    found = {name: value.astype(np.float64) for name, value in dense.items()}
    np.add.at(found[TABLE], ids, values)
    return found


def flat(named: dict[str, np.ndarray], bucket: list[str]) -> np.ndarray:
    return np.concatenate([named[name].reshape(-1) for name in bucket])


def named(values: np.ndarray, bucket: list[str]) -> dict[str, np.ndarray]:
    parts = np.split(values, np.cumsum([np.prod(SHAPES[name]) for name in bucket])[:-1])
    return {name: part.reshape(SHAPES[name]) for name, part in zip(bucket, parts, strict=True)}


def rounded(scale: np.ndarray) -> np.ndarray:
    return scale.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


class CompressedMean:
    """The two-stage mean of one bucket over ranks, with errors in units of a share: 1 / n of a rank's moment."""

    def __init__(self, bucket: list[str], form: str) -> None:
        sizes = [int(np.prod(SHAPES[name])) for name in bucket]
        self.count, self.form = sum(sizes), form
        self.part = -(-self.count // (RANKS * BLOCK)) * BLOCK
        self.worker = np.zeros((RANKS, RANKS * self.part))
        self.server = np.zeros(RANKS * self.part)
        self.real = np.arange(RANKS * self.part) < self.count
        middles = np.arange(0, RANKS * self.part, BLOCK) + BLOCK // 2
        ends = np.cumsum(sizes)
        self.tensor = np.array([min(int((ends <= middle).sum()), len(sizes) - 1) for middle in middles])

    def encoded(self, y: np.ndarray, begin: int) -> np.ndarray:
        """What y, from place `begin` of the bucket on, stands for when it is sent."""
        real = self.real[begin : begin + len(y)]
        scale = np.zeros(len(y))
        if self.form == "published":
            scale[:] = np.sqrt((y**2).sum() / real.sum())
        blocks = [slice(i, i + BLOCK) for i in range(0, len(y), BLOCK)]
        if self.form == "momentum":
            for block in blocks:
                scale[block] = np.abs(y[block]).sum() / max(1, real[block].sum())
        if self.form == "normalized":
            owners = self.tensor[begin // BLOCK :][: len(blocks)]
            alive = [np.abs(y[block]).sum() > 0 for block in blocks]
            for owner in set(owners):
                mine = [block for block, of, live in zip(blocks, owners, alive, strict=True) if of == owner and live]
                for block in mine:
                    scale[block] = sum(np.abs(y[each]).sum() for each in mine) / sum(real[each].sum() for each in mine)
        return np.where(y >= 0, 1, -1) * rounded(scale)

    def mean(self, moments: list[np.ndarray]) -> np.ndarray:
        padding = RANKS * self.part - self.count
        sent = []
        for rank, moment in enumerate(moments):
            y = np.pad(moment / RANKS, (0, padding)) + self.worker[rank]
            sent.append(self.encoded(y, 0))
            self.worker[rank] = y - sent[-1]
        result = []
        for rank in range(RANKS):
            place = slice(rank * self.part, (rank + 1) * self.part)
            z = sum(each[place] for each in sent) + self.server[place]
            result.append(self.encoded(z, rank * self.part))
            self.server[place] = z - result[-1]
        return np.concatenate(result)[: self.count]


def onebit_adam(recipe: Recipe, steps: int, dense_steps: int, compressed: bool = True) -> list[dict[str, np.ndarray]]:
    """The state after each step: x by name, m/name, v/name; error.worker (of each rank) and error.server by bucket."""
    settings, form = recipe.optimizer, recipe.exchange.form
    b1, b2, eps, decay = settings.beta_1, settings.beta_2, settings.epsilon, settings.weight_decay
    x = {name: value.astype(np.float64) for name, value in parameters().items()}
    m, v = ({name: np.zeros(shape) for name, shape in SHAPES.items()} for _ in "mv")
    means = [CompressedMean(bucket, form) for bucket in BUCKETS]
    t, found = 0, []
    for step in range(1, steps + 1):
        shares = [share(rank, step) for rank in range(RANKS)]
        total = {name: sum(each[name] for each in shares) for name in SHAPES}
        if all(np.isfinite(value).all() for value in total.values()):
            t += 1
            if step <= dense_steps:
                norm = np.sqrt(sum((value**2).sum() for value in total.values()))
                for name, gradient in total.items():
                    gradient = gradient / max(1, norm / settings.max_grad_norm)
                    m[name] = b1 * m[name] + (1 - b1) * gradient
                    v[name] = b2 * v[name] + (1 - b2) * gradient**2
                corrected = {
                    "m": {name: value / (1 - b1**t) for name, value in m.items()},
                    "v": {name: value / (1 - b2**t) for name, value in v.items()},
                }
            else:
                for bucket, mean in zip(BUCKETS, means, strict=True):
                    frozen = flat(v, bucket)
                    limit = CLIPPED * np.sqrt(RANKS * frozen.sum())
                    moments = []
                    for each in shares:
                        g = RANKS * flat(each, bucket)
                        g = g * min(1, limit / np.linalg.norm(g))
                        moments.append(b1 * flat(m, bucket) + (1 - b1) * g)
                    den = np.where(frozen > 0, np.sqrt(frozen) + eps, 0)
                    if not compressed:
                        m |= named(np.where(frozen > 0, sum(moments) / RANKS, 0), bucket)
                    elif form == "normalized":
                        sent = [np.divide(each, den, out=np.zeros_like(den), where=den > 0) for each in moments]
                        m |= named(mean.mean(sent) * den, bucket)
                    else:
                        m |= named(np.where(frozen > 0, mean.mean(moments), 0), bucket)
                corrected = {"m": m, "v": v}
            for name in x:
                wd = decay if name.endswith("weight") or name == TABLE else 0
                x[name] = x[name] - LEARNING_RATE * (
                    corrected["m"][name] / (np.sqrt(corrected["v"][name]) + eps) + wd * x[name]
                )
        if step == dense_steps:
            m, v = corrected["m"], corrected["v"]
        state = dict(x) | {f"m/{name}": value for name, value in m.items()} | {f"v/{name}": v[name] for name in v}
        for i, mean in enumerate(means):
            state[f"error.worker.{i}"] = mean.worker.reshape(RANKS, RANKS, -1).copy()
            state[f"error.server.{i}"] = mean.server.reshape(RANKS, -1).copy()
        found.append(state)
    return found
