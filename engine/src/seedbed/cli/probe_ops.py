"""Repeat the first steps of a configuration, and list what makes them nonreproducible.

Step 1 is run twice; step 2 is run without interruption, and by a run resumed after step 1. Prints
the operations that strict refuses, with alternatives, and the first operation that differs.
"""

import sys
import tempfile
from pathlib import Path

from omegaconf import OmegaConf

from seedbed import launch
from seedbed.config import options
from seedbed.config.compose import configuration
from seedbed.launch import run_passing_signals


def main() -> int:
    parser = options.Parser(__doc__).add("overrides", nargs="*", help="as train.py takes them")
    settings = configuration(*parser.parse_args().overrides)
    with tempfile.TemporaryDirectory() as folder:
        OmegaConf.save(OmegaConf.create(settings.plain), Path(folder) / "config.yaml")
        command = [sys.executable, "-m", "seedbed.explain.examine", folder]
        return run_passing_signals(command, launch.training_environment(settings))
