"""Each update rule against a plain NumPy float64 transcription of its formula."""

import functools
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.model.parameters import decays
from bert_horovod.optimizers import loss_scale
from bert_horovod.optimizers.applying import clip_factor, update
from bert_horovod.optimizers.base import Rule, slot_shapes
from bert_horovod.optimizers.loss_scale import next_loss_scale, next_loss_scale_on_device
from bert_horovod.optimizers.rules import RULES
from tests.toys import more_rows, optimizer_of, recipe_of

STEPS = 25
SHAPES = {
    "dense.weight": (6, 5),
    "dense.bias": (6,),
    "LayerNorm.weight": (5,),
    "no_gradient.weight": (4, 3),
    "no_gradient.bias": (4,),
    "zero_parameter.weight": (3, 4),
    "zero_parameter.bias": (7,),
    "all_zero.weight": (2, 2),
    "holes.weight": (5, 4),  # parameter and gradient have a row and a column of zeros each
}


def norm(values):
    return np.sqrt(np.sum(values * values))


def ratio(x, direction):
    return norm(x) / norm(direction) if norm(x) > 0 and norm(direction) > 0 else 1.0


def numpy_adamw(x, g, m, v, t, rate, decay, settings):
    b1, b2 = settings.beta_1, settings.beta_2
    wd = settings.weight_decay if decay else 0.0
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g**2
    mh, vh = (m / (1 - b1**t), v / (1 - b2**t)) if settings.bias_correction else (m, v)
    return x - rate * (mh / (np.sqrt(vh) + settings.epsilon) + wd * x), m, v


def numpy_stable_adamw(x, g, m, v, t, rate, decay, settings):
    m = settings.beta_1 * m + (1 - settings.beta_1) * g
    v = settings.beta_2 * v + (1 - settings.beta_2) * g**2
    mh, vh = m / (1 - settings.beta_1**t), v / (1 - settings.beta_2**t)
    rms = np.sqrt(np.mean(g**2 / np.maximum(vh, settings.epsilon**2)))
    rate = rate / max(1.0, rms)
    if decay:
        x = x - rate * settings.weight_decay * x
    return x - rate * mh / (np.sqrt(vh) + settings.epsilon), m, v


def numpy_muon(x, g, m, v, t, rate, decay, settings):
    """For parameters that are no matrices of layers; test_muon.py has these."""
    adamw = optimizer_of("adamw", epsilon=settings.epsilon, weight_decay=settings.weight_decay)
    return numpy_adamw(x, g, m, v, t, rate * settings.adamw_rate, decay, adamw)


def numpy_lamb(x, g, m, v, t, rate, decay, settings):
    b1, b2 = settings.beta_1, settings.beta_2
    wd = settings.weight_decay if decay else 0.0
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g**2
    u = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + settings.epsilon) + wd * x
    trust = ratio(x, u) if settings.adapt == "all" or decay else 1.0
    return x - rate * trust * u, m, v


def numpy_lans(x, g, m, v, t, rate, decay, settings):
    b1, b2 = settings.beta_1, settings.beta_2
    wd = settings.weight_decay if decay else 0.0
    if norm(g) > 0:
        g = g / (norm(g) + settings.epsilon)
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g**2
    den = np.sqrt(v / (1 - b2**t)) + settings.epsilon
    r = m / (1 - b1**t) / den + wd * x
    c = g / den + wd * x
    return x - rate * (b1 * ratio(x, r) * r + (1 - b1) * ratio(x, c) * c), m, v


def numpy_sgd(x, g, m, v, t, rate, decay, settings):
    return x - rate * (g + settings.weight_decay * x if decay else g), m, v


NUMPY_RULES = {
    "adamw": numpy_adamw,
    "stable_adamw": numpy_stable_adamw,
    "muon": numpy_muon,
    "lamb": numpy_lamb,
    "lans": numpy_lans,
    "sgd": numpy_sgd,
    **more_rows("rules.NUMPY_RULES"),
}


def initial_parameters():
    generator = np.random.default_rng(1)
    zero = ("zero_parameter", "all_zero")
    parameters = {
        name: np.zeros(shape, np.float32) if name.startswith(zero) else generator.normal(size=shape).astype(np.float32)
        for name, shape in SHAPES.items()
    }
    parameters["holes.weight"][1] = parameters["holes.weight"][:, 2] = 0
    return parameters


