"""An experiment template whose runs are reproducible bit for bit.

Attributes:
    Method: how a model is trained and evaluated; the base class of user-defined
    methods.
    Recorder: the record of a user-defined training loop.
    loading: a seeded data loader for such a loop.
    load: the model of a run, with its weights.
    data: the data set of a run.
    predict: what the model of a run computes for new samples.
    read: the record of a run: configuration, metrics, fingerprints.
    apply_preset: determinism settings for a process that is already running.
"""

import importlib
from typing import Any

__all__ = [
    "Method",
    "Recorder",
    "apply_preset",
    "data",
    "load",
    "loading",
    "predict",
    "read",
]
__version__ = "1.0.0"

# The module of each name, imported on access: most import torch.
_LAZY = {
    "Method": "seedbed.methods",
    "Recorder": "seedbed.recorder",
    "loading": "seedbed.loading",
    "load": "seedbed.tools.weights",
    "data": "seedbed.tools.weights",
    "predict": "seedbed.tools.predict",
    "read": "seedbed.reading",
    "apply_preset": "seedbed.determinism.running",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        module = importlib.import_module(_LAZY[name])
        return getattr(module, name, module)
    raise AttributeError(f"module 'seedbed' has no attribute {name!r}")
