"""The flags of every command with their defaults, which lie in flags.json beside this file.

    python -m tests.golden.flags --renew      writes flags.json anew

Other people's scripts depend on these: flags are added, never renamed or taken away.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from bert_horovod import commands
from bert_horovod.commands import bench
from bert_horovod.commands.shared.parser import command_names

FILE = Path(__file__).with_name("flags.json")
REQUIRED = "(required)"


def module_of(command: str) -> ModuleType:
    """The module of a command, as in "bench step"."""
    return importlib.import_module(f"bert_horovod.commands.{command.replace(' ', '.').replace('-', '_')}")


def promised() -> dict[str, dict[str, Any]]:
    """Defaults by command and flag, from the file."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def present() -> dict[str, dict[str, Any]]:
    """Defaults by command and flag, as the commands have them now."""
    names = [*command_names(commands), *(f"bench {name}" for name in command_names(bench))]
    return {name: _flags(name) for name in sorted(name.replace("_", "-") for name in names)}


def _flags(command: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser(add_help=False)
    module_of(command).add_arguments(parser)
    return {
        (action.option_strings or [action.metavar or action.dest])[0]: _default(action) for action in parser._actions
    }


def _default(action: argparse.Action) -> Any:
    """A path that is named alone has no default: its flag has."""
    return REQUIRED if action.required else None if action.default == argparse.SUPPRESS else action.default


if __name__ == "__main__":
    if sys.argv[1:] != ["--renew"]:
        sys.exit(__doc__)
    lines = [f"{json.dumps(name)}: {json.dumps(flags)}" for name, flags in present().items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
