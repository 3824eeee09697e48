"""Data sets, and the loader that makes batches of them.

`seedbed.data(RUN, split)` is the data set of a run (`tools.weights.data`).
"""

import importlib
import sys
from types import ModuleType
from typing import Any


class _Module(ModuleType):
    """This module, which can be called."""

    def __call__(self, *args: Any, **how: Any) -> Any:
        return importlib.import_module("seedbed.tools.weights").data(*args, **how)


sys.modules[__name__].__class__ = _Module
