"""The environment variables that a training process starts with."""

import os

from seedbed import determinism, project
from seedbed.config import Settings


def training_environment(settings: Settings) -> dict[str, str]:
    preset = settings.plain["determinism"]
    environment = determinism.environment_variables(preset, os.environ)
    root = project.root()
    # Imports come from this project, not the current folder, which may be an untrusted
    # record.
    paths = [
        path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path
    ]
    paths = list(dict.fromkeys([*paths, str(root / "src"), str(root)]))
    environment |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    environment[project.PROJECT] = str(root)
    if "OMP_WAIT_POLICY" not in environment:
        # A thread that waits for others spins on a core that another process may need:
        # two trainings of the CNN side by side on two cores took 162 ms a step with
        # 100,000 turns, and 28 with 3,000. Alone they took 12 with either
        # (docs/measured.md). How long threads spin changes no bit.
        if settings.trainer.processes * (preset["threads"] or 1) > (
            os.cpu_count() or 1
        ):
            environment["OMP_WAIT_POLICY"] = "PASSIVE"
        else:
            environment.setdefault("GOMP_SPINCOUNT", "3000")  # the default is 300,000
    return environment
