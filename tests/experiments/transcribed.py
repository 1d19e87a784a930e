"""The rules of experiments in float64 NumPy, for some ranks, as in tests/exchange/transcribed.py and published.py."""

import numpy as np

from bert_horovod.model.parameters import decays
from bert_horovod.recipe.sections import Recipe
from tests.exchange.exchange_jobs import RANKS, RATE, SHAPES, initial, share
from tests.exchange.moments import BUCKETS, LEARNING_RATE
from tests.exchange.moments import SHAPES as MOMENT_SHAPES
from tests.exchange.published import CompressedMean, Run, errors, flat, named
from tests.exchange.transcribed import States, average


def mt_dao(steps: int, bad: int) -> States:
    """With an interval of 3 steps."""
    b, w, b2, eps, wd = 0.99, 0.9, 0.99, 1e-6, 0.1
    x = [{name: value.astype(np.float64) for name, value in initial().items()} for _ in range(RANKS)]
    u, v = ([{name: np.zeros(shape) for name, shape in SHAPES.items()} for _ in range(RANKS)] for _ in range(2))
    history, t = [], 0
    for step in range(1, steps + 1):
        if step != bad:
            t += 1
            for rank in range(RANKS):
                gradients = {name: RANKS * value.astype(np.float64) for name, value in share(rank, step).items()}
                norm = np.sqrt(sum((value**2).sum() for value in gradients.values()))
                for name, g in gradients.items():
                    g = g / max(1.0, norm / 30.0)
                    u[rank][name] = b * u[rank][name] + (1 - b) * g
                    moved = ((1 - w) * g + w * u[rank][name]) / (np.sqrt(v[rank][name]) + eps)
                    bound = (t - 1) ** 0.25
                    moved = np.where(v[rank][name] > 0, np.clip(moved, -bound, bound), 0)
                    x[rank][name] = x[rank][name] - RATE * (moved + wd * decays(name) * x[rank][name])
                    known = v[rank][name] > 0
                    v[rank][name] = np.where(known, b2 * v[rank][name] + (1 - b2) * g**2, g**2)
        for values in (x, u, v) if step % 3 == 0 else ():
            average(values)
        history.append([dict(of_rank) for of_rank in x])
    return history


def zero_one_adam(
    recipe: Recipe, steps: int, learning_steps: int, dense: set[int], syncs: set[int]
) -> list[dict[str, np.ndarray]]:
    """The state after each step; between syncs nothing, because ranks differ.

    Args:
        dense: of the learning steps, those with dense gradients.
        syncs: of the others, those after which ranks agree.
    """
    run = Run(recipe)
    b1, eps = run.settings.beta_1, run.settings.epsilon
    of_gradients = [CompressedMean(bucket) for bucket in BUCKETS]
    of_moves = [CompressedMean(bucket) for bucket in BUCKETS]
    v_updates, length = 0, 0.0
    moved = [{name: np.zeros(shape) for name, shape in MOMENT_SHAPES.items()} for _ in range(RANKS)]
    local = [dict(run.m) for _ in range(RANKS)]
    states = []
    for step in range(1, steps + 1):
        shares, total, finite = run.gradients(step)
        if finite and step <= learning_steps:
            v_updates += step in dense
            if step not in dense:
                v = run.corrected(v_updates)[1]
                for bucket, mean in zip(BUCKETS, of_gradients, strict=True):
                    sent = [run.clipped(each, bucket, v) for each in shares]
                    total |= named(run.compressed(mean, sent, flat(run.v, bucket)), bucket)
            run.learn(total, second=step in dense)
            m, v = run.corrected(v_updates)
            for name, x in run.x.items():
                direction = m[name] / (np.sqrt(v[name]) + eps) + run.decay(name) * x
                run.x[name] = x - LEARNING_RATE * direction
        elif finite:
            length += LEARNING_RATE
            for rank, each in enumerate(shares):
                for bucket in BUCKETS:
                    for name, g in named(run.clipped(each, bucket, run.v), bucket).items():
                        local[rank][name] = b1 * local[rank][name] + (1 - b1) * g
                        moved[rank][name] = moved[rank][name] - LEARNING_RATE * local[rank][name] / (
                            np.sqrt(run.v[name]) + eps
                        )
        if step == learning_steps:
            run.m, run.v = m, v
            local = [dict(run.m) for _ in range(RANKS)]
        if step in syncs and length:
            for bucket, mean in zip(BUCKETS, of_moves, strict=True):
                den = np.sqrt(flat(run.v, bucket)) + eps
                a = run.compressed(mean, [flat(each, bucket) * den for each in moved], flat(run.v, bucket))
                run.m |= named(-a / length, bucket)
                for name, move in named(a / den, bucket).items():
                    run.x[name] = run.x[name] * (1 - length * run.decay(name)) + move
            local = [dict(run.m) for _ in range(RANKS)]
            moved = [{name: np.zeros(shape) for name, shape in MOMENT_SHAPES.items()} for _ in range(RANKS)]
            length = 0.0
        agree = step <= learning_steps or step in syncs
        state = errors(of_gradients if step < learning_steps else of_moves)
        states.append(run.state() | state if agree else {})
    return states
