"""The parser of command lines: refuses abbreviations and empty values, and suggests a near word for an unknown one."""

import argparse
import importlib.util
import pkgutil
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import InspectLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from absl.flags import argparse_flags

from bert_horovod import __version__, commands
from bert_horovod.errors import UserError
from bert_horovod.storage.places import is_url
from bert_horovod.storage.places import parse_place as parse_place
from bert_horovod.wording import did_you_mean, nearest

_OTHER_NAMES = {  # other programs' names, and earlier ones of this
    "tokenize": "prepare",
    "run": "pretrain",
    "train": "pretrain",
    "generate": "fill-mask",
    "compute": "step",
    "comm": "step --communication on off held_back",
    "throughput": "step --data_dir DIR",
}
_OTHER_FLAGS = {  # earlier flags of `bench` and `tune`
    "--rows": "--set execution.micro_batch=N",
    "--length": "--set phase.0.sequence_length=N",
    "--profile": "--trace DIR",
    "--seconds": "--steps N",
}


class Parser(argparse_flags.ArgumentParser):
    """An argparse parser with absl's flags, if it inherits any."""

    _newest: "Parser | None" = None  # the innermost parser at work: that of the command
    _given: Sequence[str] = ()

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        Parser._newest, self._given = self, args or ()
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print usage and the message, with a suggestion, and exit with 2."""
        super().error(f"{message}{(Parser._newest or self)._hint()}")

    def _hint(self) -> str:
        """A suggestion for the first unknown flag, even if argparse complained about another word first; or ""."""
        known = [name for action in self._actions for name in action.option_strings]
        given = list(self._given)
        for word in given[: given.index("--")] if "--" in given else given:
            flag = word.partition("=")[0]
            if flag.startswith("--") and flag not in known:
                if flag in _OTHER_FLAGS and {"bench", "tune"} & set(self.prog.split()):
                    return f"; instead of {flag} give {_OTHER_FLAGS[flag]}"
                # did_you_mean finds no abbreviations (which are refused): too many letters differ.
                longer = [name for name in known if name.startswith(flag)][:1]
                question = f"did you mean {longer[0]}?" if longer else did_you_mean(flag, known).rstrip()
                return f"; {flag}: {question}" if question else ""
        return ""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and isinstance(value, str) and value not in action.choices:
            others = {name: here for name, here in _OTHER_NAMES.items() if here.partition(" ")[0] in action.choices}
            near = nearest(value, [*action.choices, *others])
            question = f"did you mean {others.get(near, near)}? " if near else ""
            choices = ", ".join(map(str, action.choices))
            raise argparse.ArgumentError(
                action, f"invalid choice: {value[:200]!r}; {question}expected one of {choices}"
            )
        super()._check_value(action, value)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        if arg_string is argparse.SUPPRESS:  # a path that was not named alone, but after its flag
            return arg_string
        if not arg_string and action.option_strings:
            raise argparse.ArgumentError(action, "expected a value, found an empty one: is a variable not set?")
        return super()._get_value(action, arg_string)


# Commands in the order in which a newcomer uses them; others follow by name.
_ORDER = (
    *("vocab", "prepare", "inspect", "verify", "import"),  # text and vocabulary
    *("recipes", "plan", "hosts", "doctor", "tune"),  # before a run
    *("pretrain", "launch", "status", "report", "resume"),
    *("evaluate", "fill_mask", "probe", "finetune", "predict", "mine", "score", "export"),  # with its checkpoints
)


def command_names(package: ModuleType) -> list[str]:
    """The names of a package's modules, in _ORDER; each is a command, but `shared`, which has what commands share."""
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__) if module.name != "shared")
    return sorted(names, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))


