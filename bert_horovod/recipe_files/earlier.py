"""Recipes of earlier versions: settings that there are no longer, and those that have moved."""

from typing import Any

from bert_horovod.recipe.fields import Removed
from bert_horovod.recipe.methods_found import ROOM

_NOT_HERE = f"it is of an experiment, in {ROOM}, which this installation lacks"
_TRACED = Removed([], "trace a step with `bert-horovod bench step --trace DIR`")
# Settings that there are no longer, by section and key. Those of experiments, which earlier runs list too, count only
# where their folder is gone.
REMOVED: dict[str, dict[str, Removed]] = {
    "optimizer": {
        "decay_power": Removed(1.0, "set phase.N.decay_power"),
        "beta_3": Removed(0.9999, _NOT_HERE),
        "polynomial": Removed("jordan", "leave it out: Newton-Schulz steps are Jordan's"),
    },
    "execution": {
        "fusion_bytes": Removed(0, "set the variable HOROVOD_FUSION_THRESHOLD (sums then depend on timing)"),
        "cycle_time_ms": Removed(1.0, "set the variable HOROVOD_CYCLE_TIME"),
        "hierarchical_allreduce": Removed(False, "set the variable HOROVOD_HIERARCHICAL_ALLREDUCE=1"),
        "autotune": Removed(False, "bert-horovod tune chooses settings by measuring"),
        "keep_every_hours": Removed(0.0, "keep more of the newest with execution.keep_checkpoints"),
        "profile_steps": _TRACED,
        "timeline": _TRACED,
        "checkpoint_step_0": Removed(False, "leave it out: the first checkpoint is that of execution.checkpoint_steps"),
        "layer_norms": Removed(False, "leave it out: gradient_norm is of the whole model"),
        "max_unsaved_hours": Removed(6.0, "leave it out: a run ends after 6 hours without a new checkpoint"),
    },
    "numerics": {
        "initial_loss_scale": Removed(32768.0, "leave it out: the first step's loss scale is 32,768"),
        "loss_scale_growth_steps": Removed(2000, "leave it out: 2,000 good steps double the loss scale"),
        "max_skipped_steps": Removed(50, "leave it out: 50 skipped updates in a row count as divergence"),
    },
    "exchange": {
        "encoding": Removed("signs", "leave it out: compressed momenta are sent as signs"),
        "form": Removed("normalized", "leave it out: the update is sent, with a scale a tensor"),
        "smallest_ratio": Removed(0.01, "leave it out: trust ratios of onebit_lamb are at least 0.01"),
        "largest_ratio": Removed(10.0, "leave it out: trust ratios of onebit_lamb are at most 10"),
        "error_feedback": Removed(True, "leave it out: rounding errors of the int8 wire are sent later"),
        "fraction": Removed(0.1, "leave it out: a tenth of the chunks is sent"),
        "chunk": Removed(256, "leave it out: a chunk has 256 numbers"),
        "mixing": Removed(0.5, "leave it out: with a delay, a rank keeps half of its own numbers"),
        "words_rank": Removed(0, "leave it out: word embeddings have exchange.rank"),
        **{key: Removed(0, "set exchange.interval") for key in ("momentum_interval", "second_moment_interval")},
        "slow_beta": Removed(0.99, "leave it out: the slow momentum's decay is 0.99"),
        "slow_weight": Removed(0.9, "leave it out: the slow momentum's weight is 0.9"),
        "variance_updates": Removed(16, _NOT_HERE),
        "full_interval": Removed(100, _NOT_HERE),
    },
}

# Settings of [objective] that are those of [finetuning] now, with their defaults, and the head that each of them means.
MOVED: dict[str, tuple[Any, str]] = {
    "class_weights": ("none", ""),
    "heads": (1, "multiverse"),
    "orthogonality": (1.0, ""),
    "elimination": (0.005, ""),
    "label_attention": (0, "label_attention"),
}


def name_now(key: str) -> str:
    """The name in [finetuning] of a setting that was one of [objective]."""
    return "windows" if key == "label_attention" else key


def as_now(table: dict[str, Any]) -> dict[str, Any]:
    """The table of an earlier recipe with settings where they are now; of fine-tuning's, those that are no defaults."""
    table = _with_tensorboard(table)
    objective, now = table.get("objective"), table.get("finetuning", {})
    if not isinstance(objective, dict) or not isinstance(now, dict) or not MOVED.keys() & objective.keys():
        return table
    # A default of another type, as in heads = true, is moved too, and then refused there.
    kept = {key: value for key, value in objective.items() if key not in MOVED}
    moved = {
        key: objective[key]
        for key, (usual, _) in MOVED.items()
        if key in objective and (type(objective[key]), objective[key]) != (type(usual), usual)
    }
    settings = {name_now(key): value for key, value in moved.items()}
    if heads := [MOVED[key][1] for key in moved if MOVED[key][1]]:
        settings["head"] = heads[0]
    return table | {"objective": kept, "finetuning": settings | now}


def _with_tensorboard(table: dict[str, Any]) -> dict[str, Any]:
    """The table of an earlier recipe, in which TensorBoard was a setting of its own, with it among the trackers."""
    execution: Any = table.get("execution")
    trackers = isinstance(execution, dict) and execution.get("trackers", [])
    if not isinstance(trackers, list) or not isinstance(execution.get("tensorboard"), bool):
        return table
    kept = {key: value for key, value in execution.items() if key != "tensorboard"}
    named = ["tensorboard"] * execution["tensorboard"] + [name for name in trackers if name != "tensorboard"]
    return table | {"execution": kept | {"trackers": named}}
