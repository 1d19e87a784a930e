"""Builds the step of a phase: the plan of its buckets, what each rank kept alone, the step.

Buckets are planned from measured times of backward and of the link between ranks. They also choose the way to sum
gradients over ranks, if the recipe leaves it open.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from bert_horovod.collectives.world import World, from_rank_0
from bert_horovod.costs import buckets
from bert_horovod.costs.buckets import BackwardProfile, BucketPlan, by_size, computed_profile
from bert_horovod.costs.exchange_warnings import for_fast_link
from bert_horovod.costs.exchanges import NUMBER_BYTES, Link, measured_buckets
from bert_horovod.costs.gpus import PRODUCT_SHARE
from bert_horovod.exchange.link_measurement import measure_reduction
from bert_horovod.exchange.owed import OwedLayout
from bert_horovod.exchange.updater import Updater
from bert_horovod.model.gpu_kernels.choice import compute_policy
from bert_horovod.model.parameters import Shapes
from bert_horovod.model.weights import CastWeights
from bert_horovod.optimizers.base import optimizer_slot_shapes
from bert_horovod.recipe.sections import Recipe, reductions
from bert_horovod.runs.checkpoint import path_of
from bert_horovod.runs.rank_parts import restore, restore_copies
from bert_horovod.runs.state import TrainingState
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.xla import clock
from bert_horovod.tasks.base import Task
from bert_horovod.training.agreement import agree_on_products
from bert_horovod.training.inputs import StepBatch
from bert_horovod.training.run import Run
from bert_horovod.training.step import TrainStep
from bert_horovod.training.step_results import StepInputs
from bert_horovod.wording import megabytes

_MEASURED = 2  # micro-batches that are measured, after one that compiles


@dataclasses.dataclass(frozen=True)
class Expectation:
    """The predicted times of a plan; equal on all ranks."""

    plan: BucketPlan
    profile: BackwardProfile
    link: Link
    bucket_bytes: list[float]  # payload of each bucket
    exposed_s: float  # predicted exposure: seconds of a step's communication that backward does not hide
    floor_s: float  # seconds that no plan can hide: all-reduces of gradients that are final only when backward ends
    others: tuple[Expectation, ...] = ()  # expectations of other ways to sum, which should take longer

    def describe(self, wire_bytes: float) -> str:
        """A line for people."""
        rows = f" and the looked-up rows of {self.plan.rows}" if self.plan.rows else ""
        other_ways = "".join(
            f" ({expectation.plan.reduction}: {expectation.exposed_s:.3f} s)" for expectation in self.others
        )
        return (
            f"sums by {self.plan.reduction}: buckets of "
            f"{' + '.join(f'{size / 1e6:.1f}' for size in self.bucket_bytes)} MB{rows}, "
            f"{megabytes(wire_bytes)} sent by a rank; "
            f"link: {1e3 * self.link.latency_s:.1f} ms + {1e9 * self.link.s_per_byte:.2f} ns a byte; "
            f"backward ends after {self.profile.end_s:.3f} s; expected wait {self.exposed_s:.3f} s a step{other_ways}, "
            f"of which {self.floor_s:.3f} s come after backward in any plan"
        )


def expect(
    plan: BucketPlan, shapes: dict[str, tuple[int, ...]], wire: str, profile: BackwardProfile, link: Link
) -> Expectation:
    """Predict the times of a plan from a measured backward and a measured link."""
    width = NUMBER_BYTES[wire]
    exposed = buckets.seconds(plan, shapes, width, profile, link) - profile.end_s
    late = [link.seconds(buckets.rows_bytes(table, shapes, width, profile)) for table in profile.rows]
    sizes = [width * sum(math.prod(shapes[name]) for name in bucket) for bucket in plan.buckets]
    return Expectation(plan, profile, link, sizes, exposed, sum(late))


def build_step(
    recipe: Recipe, task: Task, state: TrainingState, world: World, plan: BucketPlan, micro_batches: int, **options: Any
) -> TrainStep:
    """A step with the recipe's exchange and cast weights; `options` go to the exchange.

    The recipe's model must have the depth of the state's (Recipe.in_phase).
    """
    policy = compute_policy(recipe)
    trained = state
    if recipe.exchange.trains_copies:
        trained = state.copy_to_train(optimizer_slot_shapes(recipe, state.shapes))
    cast = CastWeights(trained.parameters, policy.dtype)
    fused, at_once = policy.xla != "off", policy.xla == "layers"
    updater = Updater(trained.trained, trained.slots, cast, recipe.optimizer, fused, at_once)
    updater.rule = recipe.optimizer.rule_in(state.progress.products or "float32")
    exchange = recipe.exchange.code(recipe, world, state, updater, plan, **options)
    return TrainStep(recipe, task, trained, exchange, cast, world, micro_batches)


def build_phase_step(run: Run, batch: StepBatch, inputs: StepInputs) -> TrainStep:
    """Build the step of the run's phase, whose exchange is the run's from now on, by the plan that the progress keeps.

    A resumed run has the same plan. All ranks call it together, with the phase's first rows.
    """
    recipe, state, world, phase = run.phase.recipe, run.state, run.world, run.phase
    if run.exchange is not None:  # of the phase before: what its ranks owe is dropped
        run.exchange.to_progress()
        if not recipe.exchange.trains_copies:
            state.per_rank.clear()
    if about_products := agree_on_products(recipe, state.progress, world):
        run.say(about_products)
    made_for = {
        "phase": phase.number,
        "world_size": world.size,
        "inside": world.join_hosts().inside.size,
        "bucket_bytes": recipe.execution.bucket_bytes,
        "wire": recipe.numerics.wire,
        "reduction": recipe.execution.reduction,
    }
    resumed = state.progress.plan.get("made_for") == made_for
    plan, expectation = _plan_of(run, batch, inputs, resumed)
    _restore_own(run, plan)
    step = build_step(recipe, run.task, state, world, plan, phase.micro_batches)
    # The exchange's plan: the exchange may sum in another way than a plan by size says.
    state.progress.plan = {"made_for": made_for, **dataclasses.asdict(step.exchange.plan)}
    run.exchange = step.exchange
    run.exchange.begin(phase.begin + 1, phase.begin + phase.settings.steps)
    if expectation:
        run.say(expectation.describe(run.exchange.wire_bytes(sum(expectation.profile.rows.values()))))
    elif world.size > 1:
        by = run.exchange.plan.reduction
        run.say(f"sums by {by}: {len(plan.buckets)} bucket(s), {run.exchange.bytes_reduced():,.0f} bytes a step")
    if not resumed and (warning := fast_link_warning(run, state.shapes, expectation)):
        run.say(warning)
    return step


def _plan_of(run: Run, batch: StepBatch, inputs: StepInputs, resumed: bool) -> tuple[BucketPlan, Expectation | None]:
    """The plan of the run's buckets, as execution.bucket_bytes says, with its measurements if it was measured now."""
    recipe, state, world = run.phase.recipe, run.state, run.world
    by_bytes = by_size(state.shapes, recipe.execution.bucket_bytes)
    if not plan_is_measured(recipe, world):
        return by_bytes, None
    if resumed:
        before = state.progress.plan
        return BucketPlan(before["buckets"], before["rows"], before["reduction"]), None
    step = build_step(recipe, run.task, state, world, by_bytes, 1)
    expectation = plan_by_measurement(recipe, step, batch.micro_batches[-1], inputs, world)
    return expectation.plan, expectation


