"""The kernels in Triton's interpreter give what float64 NumPy gives, with the dropout masks of model/forward.py."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.model.forward import DropoutState, keep_scale, random_bytes, threshold
from bert_horovod.model.gpu_kernels import catalogue
from bert_horovod.model.gpu_kernels.call import reach_of
from tests.model.gpu_kernels import reference
from tests.model.gpu_kernels.triton_environment import run_with_triton

pytestmark = pytest.mark.full

RATE = 0.1
KEY, FIRST_ROW, SITE = 0x123456789ABCDEF0, 7, 4
HEADS = 2
# Rows, length, size of a head, dropout: every text of the attention kernels.
ATTENTION = [
    (rows, length, size, dropout)
    for rows, length in ((1, 64), (2, 128), (2, 256))
    for size in catalogue.HEAD_SIZES
    for dropout in (False, True)
]
CAPABILITIES = (9, 0), (8, 9)  # they have different texts for forward of 256, and for backward at WHOLE_LENGTH
NORM = [(96, 256, True), (256, 256, False)]  # width, COLUMNS, dropout
ROWS, LENGTH = 2, 16  # of LayerNorm
# Rows, length, size of a head, window: every text of the rotary kernels.
ROTARY = [
    (1, 192, 32, 20),
    (1, 128, 32, 128),
    (2, 128, 64, 64),
    (1, 128, 64, 128),
    (1, 64, 128, 30),
    (1, 128, 128, 128),
]
RESIDUAL = [(96, True), (256, False)]  # width, dropout
TANH = (False, True)
WIDTHS = catalogue.TABLE_COLUMNS
VOCABULARY, LOOKUPS = 20, 100


def stream() -> dict[str, np.ndarray]:
    return {
        "key": np.array([KEY], np.int64),
        "first_row": np.array([FIRST_ROW], np.int64),
        "site": np.array([SITE], np.int64),
    }


def draws(shape: list[int], site: int = SITE) -> np.ndarray:
    dropout = DropoutState(tf.constant([KEY], tf.uint64), tf.constant(FIRST_ROW, tf.uint64))
    return random_bytes(shape, RATE, site, dropout).numpy()


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype(np.float32)


def packed(rows: int, length: int) -> np.ndarray:
    """Two sequences and padding, then one sequence and padding; the first sequence fills whole blocks of long rows."""
    ids = np.zeros((rows, length), np.int32)
    ids[0, : length // 4 + 3], ids[0, length // 4 + 3 : -5] = 1, 2
    ids[1:, :-7] = 2  # a tile that goes on into the next row would take these for row 0's second sequence
    return ids


def tolerance() -> dict[str, float]:
    return {"rtol": 2e-5, "atol": 2e-5}


def attention_case(rows: int, length: int, size: int, dropout: bool) -> dict[str, Any]:
    """Operands of forward and backward; backward reads the reference's context and normalizer."""
    hidden, rate = HEADS * size, RATE * dropout
    qkv, biases, dcontext = random(rows * length, 3 * hidden), random(3 * hidden), random(rows * length, hidden, seed=1)
    sequences = packed(rows, length)
    kept = draws([rows, HEADS, length, length]) >= threshold(rate) if dropout else None
    others = kept, keep_scale(rate), dcontext
    context, _, dqkv = reference.attention(qkv + biases, sequences, HEADS, *others)
    without_keys = biases * (np.arange(3 * hidden) // hidden != 1)
    _, normalizer, _ = reference.attention(qkv + without_keys, sequences, HEADS, *others)
    operands = {
        "qkv": qkv,
        "biases": biases,
        "sequences": sequences,
        "reach": reach_of(tf.constant(sequences)).numpy(),
        **stream(),
        "site": np.array([SITE - 3], np.int64),
        "sizes": np.array([length // 64, HEADS, threshold(rate), 3], np.int32),
        "numbers": np.array([1 / math.sqrt(size), keep_scale(rate)], np.float32),
    }
    return {
        "operands": operands,
        "backward": {"context": context.astype(np.float32), "normalizer": normalizer.astype(np.float32)},
        "dcontext": dcontext,
        "expected": {"context": context, "normalizer": normalizer, "dqkv": dqkv},
    }


def rotary_case(rows: int, length: int, size: int, window: int) -> dict[str, Any]:
    """Operands of forward and backward; backward reads the reference's context and normalizer."""
    hidden = HEADS * size
    qkv, dcontext = random(rows * length, 3 * hidden), random(rows * length, hidden, seed=1)
    sequences, angles = packed(rows, length), 3 * random(rows, length, size // 2)
    turned = reference.turned(qkv, angles, HEADS)
    context, normalizer, dturned = reference.attention(turned, sequences, HEADS, None, 1.0, dcontext, window)
    operands = {
        "qkv": qkv,
        "sequences": sequences,
        "reach": reach_of(tf.constant(sequences)).numpy(),
        "cosines": np.cos(angles),
        "sines": np.sin(angles),
        "sizes": np.array([length // 64, HEADS, window], np.int32),
        "numbers": np.array([1 / math.sqrt(size)], np.float32),
    }
    kept = {"context": context.astype(np.float32), "normalizer": normalizer.astype(np.float32), "dcontext": dcontext}
    expected = {"context": context, "normalizer": normalizer, "dqkv": reference.turned(dturned, -angles, HEADS)}
    return {"forward": operands, "backward": operands | kept, "expected": expected}


def residual_case(width: int, dropout: bool) -> dict[str, Any]:
    """A LayerNorm of a sum, and with `dropout` of a branch in it; without, its forward has no branch at all."""
    rate, n = RATE * dropout, ROWS * LENGTH
    x, branch, weight = random(n, width), random(n, width, seed=1), random(width, seed=1)
    dy, dresidual, factors = random(n, width, seed=2), random(n, width, seed=3), np.ones((n, width))
    if dropout:
        factors = (draws([ROWS, LENGTH, width]).reshape(n, width) >= threshold(rate)) * keep_scale(rate)
    total = x + factors * branch if dropout else x.astype(np.float64)
    found = reference.layer_norm(total, 0 * x, weight, np.zeros(width), 1e-3, factors, dy)
    dx = found["dx"] + dresidual
    shared = stream() | {
        "sizes": np.array([width // 16, LENGTH, threshold(rate), 0], np.int32),
        "numbers": np.array([1e-3, keep_scale(rate)], np.float32),
    }
    expected = {"total": total, "y": found["y"], "mean": total.mean(-1), "inverse": found["inverse"]}
    expected |= {"dx": dx, "dbranch": dx * factors, "sums": found["sums"][0]}
    narrow = {name: expected[name].astype(np.float32) for name in ("total", "mean", "inverse")}
    forward = {"x": x, "branch": branch, "weight": weight} | shared
    backward = {"dy": dy, "dresidual": dresidual, **narrow, "weight": weight} | shared
    return {"forward": forward, "backward": backward, "expected": expected}


def norm_case(width: int, dropout: bool) -> dict[str, Any]:
    rate, n = RATE * dropout, ROWS * LENGTH
    x, branch, offset, weight = random(n, width), random(n, width, seed=1), random(width), random(width, seed=1)
    bias, dy = random(width, seed=2), random(n, width, seed=2)
    factors = np.ones((n, width))
    if dropout:
        factors = (draws([ROWS, LENGTH, width]).reshape(n, width) >= threshold(rate)) * keep_scale(rate)
    expected = reference.layer_norm(x, branch + offset, weight, bias, 1e-3, factors, dy)
    shared = stream() | {
        "sizes": np.array([width // 16, LENGTH, threshold(rate), 0], np.int32),
        "numbers": np.array([1e-3, keep_scale(rate)], np.float32),
    }
    forward = {"x": x, "branch": branch, "offset": offset, "weight": weight, "bias": bias} | shared
    narrow = {name: expected[name].astype(np.float32) for name in ("normal", "inverse")}
    return {"forward": forward, "backward": {"dy": dy, **narrow, "weight": weight} | shared, "expected": expected}


def table_case(width: int) -> dict[str, Any]:
    ids = np.random.default_rng(0).integers(0, VOCABULARY, LOOKUPS).astype(np.int32)
    ids[ids == 3] = 4  # one entry that nobody looks up, and one with more lookups than a tile has rows
    ids[:40] = 5
    order = np.argsort(ids, kind="stable").astype(np.int32)
    values, dense = random(LOOKUPS, width), random(VOCABULARY, width)
    expected = dense.astype(np.float64)
    np.add.at(expected, ids, values)
    starts = np.searchsorted(ids[order], np.arange(VOCABULARY + 1)).astype(np.int32)
    columns = dict(catalogue.table_gradient(width).constants)["COLUMNS"]
    sizes = np.array([width // columns], np.int32)
    operands = {"order": order, "starts": starts, "values": values, "dense": dense, "sizes": sizes}
    return {"operands": operands, "expected": expected}


def gelu_operands(tanh: bool) -> dict[str, np.ndarray]:
    n, width = 96, 256
    sizes = np.array([n // catalogue.GELU_ROWS, width // catalogue.GELU_COLUMNS], np.int32)
    return {"x": 2 * random(n, width), "offset": random(width), "dy": random(n, width, seed=1), "sizes": sizes}


def geglu_operands() -> dict[str, np.ndarray]:
    n, width = 64, 96
    sizes = np.array([width // catalogue.GEGLU_COLUMNS], np.int32)
    return {"x": 2 * random(n, 2 * width), "dy": random(n, width, seed=1), "sizes": sizes}


class Cases:
    """What the interpreter shall run."""

    def __init__(self) -> None:
        self.cases, self.arrays = [], {}

    def add(
        self,
        name: str,
        text: catalogue.Text,
        operands: dict[str, np.ndarray],
        results: dict[str, tuple[int, ...]],
        grid: tuple[int, ...],
        **constants: int,
    ) -> None:
        ordered = [each for each in catalogue.OPERANDS[text.kernel] if each in operands]
        assert list(operands) == ordered, "operands in the kernel's order"
        self.cases.append(
            {
                "name": name,
                "kernel": text.kernel,
                "grid": grid,
                "constants": dict(text.constants) | constants,
                "operands": ordered,
                "results": results,
                "dtype": "float32",
            }
        )
        self.arrays |= {f"{name}/{operand}": array for operand, array in operands.items()}


def add_attention(cases: Cases, rows: int, length: int, size: int, dropout: bool) -> None:
    case, hidden, name = attention_case(rows, length, size, dropout), HEADS * size, f"{length} {size} {dropout}"
    for capability in CAPABILITIES:
        text = catalogue.attention_forward(length, size, dropout, capability)
        queries = dict(text.constants)["QUERIES"]
        results = {"context": (rows * length, hidden), "normalizer": (rows, HEADS, length)}
        grid = (length // queries, HEADS, rows)
        cases.add(f"forward {name} {capability[1]}", text, case["operands"], results, grid)
    operands = case["operands"] | case["backward"] | {"dcontext": case["dcontext"]}
    for capability in CAPABILITIES if length == catalogue.WHOLE_LENGTH else CAPABILITIES[:1]:
        text = catalogue.attention_backward(length, size, dropout, capability)
        whole = text.kernel == "attention_backward_whole"
        blocks = 1 if whole else length // 64
        results = {"dqkv": (rows * length, 3 * hidden), "sums": (rows * blocks, 3 * hidden)}
        given = {each: array for each, array in operands.items() if not (whole and each == "reach")}
        grid = (HEADS, rows) if whole else (2 * blocks, HEADS, rows)
        cases.add(f"backward {name} {capability[1]}", text, given, results, grid)


def add_modernbert(cases: Cases) -> None:
    for rows, length, size, window in ROTARY:
        case, name, hidden = rotary_case(rows, length, size, window), f"{length} {size} {window}", HEADS * size
        text = catalogue.rotary_attention_forward(length, size, window)
        made = {"context": (rows * length, hidden), "normalizer": (rows, HEADS, length)}
        grid = (length // dict(text.constants)["QUERIES"], HEADS, rows)
        cases.add(f"rotary forward {name}", text, case["forward"], made, grid)
        text, made = catalogue.rotary_attention_backward(size), {"dqkv": (rows * length, 3 * hidden)}
        cases.add(f"rotary backward {name}", text, case["backward"], made, (2 * length // 64, HEADS, rows))
    for width, dropout in RESIDUAL:
        case, n = residual_case(width, dropout), ROWS * LENGTH
        made = {"total": (n, width), "y": (n, width), "mean": (n,), "inverse": (n,)}
        text = catalogue.residual_norm_forward(width, dropout, dropout)
        cases.add(f"residual forward {width}", text, case["forward"], made, (n,))
        text, programs = catalogue.residual_norm_backward(width, dropout), n // catalogue.NORM_ROWS
        made = {"dx": (n, width), "dbranch": (n, width), "sums": (programs, width)}
        cases.add(f"residual backward {width}", text, case["backward"], made, (programs,))


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, np.ndarray]:
    """Results of all cases, by "case/result"; one process of the interpreter."""
    cases = Cases()
    for case in ATTENTION:
        add_attention(cases, *case)
    add_modernbert(cases)
    for width, dropout in ((width, dropout) for width, _, dropout in NORM):
        case, n = norm_case(width, dropout), ROWS * LENGTH
        wide = {"normal": (n, width), "inverse": (n,)}
        text = catalogue.norm_forward(width, dropout)
        cases.add(f"norm forward {width}", text, case["forward"], {"y": (n, width)} | wide, (n,))
        text, programs = catalogue.norm_backward(width, dropout), n // catalogue.NORM_ROWS
        made = {"dx": (n, width), "dbranch": (n, width), "sums": (programs, 3, width)}
        cases.add(f"norm backward {width}", text, case["backward"], made, (programs,))
    for tanh in TANH:
        operands = gelu_operands(tanh)
        (n, width), parts = operands["x"].shape, operands["x"].shape[1] // catalogue.GELU_COLUMNS
        text, made = catalogue.gelu_backward(tanh), {"dx": (n, width), "sums": (2, width)}
        cases.add(f"gelu {tanh}", text, operands, made, (2, parts), TURNS=2)  # the last program has one tile
    operands = geglu_operands()
    parts, made = operands["dy"].shape[1] // catalogue.GEGLU_COLUMNS, {"dx": operands["x"].shape}
    cases.add("geglu", catalogue.geglu_backward(), operands, made, (len(operands["x"]) // catalogue.GEGLU_ROWS, parts))
    for width in WIDTHS:
        made = {"table": (VOCABULARY, width)}
        cases.add(
            f"table {width}", catalogue.table_gradient(width), table_case(width)["operands"], made, (VOCABULARY, 1)
        )
    mask_operands = {**stream(), "first_block": np.array([FIRST_ROW * 8 * 4], np.int64)}
    del mask_operands["first_row"]
    cases.cases.append(
        {
            "name": "mask",
            "kernel": "mask_of_tile",
            "grid": (1,),
            "constants": {"blocks_per_row": 4, "threshold": threshold(RATE), "ROWS": 8, "COLUMNS": 64},
            "operands": list(mask_operands),
            "results": {"kept": (16, 64)},
            "dtype": "int32",
        }
    )
    cases.arrays |= {f"mask/{name}": array for name, array in mask_operands.items()}
    directory = tmp_path_factory.mktemp("interpreter")
    np.savez(directory / "cases.npz", cases=json.dumps(cases.cases), **cases.arrays)
    script = Path(__file__).with_name("interpret.py")
    run_with_triton(script, directory / "cases.npz", directory / "results.npz", interpret=True)
    return dict(np.load(directory / "results.npz"))


def test_masks_are_those_of_model_dropout_bit_for_bit(results):
    expected = draws([1, 8, 64])[0] >= threshold(RATE)
    np.testing.assert_array_equal(results["mask/kept"], np.concatenate([expected, expected]))
    assert not expected.all()


@pytest.mark.parametrize("case", ATTENTION, ids=str)
def test_attention(results, case):
    _, length, size, dropout = case
    name, expected = f"{length} {size} {dropout}", attention_case(*case)["expected"]
    for (_, minor), result in itertools.product(CAPABILITIES, ("context", "normalizer")):
        np.testing.assert_allclose(results[f"forward {name} {minor}/{result}"], expected[result], **tolerance())
    for _, minor in CAPABILITIES if length == catalogue.WHOLE_LENGTH else CAPABILITIES[:1]:
        dqkv, sums = (results[f"backward {name} {minor}/{result}"] for result in ("dqkv", "sums"))
        np.testing.assert_allclose(dqkv, expected["dqkv"], **tolerance())
        np.testing.assert_allclose(sums.sum(0), expected["dqkv"].sum(0), rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("width", [width for width, *_ in NORM])
def test_layer_norm(results, width):
    dropout = {width: dropout for width, _, dropout in NORM}[width]
    expected = norm_case(width, dropout)["expected"]
    for direction, names in (("forward", ("y", "normal", "inverse")), ("backward", ("dx", "dbranch"))):
        for name in names:
            np.testing.assert_allclose(results[f"norm {direction} {width}/{name}"], expected[name], **tolerance())
    np.testing.assert_allclose(results[f"norm backward {width}/sums"].sum(0), expected["sums"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", ROTARY, ids=str)
def test_rotary_attention(results, case):
    name, expected = " ".join(map(str, case[1:])), rotary_case(*case)["expected"]
    for direction, names in (("forward", ("context", "normalizer")), ("backward", ("dqkv",))):
        for result in names:
            made = results[f"rotary {direction} {name}/{result}"]
            np.testing.assert_allclose(made, expected[result], **tolerance())


@pytest.mark.parametrize(("width", "dropout"), RESIDUAL)
def test_layer_norm_of_a_residual_sum(results, width, dropout):
    expected = residual_case(width, dropout)["expected"]
    for name in ("y", "mean", "inverse", *(["total"] if dropout else [])):
        np.testing.assert_allclose(results[f"residual forward {width}/{name}"], expected[name], **tolerance())
    for name in ("dx", *(["dbranch"] if dropout else [])):
        np.testing.assert_allclose(results[f"residual backward {width}/{name}"], expected[name], **tolerance())
    sums = results[f"residual backward {width}/sums"].sum(0)
    np.testing.assert_allclose(sums, expected["sums"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tanh", TANH, ids=["exact", "tanh"])
def test_gelu(results, tanh):
    operands = gelu_operands(tanh)
    x = operands["x"].astype(np.float64) + operands["offset"]
    step = 1e-5
    slope = (reference.gelu(x + step, tanh) - reference.gelu(x - step, tanh)) / (2 * step)
    np.testing.assert_allclose(results[f"gelu {tanh}/dx"], operands["dy"] * slope, **tolerance())
    sums = (operands["dy"] * slope).sum(0)
    np.testing.assert_allclose(results[f"gelu {tanh}/sums"].sum(0), sums, rtol=1e-4, atol=1e-4)


def test_geglu(results):
    operands = geglu_operands()
    inner, gate = np.split(operands["x"].astype(np.float64), 2, 1)
    step, dy = 1e-5, operands["dy"]
    slope = (reference.gelu(inner + step, False) - reference.gelu(inner - step, False)) / (2 * step)
    expected = np.concatenate([dy * gate * slope, dy * reference.gelu(inner, False)], 1)
    np.testing.assert_allclose(results["geglu/dx"], expected, **tolerance())


@pytest.mark.parametrize("width", WIDTHS)
def test_table_gradient(results, width):
    np.testing.assert_allclose(results[f"table {width}/table"], table_case(width)["expected"], **tolerance())
