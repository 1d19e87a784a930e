"""The published rules in float64 NumPy, for two ranks, on the gradients of moments.py; independent of the program."""

import ml_dtypes
import numpy as np

from bert_horovod.recipe.sections import Recipe
from tests.exchange.moments import BUCKETS, LEARNING_RATE, RANKS, SHAPES, TABLE, gradients, parameters

BLOCK = 256


def share(rank: int, step: int) -> dict[str, np.ndarray]:
    """A rank's gradient, float64, the table's whole."""
    dense, ids, values = gradients(rank, step)
    gradient = {name: value.astype(np.float64) for name, value in dense.items()}
    np.add.at(gradient[TABLE], ids, values)
    return gradient


def flat(named: dict[str, np.ndarray], bucket: list[str]) -> np.ndarray:
    return np.concatenate([named[name].reshape(-1) for name in bucket])


def named(values: np.ndarray, bucket: list[str]) -> dict[str, np.ndarray]:
    parts = np.split(values, np.cumsum([np.prod(SHAPES[name]) for name in bucket])[:-1])
    return {name: part.reshape(SHAPES[name]) for name, part in zip(bucket, parts, strict=True)}


def rounded(scale: np.ndarray) -> np.ndarray:
    return scale.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


class CompressedMean:
    """The two-stage mean of one bucket over ranks, with errors in units of a share: 1 / n of a rank's moment."""

    def __init__(self, bucket: list[str]) -> None:
        sizes = [int(np.prod(SHAPES[name])) for name in bucket]
        self.count = sum(sizes)
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
        blocks = [slice(i, i + BLOCK) for i in range(0, len(y), BLOCK)]
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
            y = np.where(self.real, np.pad(moment / RANKS, (0, padding)) + self.worker[rank], 0)
            sent.append(self.encoded(y, 0))
            self.worker[rank] = y - sent[-1]
        gathered = []
        for rank in range(RANKS):
            place = slice(rank * self.part, (rank + 1) * self.part)
            z = np.where(self.real[place], sum(each[place] for each in sent) + self.server[place], 0)
            gathered.append(self.encoded(z, rank * self.part))
            self.server[place] = z - gathered[-1]
        return np.concatenate(gathered)[: self.count]


class Run:
    """What the rules share: the state, its gradients step by step, and what is kept of it."""

    def __init__(self, recipe: Recipe) -> None:
        self.settings = recipe.optimizer
        self.x = {name: value.astype(np.float64) for name, value in parameters().items()}
        self.m, self.v = ({name: np.zeros(shape) for name, shape in SHAPES.items()} for _ in "mv")
        self.t = 0
        self.factors = np.zeros(2)  # moving averages of squared clipping factors and of 1, of steps in which v learns

    def gradients(self, step: int) -> tuple[list[dict[str, np.ndarray]], dict[str, np.ndarray], bool]:
        """Shares by rank, their clipped sum, and whether it is finite; counts the update."""
        shares = [share(rank, step) for rank in range(RANKS)]
        total = {name: sum(each[name] for each in shares) for name in SHAPES}
        finite = all(np.isfinite(value).all() for value in total.values())
        self.t += finite
        norm = np.sqrt(sum((value**2).sum() for value in total.values()))
        self.factor = 1 / max(1, norm / self.settings.max_grad_norm)
        return shares, {name: value * self.factor for name, value in total.items()}, finite

    def learn(self, total: dict[str, np.ndarray], second: bool = True) -> None:
        b1, b2 = self.settings.beta_1, self.settings.beta_2
        for name, gradient in total.items():
            self.m[name] = b1 * self.m[name] + (1 - b1) * gradient
            if second:
                self.v[name] = b2 * self.v[name] + (1 - b2) * gradient**2
        if second:
            self.factors = b2 * self.factors + (1 - b2) * np.array([self.factor**2, 1])

    def corrected(self, v_updates: int | None = None) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        m_share = 1 - self.settings.beta_1**self.t
        v_share = 1 - self.settings.beta_2 ** (self.t if v_updates is None else v_updates)
        return (
            {name: value / m_share for name, value in self.m.items()},
            {name: value / v_share for name, value in self.v.items()},
        )

    def decay(self, name: str) -> float:
        return 0 if name.endswith("bias") else self.settings.weight_decay

    def state(self) -> dict[str, np.ndarray]:
        slots = {f"{slot}/{name}": value for slot in "mv" for name, value in getattr(self, slot).items()}
        return {**self.x, **slots}

    def clipped(self, each: dict[str, np.ndarray], bucket: list[str], v: dict[str, np.ndarray]) -> np.ndarray:
        """n times a rank's share of a bucket, within its limit."""
        g, usual = RANKS * flat(each, bucket), np.sqrt(RANKS * flat(v, bucket).sum())
        g = g * np.sqrt(self.factors[0] / self.factors[1])
        g = g * min(1, usual / np.linalg.norm(g))
        largest = np.sqrt(RANKS * flat(v, bucket) / (1 - self.settings.beta_2))
        return np.sign(g) * np.minimum(np.abs(g), largest)

    def compressed(self, mean: CompressedMean, moments: list[np.ndarray], v: np.ndarray) -> np.ndarray:
        """The mean over ranks of a bucket's moments, which are sent over the root of v."""
        den = np.where(v > 0, np.sqrt(v) + self.settings.epsilon, 0)
        sent = [np.divide(each, den, out=np.zeros_like(den), where=den > 0) for each in moments]
        return mean.mean(sent) * den


