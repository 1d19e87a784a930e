"""AdamW: Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv 1711.05101).

    m = b1 m + (1 - b1) g ;  v = b2 v + (1 - b2) g^2 ;  mh = m / (1 - b1^t) ;  vh = v / (1 - b2^t)
    x -= lr (mh / (sqrt(vh) + eps) + wd x)

Google's BERT has no bias correction: with `bias_correction = false`, mh = m and vh = v.
"""

import tensorflow as tf

from bert_horovod.optimizers.base import SLOTS, Rule
from bert_horovod.optimizers.moments import adam_direction, next_moments
from bert_horovod.recipe.sections import Optimizer


def directions(
    x: tf.Tensor, g: tf.Tensor, slots: dict[str, tf.Tensor], t: tf.Tensor, decay: bool, settings: Optimizer
) -> tuple[tf.Tensor, ...]:
    """See `base.Rule`."""
    if settings.bias_correction:
        direction = adam_direction(slots, settings, t)
    else:
        direction = slots["m"] / (tf.sqrt(slots["v"]) + settings.epsilon)
    return (direction + settings.weight_decay * x if decay else direction,)


RULE = Rule("adamw", SLOTS["adamw"], next_moments, directions)