def gradients_of_step(t):
    generator = np.random.default_rng(100 + t)
    zero = ("no_gradient", "all_zero")
    gradients = {
        name: np.zeros(shape, np.float32)
        if name.startswith(zero) or (name == "dense.bias" and t == 1)  # a gradient that is zero at first
        else generator.normal(size=shape).astype(np.float32)
        for name, shape in SHAPES.items()
    }
    gradients["holes.weight"][3] = gradients["holes.weight"][:, 0] = 0
    return gradients


def rate_of_step(t):
    return float(np.float32(0.02 / t))


def run_numpy(settings, clipping, steps=STEPS):
    """Parameters after the last step, all in float64; clipping by the global norm is written out here."""
    formula = NUMPY_RULES[settings.name]
    parameters = {name: x.astype(np.float64) for name, x in initial_parameters().items()}
    moments = {name: (np.zeros(shape), np.zeros(shape)) for name, shape in SHAPES.items()}
    for t in range(1, steps + 1):
        gradients = {name: g.astype(np.float64) for name, g in gradients_of_step(t).items()}
        divisor = 1.0
        if clipping:
            divisor = max(1.0, np.sqrt(sum(np.sum(g * g) for g in gradients.values())) / settings.max_grad_norm)
        for name, x in parameters.items():
            decay = name.endswith(".weight") and "LayerNorm" not in name
            x, m, v = formula(x, gradients[name] / divisor, *moments[name], t, rate_of_step(t), decay, settings)
            parameters[name], moments[name] = x, (m, v)
    return parameters


@functools.cache  # tracing is what takes the time
def run_tensorflow(settings, steps=STEPS, xla=False):
    """Parameters after the last step, as the training step would compute them."""
    chosen = settings.rule

    @tf.function
    def step(parameters, slots, gradients, t, rate):
        factor = tf.constant(1.0)
        if chosen.clips:
            factor = clip_factor(tf.linalg.global_norm(list(gradients.values())), settings.max_grad_norm)
        updated = {}
        for name, x in parameters.items():
            old = {slot: value[None] for slot, value in slots[name].items()}
            decay = decays(name)
            updated[name] = update(
                chosen, x[None], gradients[name][None], old, t, rate, factor, decay, settings, tf.float32, xla
            )
        new_slots = {name: {slot: value[0] for slot, value in new[2].items()} for name, new in updated.items()}
        return {name: new[0][0] for name, new in updated.items()}, new_slots

    parameters = {name: tf.constant(x) for name, x in initial_parameters().items()}
    slots = {name: {} for name in SHAPES}
    for slot, shapes in slot_shapes(recipe_of(optimizer=settings), SHAPES).items():
        for name, shape in shapes.items():
            slots[name][slot] = tf.zeros(shape)
    for t in range(1, steps + 1):
        gradients = {name: tf.constant(g) for name, g in gradients_of_step(t).items()}
        parameters, slots = step(parameters, slots, gradients, tf.constant(float(t)), tf.constant(rate_of_step(t)))
    return {name: x.numpy() for name, x in parameters.items()}


def close(found, expected, tolerance=1e-5):
    return all(
        np.allclose(found[name], expected[name], rtol=tolerance, atol=tolerance * np.abs(expected[name]).max())
        for name in expected
    )


OTHER_SETTINGS = [
    optimizer_of("adamw", bias_correction=False),
    optimizer_of("adamw", weight_decay=0.0, max_grad_norm=0.0),
    optimizer_of("adamw", beta_1=0.0, beta_2=0.98, epsilon=1e-8, weight_decay=0.3),
    optimizer_of("stable_adamw", beta_2=0.9, max_grad_norm=0.0, weight_decay=0.3, epsilon=1e-3),
    optimizer_of("muon", adamw_rate=0.3),
    optimizer_of("lamb", adapt="decayed"),
    optimizer_of("lamb", max_grad_norm=0.0, weight_decay=0.3),
    optimizer_of("lans", weight_decay=0.0),
    optimizer_of("lans", beta_1=0.8, weight_decay=0.3),
    optimizer_of("sgd", max_grad_norm=0.0, weight_decay=0.3),
    *more_rows("rules.OTHER_SETTINGS"),
]


