"""How the loss scale grows and shrinks."""

import numpy as np
import tensorflow as tf

from bert_horovod.optimizers.applying import next_loss_scale, next_loss_scale_on_device


def test_doubles_after_the_stated_number_of_good_steps():
    state = (32768.0, 0)
    seen = []
    for _ in range(6):
        state = next_loss_scale(*state, finite=True, growth_steps=3)
        seen.append(state)
    assert seen == [(32768.0, 1), (32768.0, 2), (65536.0, 0), (65536.0, 1), (65536.0, 2), (131072.0, 0)]


def test_halves_on_a_non_finite_gradient_and_counts_anew():
    assert next_loss_scale(32768.0, 1999, finite=False, growth_steps=2000) == (16384.0, 0)


def test_never_falls_below_one():
    state = (4.0, 5)
    for _ in range(5):
        state = next_loss_scale(*state, finite=False, growth_steps=2000)
    assert state == (1.0, 0)


def test_growth_steps_of_one_doubles_every_time():
    assert next_loss_scale(1.0, 0, finite=True, growth_steps=1) == (2.0, 0)


def test_the_device_counts_as_the_host_does():
    host, device = (4.0, 0), (tf.constant(4.0), tf.constant(0.0))
    for finite in np.random.default_rng(0).random(60) < 0.7:
        host = next_loss_scale(*host, finite=bool(finite), growth_steps=3)
        device = next_loss_scale_on_device(*device, tf.constant(finite), 3)
        assert tuple(float(part) for part in device) == host
