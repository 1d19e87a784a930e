"""What a run leaves behind, without running one."""

import json
import math
from pathlib import Path
from typing import Any

from bert_horovod.recipe_files.loading import recipe_from_table, recipe_to_toml
from tests.toys import toy_recipe_table

STARTED = 1.8e9  # seconds since the epoch


def write_run(
    directory: Path, sections: dict[str, dict[str, Any]] | None = None, steps: int = 100, odd_metric: bool = False
) -> Path:
    """A pre-training of 100 steps that has done so many, a line every second, with a pause of an hour after step 30."""
    directory.mkdir(exist_ok=True)
    sections = sections or {}
    sections = sections | {"phase": {"steps": 100} | sections.get("phase", {})}
    recipe = recipe_from_table(toy_recipe_table(**sections))
    (directory / "recipe.toml").write_text(recipe_to_toml(recipe), encoding="utf-8")
    (directory / "run.json").write_text('{"store": "x", "format": 1}\n', encoding="utf-8")
    lines = []
    for step in (1, *range(2, steps + 1, 2)):
        loss = 4 + 6 * math.exp(-step / 30)
        line = {
            "step": step,
            "phase": 0,
            "epoch": 0,
            "loss": loss,
            "mlm_loss": loss,
            "learning_rate": 1e-3 * (1 - step / 101),
            "gradient_norm": 1.0 + step % 3,
            "loss_scale": 1.0,
            "skipped_steps": 0,
            "rows_per_s": 64.0,
            "tokens_per_s": 2000.0,
            "flops_per_s": 1e10,
            "flops_share": None,
            "step_s": 30.0 if step == 1 else 0.5,
            "input_wait_s": 0.01,
            "reduce_wait_s": 0.02,
            "saving_s": 0.1 * (step % 20 == 0),
            "bytes_reduced": 1e6,
            "wire_bytes": 1e6,
            "memory_bytes": 2**30 + step,
            "time": STARTED + 0.5 * step + 3600 * (step > 30),
        }
        lines.append(line | ({"odd_metric": step**2} if odd_metric else {}))
        if step % 20 == 0:
            lines.append({"step": step, "held_out_mlm_loss": loss + 0.1})
    if steps > 50:
        lines.append({"step": 50, "incident": "the loss is not a number: <b>rank 1</b>"})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (directory / "metrics.jsonl").write_text(text + '{"step": 9', encoding="utf-8")  # a line that is being written
    return directory