@pytest.mark.parametrize(
    "settings",
    [
        *(optimizer_of(name) for name in NUMPY_RULES),
        *(pytest.param(each, marks=pytest.mark.full) for each in OTHER_SETTINGS),
    ],
    ids=str,
)
def test_rule_follows_its_formula(settings):
    expected = run_numpy(settings, clipping=settings.name != "lans" and settings.max_grad_norm > 0)
    computed = run_tensorflow(settings)
    for name, x in expected.items():
        assert computed[name].dtype == np.float32
        np.testing.assert_allclose(computed[name], x, rtol=1e-5, atol=1e-5 * np.abs(x).max(), err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NUMPY_RULES))
def test_rule_is_the_same_under_xla(name):
    settings = optimizer_of(name)
    assert close(run_tensorflow(settings, steps=3, xla=True), run_tensorflow(settings, steps=3))


@pytest.mark.parametrize("name", sorted(NUMPY_RULES))
def test_first_step_is_exact_to_rounding(name):
    """At t = 1 a bias correction in float32 would be wrong by 3e-5."""
    settings = optimizer_of(name, epsilon=1e-12)
    computed, expected = run_tensorflow(settings, steps=1), run_numpy(settings, name != "lans", steps=1)
    assert close(computed, expected, 1e-6)


@pytest.mark.parametrize("name", sorted(NUMPY_RULES))
def test_tensors_without_gradient_or_parameter_stay_finite(name):
    parameters = run_tensorflow(optimizer_of(name))
    assert all(np.isfinite(x).all() for x in parameters.values())
    np.testing.assert_array_equal(parameters["all_zero.weight"], 0)
    np.testing.assert_array_equal(parameters["no_gradient.bias"], initial_parameters()["no_gradient.bias"])
    assert np.abs(parameters["no_gradient.weight"]).sum() < np.abs(initial_parameters()["no_gradient.weight"]).sum()
    assert np.abs(parameters["zero_parameter.weight"]).min() > 0


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("name", ["adamw", "stable_adamw", "lamb", "lans", *more_rows("rules.OF_M_AND_V")])
def test_tensors_updated_together_are_updated_as_alone(name, xla):
    random = np.random.default_rng(0)
    x, g, m = (tf.constant(random.normal(size=(3, 4, 5)), tf.float32) for _ in range(3))
    g *= tf.constant([0.0, 1.0, 100.0])[:, None, None]
    slots, one = {"m": m, "v": tf.square(m)}, tf.constant(1.0)
    settings = optimizer_of(name)
    together, _, moments = update(RULES[name].rule, x, g, slots, one, one, 0.5 * one, True, settings, tf.float32, xla)
    for i in range(3):
        mine = {slot: value[i : i + 1] for slot, value in slots.items()}
        alone, _, moment = update(
            RULES[name].rule, x[i : i + 1], g[i : i + 1], mine, one, one, 0.5 * one, True, settings, tf.float32, xla
        )
        np.testing.assert_allclose(together[i], alone[0], rtol=1e-5)
        np.testing.assert_allclose(moments["m"][i], moment["m"][0], rtol=1e-5)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_a_narrow_gradient_is_taken_as_what_it_is_in_float32(dtype):
    x = tf.constant(np.random.default_rng(0).normal(size=(1, 4, 5)), tf.float32)
    narrow, one, slots = tf.cast(2 * x, dtype), tf.constant(1.0), {"m": tf.zeros_like(x), "v": tf.zeros_like(x)}
    settings = optimizer_of("lans")
    updated, cast, _ = update(RULES["lans"].rule, x, narrow, slots, one, one, one, True, settings, dtype)
    expected, same, _ = update(
        RULES["lans"].rule, x, tf.cast(narrow, tf.float32), slots, one, one, one, True, settings, tf.float32
    )
    np.testing.assert_array_equal(updated, expected)
    np.testing.assert_array_equal(same, expected)
    assert cast.dtype == dtype
    np.testing.assert_array_equal(tf.cast(cast, tf.float32), tf.cast(tf.cast(expected, dtype), tf.float32))


