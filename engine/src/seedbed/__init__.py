"""An experiment template whose runs are reproducible bit for bit.

Attributes:
    Method: how a model is trained and evaluated; a class of one's own says what is different.
    Recorder: the record of a training loop of one's own.
    loading: a data loader for one.
    load: the model of a run, with its weights.
    apply_preset: determinism settings for a process that is running.
"""

import importlib
from typing import Any

__version__ = "1.0.0"

# Imported when they are asked for, since they import torch: the module of each.
_LAZY = {
    "Method": "seedbed.methods",
    "Recorder": "seedbed.recorder",
    "loading": "seedbed.loading",
    "load": "seedbed.tools.weights",
    "apply_preset": "seedbed.determinism.running",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        module = importlib.import_module(_LAZY[name])
        return getattr(module, name, module)
    raise AttributeError(f"module 'seedbed' has no attribute {name!r}")
