"""Repeat the first steps of a configuration, and list what keeps them from being reproducible.

Step 1 is taken twice, and step 2 once more by a run that is resumed before it. Printed are the
operations that strict refuses, with what to use instead, and the first one that differs.
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
    parser = options.Parser(__doc__).add("overrides", nargs="*", help="as train.py takes them")
    settings = configuration(*parser.parse_args().overrides)
    with tempfile.TemporaryDirectory() as folder:
        OmegaConf.save(settings, Path(folder) / "config.yaml")
        command = [sys.executable, "-m", "seedbed.probe.examine", folder]
        return run_passing_signals(command, launch.training_environment(settings))
