"""Methods of a section by their names: the program's own, its experiments, and those of other packages.

The experiments are the modules of bert_horovod/experiments, which nothing imports: they are found by their folder, also
in a checkout that is not installed. Another package names its settings class, a subclass of Optimizer, ExchangeMethod
or Head, by an entry point:

    [project.entry-points."bert_horovod.methods"]
    my_rule = "my_package.my_rule:MyRule"

Packages are read only for a name that is not the program's own.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from types import ModuleType
from typing import Any

from bert_horovod.errors import UserError

ROOM = "bert_horovod.experiments"
GROUP = "bert_horovod.methods"
_PACKAGES: dict[type, str] = {}  # of the methods that packages have named, by the method


class Methods(Mapping[str, type]):
    """Settings classes, the subclasses of `base`, by the value of their field `key`; the first is the default.

    Iterating gives those of other packages only if a name was asked for that is not the program's own.
    """

    def __init__(self, base: type, key: str, own: Iterable[type]) -> None:
        self._base, self._key = base, key
        self._own: dict[str, type] = {getattr(kind, key): kind for kind in own}
        self._room: dict[str, type] | None = None
        self._others: dict[str, type] | None = None
        self.problems: list[str] = []  # packages that could not be read, for people

    def __getitem__(self, name: str) -> type:
        if name not in self._known() and self._others is None:
            self._others = self._of_packages()
        return self._known()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())

    def names(self) -> tuple[str, ...]:
        """All names, also those of other packages."""
        self.get("")
        return tuple(self)

    def hint(self) -> str:
        """What to say besides the known names where a name is none of them; "": nothing."""
        no_room = "" if any(_modules(ROOM)) else f"; others are in {ROOM}, which this installation lacks"
        return no_room + "".join(f"; {problem}" for problem in self.problems)

    def stand_in(self, settings: Mapping[str, Any]) -> Any:
        """A method that is not known here, by the settings that a run has recorded: to be shown, not to be run.

        Raises UserError for what no method can have recorded.
        """
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
        fields = [(key, type(value), dataclasses.field(default=value)) for key, value in values.items()]
        try:
            return dataclasses.make_dataclass("Recorded", fields, bases=(self._base,), frozen=True)()
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{self._key} = {settings[self._key]!r} is unknown, and so are its settings: {error}"
            ) from error

    def _known(self) -> dict[str, type]:
        if self._room is None:
            self._room = {}  # an experiment's module may ask while it is read
            self._room = {
                getattr(kind, self._key): kind for module in _modules(ROOM) for kind in _defined(module, self._base)
            }
        return self._own | self._room | (self._others or {})

    def _of_packages(self) -> dict[str, type]:
        found: dict[str, type] = {}
        self.problems = []
        for point in metadata.entry_points(group=GROUP):
            package = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
            try:
                kind = point.load()
            except Exception as error:  # whatever a package does
                self.problems.append(f"{package} could not be read: {type(error).__name__}: {error}")
                continue
            if not isinstance(kind, type) or not issubclass(kind, self._base):
                continue  # a method of another section
            name = getattr(kind, self._key)
            if name in self._known() or name in found:
                raise UserError(f"the package {package} has a method {name!r}, and that name is taken; remove it")
            found[name] = kind
            _PACKAGES[kind] = package
        return found


def package_of(kind: type) -> str:
    """The package of another's method and its version, for people and for ranks to compare; "": the program's own."""
    return _PACKAGES.get(kind, "")


def is_experiment(kind: type) -> bool:
    """Whether a method is one of the room of experiments."""
    return kind.__module__.startswith(f"{ROOM}.")


def _modules(package: str) -> Iterator[ModuleType]:
    """The modules of a package; none where there is no such package."""
    try:
        room = importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        return
    for module in sorted(pkgutil.iter_modules(room.__path__), key=lambda module: module.name):
        yield importlib.import_module(f"{package}.{module.name}")


def _defined(module: ModuleType, base: type) -> Iterator[type]:
    """The subclasses of `base` that a module defines."""
    for kind in vars(module).values():
        if isinstance(kind, type) and issubclass(kind, base) and kind.__module__ == module.__name__:
            yield kind
