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
    places = [
        place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place
    ]
    places = list(dict.fromkeys([*places, str(root / "src"), str(root)]))
    environment |= {"PYTHONPATH": os.pathsep.join(places), "PYTHONSAFEPATH": "1"}
    environment[project.PROJECT] = str(root)
    if "OMP_WAIT_POLICY" not in environment:
        # Threads that wait for each other spin on cores that other processes may need:
        # next to two busy processes, a step took many times as long. How long they spin
        # changes no bit.
        if settings.trainer.processes * (preset["threads"] or 1) > (
            os.cpu_count() or 1
        ):
            environment["OMP_WAIT_POLICY"] = "PASSIVE"
        else:
            # loop iterations, not 300,000
            environment.setdefault("GOMP_SPINCOUNT", "100000")
    return environment
