"""Repeat the first steps of a configuration, and list what keeps them from being reproducible.

usage: python scripts/probe_ops.py [OVERRIDE...]

With overrides as train.py takes them. The first steps run three times, under the environment of
the preset. Listed by module are operations that differ from one time to the next or that strict
refuses, with what to use instead, and random numbers that no seed controls.

example:
    python scripts/probe_ops.py experiment=adding_lstm

exit status: 0 nothing was found, 1 something was found, 2 invalid request
"""

import sys
import tempfile
from pathlib import Path

from omegaconf import OmegaConf

from seedbed import launch
from seedbed.config import options
from seedbed.config.compose import configuration
from seedbed.launch.process import run_passing_signals


def main() -> int:
    """Examine the configuration, in a process under the environment variables of its preset."""
    parser = options.Parser(__doc__).add("overrides", nargs="*")
    settings = configuration(*parser.parse_args().overrides)
    with tempfile.TemporaryDirectory() as folder:
        OmegaConf.save(settings, Path(folder) / "config.yaml")
        command = [sys.executable, "-m", "seedbed.probe.examine", folder]
        return run_passing_signals(command, launch.training_environment(settings))
