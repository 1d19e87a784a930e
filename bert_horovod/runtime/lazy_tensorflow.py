"""TensorFlow, imported when something of it is first used: `from bert_horovod.runtime import lazy_tensorflow as tf`.

For files that are read for their settings too, such as the update rules: commands that only compute with a recipe start
without TensorFlow. Such a file begins with `from __future__ import annotations`, because annotations would use it.
"""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("tensorflow"), name)
