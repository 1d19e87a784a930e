"""Recipe fragments with settings of [execution] alone: `bert-horovod tune` writes them for a machine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from bert_horovod.errors import UserError
from bert_horovod.recipe.fields import read_toml, sections_from_table
from bert_horovod.recipe.sections import Execution
from bert_horovod.recipe_files.loading import REMOVED


def tuned_overrides(path: Path | None) -> list[str]:
    """The settings of a fragment as `execution.key=value`, for --set; an empty list if path is None.

    Raises UserError, which names the key, if the file holds anything but settings of [execution].
    """
    if path is None:
        return []
    table = read_toml(path, "--tuned")
    try:
        sections_from_table({"execution": Execution}, table, REMOVED)
    except UserError as error:
        raise UserError(
            f"--tuned {path}: {error}. Expected settings of [execution] alone, as bert-horovod tune writes them"
        ) from error
    return execution_overrides(table.get("execution", {}))


def execution_overrides(settings: Mapping[str, Any]) -> list[str]:
    """Settings of [execution] as `execution.key=value`, for --set."""
    return [f"execution.{key}={_value(value)}" for key, value in settings.items()]


def fragment(settings: Mapping[str, Any], comments: list[str]) -> str:
    """The text of a fragment: comments, one a line, and settings of [execution]."""
    return "".join(f"# {line}\n" for line in comments) + tomli_w.dumps({"execution": dict(settings)})


def _value(value: Any) -> str:
    """A value as TOML writes it in one line."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return tomli_w.dumps({"value": value}).partition(" = ")[2].strip()