@pytest.mark.parametrize(
    ("global_norm", "max_grad_norm", "expected"),
    [(0.5, 1.0, 1.0), (1.0, 1.0, 1.0), (4.0, 1.0, 0.25), (4.0, 2.0, 0.5), (0.0, 1.0, 1.0), (1e6, 0.0, 1.0)],
)
def test_clip_factor(global_norm, max_grad_norm, expected):
    factor = clip_factor(tf.constant(global_norm), max_grad_norm)
    assert factor.dtype == tf.float32
    assert float(factor) == expected


def test_every_rule_is_compared_with_numpy_and_has_its_own_slots():
    assert set(RULES) == set(NUMPY_RULES)
    assert all(RULES[name].rule.slots == RULES[name].slots for name in RULES)
    assert {name for name in RULES if not RULES[name].rule.clips} == {"lans"}


def sign_momentum(adaptive: bool) -> Rule:
    """A rule with other slots than Adam's: the gradients' sum and their largest magnitude; a ratio if adaptive."""

    def next_slots(g, slots, settings):
        return {"sum": slots["sum"] + g, "largest": tf.maximum(slots["largest"], tf.abs(g))}

    def directions(x, g, slots, t, decay, settings):
        return (slots["sum"] / (slots["largest"] + settings.epsilon), tf.sign(g))

    def rates(learning_rate, norms, decay, settings):
        return (learning_rate * norms[0] / norms[1] if adaptive else learning_rate, 0.5 * learning_rate)

    return Rule("sign_momentum", ("sum", "largest"), next_slots, directions, rates, adaptive=adaptive)


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("adaptive", [False, True])
def test_a_rule_with_slots_of_its_own_goes_through_update(adaptive, xla):
    random = np.random.default_rng(0)
    x, *gradients = (random.normal(size=(2, 3, 4)).astype(np.float32) for _ in range(4))
    settings, one = optimizer_of(epsilon=0.1), tf.constant(1.0)
    tensor, slots = tf.constant(x), {slot: tf.zeros(x.shape) for slot in ("sum", "largest")}
    expected, total, largest = x.astype(np.float64), np.zeros(x.shape), np.zeros(x.shape)
    for g in gradients:
        tensor, _, slots = update(
            sign_momentum(adaptive), tensor, tf.constant(g), slots, one, 0.1 * one, one, True, settings, tf.float32, xla
        )
        total, largest = total + g, np.maximum(largest, np.abs(g))
        direction = total / (largest + 0.1)
        ratios = np.array([norm(each) / norm(along) for each, along in zip(expected, direction, strict=True)])
        expected = expected - (0.1 * ratios[:, None, None] if adaptive else 0.1) * direction - 0.05 * np.sign(g)
        assert set(slots) == {"sum", "largest"}
        np.testing.assert_allclose(slots["sum"], total, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tensor, expected, rtol=1e-5, atol=1e-6)


def test_what_a_rule_is_and_its_slots_are_known_without_tensorflow():
    code = "import sys, bert_horovod.optimizers.rules; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("state", "finite", "states"),
    [
        ((32768.0, 1997), True, [(32768.0, 1998), (32768.0, 1999), (65536.0, 0), (65536.0, 1)]),
        ((32768.0, 1999), False, [(16384.0, 0), (8192.0, 0)]),
        ((4.0, 5), False, [(2.0, 0), (1.0, 0), (1.0, 0)]),
    ],
)
def test_a_loss_scale_doubles_after_good_steps_and_halves_down_to_1(state, finite, states):
    for expected in states:
        state = next_loss_scale(*state, finite)
        assert state == expected


def test_the_device_counts_as_the_host_does(monkeypatch):
    monkeypatch.setattr(loss_scale, "GROWTH_STEPS", 3)
    host, device = (4.0, 0), (tf.constant(4.0), tf.constant(0.0))
    for finite in np.random.default_rng(0).random(60) < 0.7:
        host = next_loss_scale(*host, bool(finite))
        device = next_loss_scale_on_device(*device, tf.constant(finite))
        assert tuple(float(part) for part in device) == host