def errors(means: list[CompressedMean]) -> dict[str, np.ndarray]:
    """By the state's names, with the ranks in front."""
    arrays = {}
    for i, mean in enumerate(means):
        arrays[f"error.worker.{i}"] = mean.worker.reshape(RANKS, RANKS, -1).copy()
        arrays[f"error.server.{i}"] = mean.server.reshape(RANKS, -1).copy()
    return arrays


def onebit_adam(recipe: Recipe, steps: int, dense_steps: int) -> list[dict[str, np.ndarray]]:
    """The state after each step: x by name, m/name, v/name, error.worker.i and error.server.i of all ranks."""
    run = Run(recipe)
    means = [CompressedMean(bucket) for bucket in BUCKETS]
    states = []
    for step in range(1, steps + 1):
        shares, total, finite = run.gradients(step)
        if finite:
            if step <= dense_steps:
                run.learn(total)
                m, v = run.corrected()
            else:
                for bucket, mean in zip(BUCKETS, means, strict=True):
                    moments = [
                        run.settings.beta_1 * flat(run.m, bucket)
                        + (1 - run.settings.beta_1) * run.clipped(each, bucket, run.v)
                        for each in shares
                    ]
                    run.m |= named(run.compressed(mean, moments, flat(run.v, bucket)), bucket)
                m, v = run.m, run.v
            for name in run.x:
                direction = m[name] / (np.sqrt(v[name]) + run.settings.epsilon) + run.decay(name) * run.x[name]
                run.x[name] = run.x[name] - LEARNING_RATE * direction
        if step == dense_steps:
            run.m, run.v = m, v
        states.append(run.state() | errors(means))
    return states


def onebit_lamb(recipe: Recipe, steps: int, dense_steps: int) -> list[dict[str, np.ndarray]]:
    """As onebit_adam; also v_fresh/name."""
    run = Run(recipe)
    b1, b2, eps = run.settings.beta_1, run.settings.beta_2, run.settings.epsilon
    means = [CompressedMean(bucket) for bucket in BUCKETS]
    mean_ratio, last = dict.fromkeys(SHAPES, 0.0), dict.fromkeys(SHAPES, 1.0)
    fresh = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    states = []
    for step in range(1, steps + 1):
        shares, total, finite = run.gradients(step)
        if finite and step <= dense_steps:
            run.learn(total)
            m, v = run.corrected()
            for name, x in run.x.items():
                u = m[name] / (np.sqrt(v[name]) + eps) + run.decay(name) * x
                norms = np.linalg.norm(x), np.linalg.norm(u)
                ratio = norms[0] / norms[1] if min(norms) > 0 else 1.0
                ratio = np.clip(ratio, 0.01, 10.0)
                mean_ratio[name] = 0.9 * mean_ratio[name] + 0.1 * ratio
                run.x[name] = x - LEARNING_RATE * ratio * u
        elif finite:
            old = dict(run.m)
            for bucket, mean in zip(BUCKETS, means, strict=True):
                moments = [b1 * flat(run.m, bucket) + (1 - b1) * run.clipped(each, bucket, run.v) for each in shares]
                run.m |= named(run.compressed(mean, moments, flat(run.v, bucket)), bucket)
            for name, x in run.x.items():
                gradient = (run.m[name] - b1 * old[name]) / (1 - b1)
                fresh[name] = b2 * fresh[name] + (1 - b2) * gradient**2
                den = np.sqrt(run.v[name]) + eps
                u0 = run.m[name] / den
                u = u0 + run.decay(name) * x
                factor = (den / (np.sqrt(fresh[name]) + eps)).max()
                if run.decay(name) > 0:
                    r = min(1, np.linalg.norm(u0) / np.linalg.norm(u))
                    factor = factor * r + (1 - r)
                factor = np.clip(np.clip(factor, 0.5, 4.0), 0.9 * last[name], 1.1 * last[name])
                last[name] = factor
                run.x[name] = x - LEARNING_RATE * mean_ratio[name] * factor * u
        if step == dense_steps:
            run.m, run.v = m, v
            fresh = {name: value.copy() for name, value in v.items()}
            mean_ratio = {name: value / (1 - 0.9**run.t) for name, value in mean_ratio.items()}
        states.append(run.state() | errors(means) | {f"v_fresh/{name}": value for name, value in fresh.items()})
    return states
