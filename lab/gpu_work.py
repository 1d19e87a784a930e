"""What the sections of lab/gpu.py share: the recipe of a piece of work, and its rates."""

import statistics
from pathlib import Path
from typing import Any

from bert_horovod.costs.gpus import gpu_peak
from bert_horovod.measuring.configuration import size_recipe, step_flops
from bert_horovod.recipe.sections import Recipe

PROJECT = Path(__file__).resolve().parents[1]


def work_recipe(work: dict[str, Any]) -> Recipe:
    """One micro-batch a step, of a size of measuring.configuration."""
    return size_recipe(work["size"], settings(work), work["rows"], work["length"])


def settings(work: dict[str, Any]) -> list[str]:
    """What a piece of work sets in the recipe, as --set takes it; `rows` are of the global batch."""
    return [
        f"numerics.precision={work['precision']}",
        f"execution.xla={work.get('xla', 'auto')}",
        f"execution.recompute={work.get('recompute', 'none')}",
        f"phase.0.global_batch={work['rows']}",
        *work.get("settings", []),
    ]


def rates(recipe: Recipe, seconds: list[float]) -> dict[str, Any]:
    """Rates of the median step."""
    median = statistics.median(seconds)
    rows, peak = recipe.execution.micro_batch, data_sheet_peak(recipe.numerics.precision)
    rate = step_flops(recipe) / median
    return {
        "step_s": median,
        "fastest_step_s": min(seconds),
        "rows_per_s": rows / median,
        "tokens_per_s": rows * recipe.phase[0].sequence_length / median,
        "flops_per_s": rate,
        "share": rate / peak if peak else None,
    }


def data_sheet_peak(precision: str) -> float | None:
    """The data sheet's rate of this GPU, with TF32 where TensorFlow uses it; None: no GPU, or an unknown one."""
    import tensorflow as tf

    from bert_horovod.runtime.devices import gpu_details

    details = gpu_details()
    tensor_float_32 = tf.config.experimental.tensor_float_32_execution_enabled()
    return gpu_peak(details.get("device_name", ""), precision, tensor_float_32) if details else None
