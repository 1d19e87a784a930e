"""What ranks owe keeps its sum when ranks or buckets change."""

import numpy as np
import pytest

from bert_horovod.exchange.owed import OF_PARAMETER, RESIDUAL, SERVER, WORKER, OwedLayout, part_size, shares, total

SHAPES = {"a": (700,), "b": (3, 5), "c": (40, 13)}
ONE, TWO = [["a", "b", "c"]], [["c"], ["b", "a"]]


def kept(layout: OwedLayout, kinds: tuple[str, ...], seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Each rank's variables, of random numbers; zeros where there is padding."""
    random, hosts = np.random.default_rng(seed), layout.ranks // layout.inside
    of_ranks: list[dict[str, np.ndarray]] = [{} for _ in range(layout.ranks)]
    for i, bucket in enumerate(layout.buckets):
        numbers = sum(int(np.prod(SHAPES[name])) for name in bucket)
        size = part_size(numbers, layout.ranks)
        for rank, variables in enumerate(of_ranks):
            host, place = divmod(rank, layout.inside)

            def padded(begin: int, count: int, numbers: int = numbers) -> np.ndarray:
                inside = np.arange(begin, begin + count) < numbers
                return (random.standard_normal(count) * inside).astype(np.float32)

            begin = place * hosts * size
            if WORKER in kinds:
                variables[f"{WORKER}.{i}"] = padded(begin, hosts * size).reshape(hosts, size)
                variables[f"{SERVER}.{i}"] = padded(begin + host * size, size)
            if OF_PARAMETER in kinds and not i:
                for name, shape in SHAPES.items():
                    variables[OF_PARAMETER + name] = random.standard_normal(shape).astype(np.float32)
            if RESIDUAL in kinds:
                variables[f"{RESIDUAL}.{i}"] = padded(0, numbers + 3)
    return of_ranks


def everything(variables: list[dict[str, np.ndarray]]) -> float:
    return sum(float(values.astype(np.float64).sum()) for each in variables for values in each.values())


@pytest.mark.parametrize("kinds", [(WORKER,), (RESIDUAL,), (OF_PARAMETER,)])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (OwedLayout(2, 1, ONE), OwedLayout(3, 1, ONE)),
        (OwedLayout(4, 2, TWO), OwedLayout(2, 1, ONE)),
        (OwedLayout(2, 1, ONE), OwedLayout(6, 3, TWO)),
        (OwedLayout(2, 1, ONE), OwedLayout(2, 1, TWO)),
    ],
)
def test_what_is_owed_is_kept_by_parameter_in_another_layout(old, new, kinds):
    before = kept(old, kinds)
    owed = total(before, old, SHAPES)
    assert {name: values.shape for name, values in owed.items()} == SHAPES
    assert sum(float(values.sum()) for values in owed.values()) == pytest.approx(everything(before), abs=1e-2)
    after = [shares(owed, before[0], new, rank) for rank in range(new.ranks)]
    again = total(after, new, SHAPES)
    for name in SHAPES:
        np.testing.assert_allclose(again[name], owed[name], rtol=1e-5, atol=1e-6)


def test_a_number_is_found_where_its_owner_kept_it():
    layout = OwedLayout(4, 2, ONE)  # two hosts of two ranks
    variables = kept(layout, (WORKER,))
    for each in variables:
        for values in each.values():
            values[:] = 0
    size = part_size(700 + 15 + 520, 4)
    variables[2][f"{SERVER}.0"][7] = 5
    variables[0][f"{WORKER}.0"][1, 3] = 2
    flat = np.concatenate([total(variables, layout, SHAPES)[name].reshape(-1) for name in ("a", "b", "c")])
    assert flat[size + 7] == 5
    assert flat[size + 3] == 2
    assert np.count_nonzero(flat) == 2


@pytest.mark.parametrize(
    "name_and_shape",
    [
        ("residual/a", (5,)),
        ("residual/d", (1,)),
        ("error.worker.0", (5,)),
        ("error.worker.9", (1, 1280)),
        ("momentum.0", (3,)),
        ("error.server", (1,)),
    ],
)
def test_what_does_not_fit_the_layout_is_refused(name_and_shape):
    name, shape = name_and_shape
    with pytest.raises(ValueError, match=name.split(".")[0]):
        total([{name: np.ones(shape, np.float32)}], OwedLayout(1, 1, ONE), SHAPES)
