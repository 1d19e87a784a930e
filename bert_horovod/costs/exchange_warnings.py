"""Warnings about an exchange.method or a wire that saves no time."""

from bert_horovod.costs import buckets
from bert_horovod.costs.buckets import BackwardProfile
from bert_horovod.costs.exchanges import NUMBER_BYTES, Link
from bert_horovod.model.parameters import Shapes
from bert_horovod.recipe.sections import Recipe

# Share of a step: if float16 gradients expose less communication than that, sending fewer bytes cannot pay.
LEAST_GAIN = 0.02


def for_one_rank(recipe: Recipe, world_size: int) -> str:
    """A warning if the recipe's exchange needs several ranks and there is only one; else ""."""
    if world_size > 1 or recipe.exchange.for_one_rank:
        return ""
    method = recipe.exchange.method
    return f"exchange.method = {method!r} with one rank sends nothing: it only changes numbers, and saves no time"


def for_fast_link(
    recipe: Recipe,
    shapes: Shapes,
    profile: BackwardProfile,
    link: Link,
    reduction: str,
    micro_batches: int,
    source: str,
) -> str:
    """A warning if float16 gradients would expose so little communication that sending less cannot pay; else "".

    The profile is a micro-batch's, the link that of this way to sum; `source` says for people where they are from.
    """
    setting = recipe.exchange.sends_less(recipe)
    if not setting:
        return ""
    width = NUMBER_BYTES["float16"]
    plan = buckets.by_profile(shapes, width, profile, link, reduction)
    exposed_s = buckets.seconds(plan, shapes, width, profile, link) - profile.end_s
    step_s = micro_batches * profile.end_s + exposed_s
    if exposed_s >= LEAST_GAIN * step_s:
        return ""
    return (
        f"warning: {setting} saves at most {exposed_s:.2g} s of a step of {step_s:.2g} s on this link ({source}): "
        "gradients with numerics.wire = 'float16' learn more a step"
    )