def _restore_own(run: Run, plan: BucketPlan) -> None:
    """Give the state what this rank kept alone in the checkpoint; the exchange takes it (TrainingState.own)."""
    state, world, before, copies = run.state, run.world, run.state.progress.plan, run.recipe.exchange.trains_copies
    same_phase = before.get("made_for", {}).get("phase") == run.phase.number
    if not state.progress.ranks_with_parts or not (same_phase or copies) or state.per_rank:
        return
    saved = OwedLayout(before["made_for"]["world_size"], before["made_for"]["inside"], before["buckets"])
    checkpoint = path_of(run.job.output_dir, state.progress.step)
    if copies:
        state.restored = restore_copies(checkpoint, saved.ranks, world)
    else:
        layout = OwedLayout(world.size, world.join_hosts().inside.size, plan.buckets)
        state.restored = restore(checkpoint, saved, layout, state.shapes, world)
    if saved.ranks != world.size:
        begin = "each begins with the mean of what they kept" if copies else "what they owed is shared out anew"
        run.say(
            f"{saved.ranks} ranks saved this run, now there are {world.size}: {begin}; with this exchange the "
            "number of ranks changes later losses more than by rounding"
        )


def plan_is_measured(recipe: Recipe, world: World) -> bool:
    """Whether a measurement decides the buckets, not their size alone."""
    return world.size > 1 and measured_buckets(recipe)


