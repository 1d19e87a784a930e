"""TensorFlow, imported when something of it is first used: `from bert_horovod.runtime import lazy_tensorflow as tf`.

All files of the package import it so: commands that only compute with a recipe start without TensorFlow. A file whose
annotations name it begins with `from __future__ import annotations`, because Python would evaluate them at the import.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

from bert_horovod.runtime.quiet import import_tensorflow


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__version__":  # asked by inspect and the like
        raise AttributeError(name)
    import_tensorflow()
    attribute = getattr(importlib.import_module("tensorflow"), name)
    globals()[name] = attribute  # Python asks this function only for names that the module lacks
    return attribute


def custom_gradient(function: Callable) -> Callable:
    """tf.custom_gradient as a decorator that needs TensorFlow at the function's first call only."""

    @functools.cache
    def with_gradient() -> Callable:
        import_tensorflow()
        return importlib.import_module("tensorflow").custom_gradient(function)

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        return with_gradient()(*arguments, **options)

    return call
