"""Recipe fragments with settings of [execution] alone: `bert-horovod tune` writes them for a machine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from bert_horovod.errors import UserError, file_error
from bert_horovod.recipe.fields import parse_toml, refuse_unknown, section_from_table
from bert_horovod.recipe.sections import Execution
from bert_horovod.storage.reading import read_text, shown

_LIMIT_BYTES = 1 << 16


def tuned_overrides(path: Path | None) -> list[str]:
    """The settings of a fragment as `execution.key=value`, for --set; an empty list if path is None.

    Raises UserError, which names the key, if the file holds anything but settings of [execution].
    """
    if path is None:
        return []
    try:
        table = parse_toml(read_text(path, limit_bytes=_LIMIT_BYTES).removeprefix("\ufeff"))
    except OSError as error:
        raise file_error(error, f"cannot read --tuned {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"--tuned {path} is not valid TOML: {error}") from error
    try:
        refuse_unknown(table, ("execution",), "")
        settings = table.get("execution", {})
        if not isinstance(settings, dict):
            raise UserError(f"execution = {shown(settings)}: expected a table [execution]")
        section_from_table(Execution, settings, "execution")
    except UserError as error:
        raise UserError(
            f"--tuned {path}: {error}. Expected settings of [execution] alone, as bert-horovod tune writes them"
        ) from error
    return execution_overrides(settings)


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