def fast_link_warning(run: Run, shapes: Shapes, expectation: Expectation | None) -> str:
    """A warning if an exchange that sends less than float16 gradients saves no time in the open phase; else "".

    All ranks call it together. Without an expectation it measures the link, in about a second at most, and estimates
    the computation from the device's peak; if the peak is unknown, it returns "".
    """
    recipe, world, phase = run.phase.recipe, run.world, run.phase
    if world.size == 1 or not recipe.exchange.sends_less(recipe):
        return ""
    if expectation is not None:
        profile, link, reduction = expectation.profile, expectation.link, expectation.plan.reduction
        return for_fast_link(
            recipe, shapes, profile, link, reduction, phase.micro_batches, "link and backward measured"
        )
    peak = from_rank_0(run.peak_flops_per_s, world, "peak")
    if peak is None:
        return ""
    rate, settings = PRODUCT_SHARE * peak / world.size, phase.settings
    profile = computed_profile(recipe, settings, world.size, rate)
    # The profile is of pre-training. Other heads get the end of forward, because backward begins with the heads.
    ready_s = {name: profile.ready_s.get(name, profile.forward_s) for name in shapes}
    profile = dataclasses.replace(profile, ready_s=ready_s)
    payload_bytes = int(NUMBER_BYTES["float16"] * sum(map(math.prod, shapes.values())))
    link = measure_reduction(world, "float16", "ring", payload_bytes)
    source = "link measured, computation estimated"
    return for_fast_link(recipe, shapes, profile, link, "ring", phase.micro_batches, source)


def plan_by_measurement(
    recipe: Recipe, step: TrainStep, batch: dict[str, np.ndarray], inputs: StepInputs, world: World
) -> Expectation:
    """Measure the link and backward, and make the plan that the recipe asks for; see costs.exchanges.measured_buckets.

    All ranks use rank 0's times. Returns the expectation of the best plan.
    """
    wire = recipe.numerics.wire
    profile = measure_profile(step, batch, inputs, world)
    expected = []
    for reduction in reductions(recipe):
        link = measure_reduction(world, wire, reduction)
        if measured_buckets(recipe):
            rows_alone = recipe.exchange.rows_alone(recipe)
            plan = buckets.by_profile(step.shapes, NUMBER_BYTES[wire], profile, link, reduction, rows_alone)
        else:
            plan = dataclasses.replace(by_size(step.shapes, recipe.execution.bucket_bytes), reduction=reduction)
        expected.append(expect(plan, step.shapes, wire, profile, link))
    best, *slower = sorted(expected, key=lambda expectation: expectation.exposed_s)
    return dataclasses.replace(best, others=tuple(slower))


def measure_profile(step: TrainStep, batch: dict[str, np.ndarray], inputs: StepInputs, world: World) -> BackwardProfile:
    """Run forward and backward of a micro-batch with a clock at each gradient; returns rank 0's times on every rank.

    No parameter is updated. `rows` counts the rows of each table that any rank looked up in its own `batch`.
    """
    names = list(step.shapes)

    def timed(batch: dict[str, tf.Tensor], inputs: StepInputs) -> tuple[tf.Tensor, tf.Tensor, dict[str, tf.Tensor]]:
        begin = clock([batch["input_ids"]])
        gradients, lookups, sums = step.forward_backward(batch, tf.constant(0, tf.uint64), inputs)
        # Each clock reads a number of its gradient, and the function returns it: Grappler removes unused computations.
        first_numbers = [tf.cast(tf.reshape(gradients[name], [-1])[0], tf.float32) for name in names]
        first_numbers += [tf.cast(tf.reshape(part.values, [-1])[0], tf.float32) for part in lookups.values()]
        ready = [clock([number]) for number in [sums, *first_numbers]]
        ids = {name: part.indices for name, part in lookups.items()}
        return tf.stack(ready) - begin, tf.add_n(first_numbers), ids

    function = tf.function(timed, autograph=False)
    function(batch, inputs)  # compiles
    runs = []
    for _ in range(_MEASURED):
        times, _, lookups = function(batch, inputs)
        runs.append(times.numpy())
    times = min(runs, key=max)  # the fastest run: other processes disturbed it least
    rows = {}
    for name, ids in lookups.items():
        looked_up = np.zeros(step.shapes[name][0], np.uint8)
        looked_up[ids.numpy().reshape(-1)] = 1
        rows[name] = int(world.all_reduce_max(tf.constant(looked_up), "touched.profile").numpy().sum())
    forward, *ready = times.tolist()
    ready_s = dict(zip(names, ready, strict=False))  # the times of looked-up rows come after these
    profile = {"forward_s": forward, "ready_s": ready_s, "end_s": max(ready), "rows": rows}
    return BackwardProfile(**from_rank_0(profile, world, "profile"))
