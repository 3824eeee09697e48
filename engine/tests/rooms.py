"""What may be deleted: optional rooms, each with its scripts, configurations and tests.

usage: python -m tests.rooms        print the README's table

tests/test_rooms.py deletes each of them in a copy of the repository and trains.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Room:
    """An optional part: what is lost without it, and its files and folders from the root."""

    gives: str
    paths: tuple[str, ...]


ROOMS = {
    "probe": Room(
        "which operations are deterministic on this machine and in your model",
        ("src/seedbed/probe", "scripts/probe_ops.py", "tests/probe"),
    ),
    "explain": Room(
        "which operation two runs diverge at (`--explain`)",
        (
            "src/seedbed/explain",
            "tests/explain",
            "tests/edited",
            "tests/edits.py",
            "tests/fault_score.py",
            "tests/end_to_end/test_faults.py",
            "tests/end_to_end/test_versions.py",
        ),
    ),
    "sweeps": Room(
        "many runs: statistics over seeds, resuming a sweep",
        (
            "src/seedbed/sweeps",
            "scripts/sweep_report.py",
            "configs/hydra",
            "configs/experiment/variance_sources.yaml",
            "tests/sweeps",
            "tests/end_to_end/test_sweep.py",
            "tests/end_to_end/kill_sweep.py",
        ),
    ),
    "tools": Room(
        "a table of runs, evaluating and exporting weights, packages of runs",
        (
            "src/seedbed/tools",
            *(f"scripts/{name}.py" for name in ("runs", "evaluate", "export", "pack")),
            "tests/tools",
        ),
    ),
    "distributed": Room(
        "one run in several processes (`trainer.processes`)",
        (
            "src/seedbed/distributed",
            "tests/distributed",
            "tests/end_to_end/test_processes.py",
            "tests/end_to_end/kill_ranks.py",
        ),
    ),
    "loggers": Room(
        "TensorBoard, MLflow, Weights & Biases (all, or some of them)",
        (
            "src/seedbed/loggers/tensorboard.py",
            "src/seedbed/loggers/mlflow.py",
            "src/seedbed/loggers/wandb.py",
            "configs/logger/tensorboard.yaml",
            "configs/logger/mlflow.yaml",
            "configs/logger/wandb.yaml",
            "tests/loggers",
            "requirements-loggers.in",
            "requirements-loggers.txt",
        ),
    ),
    "own_loop": Room(
        "fingerprints and seeded loading in a training loop of your own",
        (
            *("src/seedbed/recorder", "src/seedbed/loading.py", "src/seedbed/integrations"),
            *("tests/recorder", "tests/loading", "tests/integrations"),
            *("tests/own_loop.py", "tests/end_to_end/test_installed.py"),
            *("requirements-integrations.in", "requirements-integrations.txt"),
        ),
    ),
    "integrations": Room(
        "callbacks for Lightning, transformers, accelerate (all, or some of them)",
        (
            *("src/seedbed/integrations", "tests/integrations"),
            *("requirements-integrations.in", "requirements-integrations.txt"),
        ),
    ),
    "measure": Room(
        "what measured docs/: benchmark, guarantees, costs",
        ("scripts/measure", "tests/measure", "requirements-bench.in", "requirements-bench.txt"),
    ),
    "zoo": Room(
        "tests with the models of other libraries",
        ("tests/zoo", "requirements-zoo.in", "requirements-zoo.txt"),
    ),
    "emulated": Room("tests on emulated processors", ("tests/emulated",)),
}


def table() -> list[str]:
    """Return the lines of a Markdown table of what may be deleted."""
    rows = (
        f"| {room.gives} | {', '.join(f'`{path}`' for path in room.paths)} |"
        for room in ROOMS.values()
    )
    return ["| without it you lose | delete |", "| --- | --- |", *rows]


if __name__ == "__main__":
    print("\n".join(table()))