def _docstring(module: str) -> str:
    """The docstring of a module, which is not imported."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert isinstance(spec.loader, InspectLoader)
    code = spec.loader.get_code(module)
    return code.co_consts[0].strip() if code and isinstance(code.co_consts[0], str) else ""


def add_commands(
    parser: argparse.ArgumentParser, package: ModuleType, metavar: str, runs: str, given: Sequence[str] | None = None
) -> None:
    """Add each module of a package as a command, with the module's docstring as its help.

    A module has add_arguments(parser) and run(arguments); `runs` names the argument that holds the chosen `run`.
    `given`: words of a command line: modules whose command is not among them are not imported; None: import all.
    """
    subparsers = parser.add_subparsers(metavar=metavar, required=True, parser_class=Parser)
    for name in command_names(package):
        command, path = name.replace("_", "-"), f"{package.__name__}.{name}"
        description = _docstring(path)
        subparser = subparsers.add_parser(
            command,
            help=description.splitlines()[0],
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            inherited_absl_flags=None,
        )
        if given is not None and command not in given:
            continue
        module = importlib.import_module(path)
        module.add_arguments(subparser)
        subparser.set_defaults(**{runs: module.run, "parser": subparser})


def read_with(action: argparse.Action, words: str, holds: Callable[[argparse.Namespace], bool]) -> None:
    """Declare that a flag is read only under a condition, such as "with --row"; elsewhere it is refused early.

    Of several conditions all must hold.
    """
    action.read_with = [*getattr(action, "read_with", ()), (words, holds)]  # type: ignore[attr-defined]


def refuse_unread(arguments: argparse.Namespace) -> None:
    """Raise UserError if a flag is given that its command would not read, as `read_with` has declared it."""
    parser = getattr(arguments, "parser", None)
    for action in parser._actions if parser else ():
        value = getattr(arguments, action.dest, None)
        failing = [words for words, holds in getattr(action, "read_with", ()) if not holds(arguments)]
        if not failing or value == action.default:
            continue
        flag = max(action.option_strings, key=len)
        given = flag if value is True else f"{flag} {' '.join(map(str, value)) if isinstance(value, list) else value}"
        raise UserError(f"{given}: it is read only {' and '.join(failing)}; leave it out")


def takes_urls(action: argparse.Action) -> None:
    """Declare that a flag takes a URL in place of a path; open_values refuses it for the others."""
    action.takes_urls = True  # type: ignore[attr-defined]


def opens(action: argparse.Action, opened: Callable[[argparse.Namespace, Path], Any]) -> None:
    """Declare what opens the path or URL that a flag names; the command finds what `opened` returns."""
    action.opens = opened  # type: ignore[attr-defined]


def open_values(arguments: argparse.Namespace) -> None:
    """Open what the flags name, as `opens` has declared it, once: nothing below asks again what or where it is.

    Raises UserError if a flag names a file elsewhere that its command would look for on this machine, and what opening
    raises.
    """
    parser = getattr(arguments, "parser", None)
    actions = parser._actions if parser else ()
    for action in actions:
        _refuse_urls(action, getattr(arguments, action.dest, None))
    for dest, opened in {action.dest: action.opens for action in actions if hasattr(action, "opens")}.items():
        values, opened = getattr(arguments, dest), partial(opened, arguments)
        if values is not None:
            setattr(arguments, dest, list(map(opened, values)) if isinstance(values, list) else opened(values))


def _refuse_urls(action: argparse.Action, values: Any) -> None:
    if not (hasattr(action, "takes_urls") or action.nargs == argparse.REMAINDER or action.metavar == "TEXT"):
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, str | Path) and is_url(value):
                flag = max(action.option_strings, key=len, default=str(action.metavar or action.dest))
                raise UserError(
                    f"{flag} {parse_place(value, flag)}: expected a path on this machine, because this flag takes no "
                    "URL: copy the files here first"
                )


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse a command line; imports the command that it names alone, and no TensorFlow, so that --help is quick."""
    parser = Parser(prog="bert-horovod", description="BERT pre-training with Horovod. Commands in the order of use:")
    parser.add_argument("--version", action="version", version=__version__)
    add_commands(parser, commands, "COMMAND", "run", argv[1:])
    arguments = parser.parse_args(argv[1:])
    arguments.words = argv[1:]
    return arguments
