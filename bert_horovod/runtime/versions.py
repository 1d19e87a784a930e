"""The versions that were tested, beside those that are installed."""

import importlib.metadata

from bert_horovod.runtime.children import installed_version

# As in pyproject.toml. The metadata of an environment that an older checkout installed name the older version.
TENSORFLOW = "2.21.0"


def tested_versions() -> tuple[str, dict[str, str]]:
    """The tested versions of Python and of each package that a run needs, Horovod included, as specifiers.

    Raises importlib.metadata.PackageNotFoundError, or ImportError, if the project is not installed.
    """
    from packaging.requirements import Requirement

    package = importlib.metadata.metadata("bert_horovod")
    declared = [Requirement(text) for text in package.get_all("Requires-Dist", [])]
    specifiers = {
        requirement.name: str(requirement.specifier)
        for requirement in declared
        if requirement.marker is None or requirement.marker.evaluate({"extra": "horovod"})
    }
    return package["Requires-Python"], specifiers | {"tensorflow": f"=={TENSORFLOW}"}


def untested_versions() -> list[str]:
    """Installed packages outside the tested version ranges, as `package version, expected range`."""
    from packaging.specifiers import SpecifierSet

    try:
        _, packages = tested_versions()
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that was never installed
        packages = {"tensorflow": f"=={TENSORFLOW}"}
    installed = {name: installed_version(name) for name in packages}
    return [
        f"{name} {version}, expected {packages[name]}"
        for name, version in installed.items()
        if version is not None and not SpecifierSet(packages[name]).contains(version, prereleases=True)
    ]
