"""What tests/optimizers/test_rules.py compares experiments' update rules with: their formulas in NumPy."""

import numpy as np

from tests.toys import optimizer_of


def norm(values):
    return np.sqrt(np.sum(values * values))


def numpy_came(x, g, m, v, t, rate, decay, settings):
    """`v` is what is kept beside m, zeros before step 1: R, C, Rs and Cs of a matrix."""
    b1, b2, b3 = settings.beta_1, settings.beta_2, settings.beta_3
    wd = settings.weight_decay if decay else 0.0

    def limited(u):
        return u / max(1.0, norm(u) / np.sqrt(u.size))

    squares = g**2 + 1e-30
    if x.ndim == 1:
        v = b2 * v + (1 - b2) * squares
        m = b1 * m + (1 - b1) * limited(g / np.sqrt(v))
        return x - rate * wd * x - rate * m, m, v

    def averages(old, values, beta):
        return [beta * a + (1 - beta) * values.mean(axis) for a, axis in zip(old, (1, 0), strict=True)]

    def over_root(values, rows, columns):
        return values / np.sqrt(np.outer(rows / rows.mean(), columns))

    rows, columns, s_rows, s_columns = (0.0, 0.0, 0.0, 0.0) if t == 1 else v
    rows, columns = averages((rows, columns), squares, b2)
    u = limited(over_root(g, rows, columns))
    m = b1 * m + (1 - b1) * u
    s_rows, s_columns = averages((s_rows, s_columns), (u - m) ** 2 + 1e-16, b3)
    x = x - rate * wd * x
    return x - rate * over_root(m, s_rows, s_columns), m, (rows, columns, s_rows, s_columns)


def numpy_merit(x, g, m, v, t, rate, decay, settings):
    wd = settings.weight_decay if decay else 0.0
    m = settings.beta_1 * m + (1 - settings.beta_1) * g
    v = settings.beta_2 * v + (1 - settings.beta_2) * g**2
    u = m / (np.sqrt(v) + settings.epsilon) + wd * x

    def largest(values, i, j):  # of the row, of the column, of all
        return [np.abs(each).max() for each in (values[i], values[:, j], values)]

    ratios = np.ones(x.shape)
    if x.ndim == 1:
        if x.any() and u.any():
            ratios *= np.abs(x).max() / np.abs(u).max()
    else:
        for i, j in np.ndindex(x.shape):
            ofx, ofu = largest(x, i, j), largest(u, i, j)
            if all(ofx) and all(ofu):
                ratios[i, j] = max(a / b for a, b in zip(ofx, ofu, strict=True))
    return x - rate * np.clip(ratios * u, -1, 1), m, v


NUMPY_RULES = {"came": numpy_came, "merit": numpy_merit}
OTHER_SETTINGS = [
    optimizer_of("came", max_grad_norm=0.0, weight_decay=0.3, beta_2=0.98, beta_3=0.99),
    optimizer_of("came", beta_1=0.5, beta_3=0.0),
    optimizer_of("merit", max_grad_norm=0.0, weight_decay=0.3, beta_2=0.95),
]
OF_M_AND_V = ["merit"]  # of tensors that are updated together
