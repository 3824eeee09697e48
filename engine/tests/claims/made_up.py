"""Claims whose runs are made up: fixed as always, by composing the tests' project."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from seedbed.claims import lock as locks
from seedbed.claims.lock import SEED, Lock
from seedbed.cli import claim as command
from seedbed.config import compose
from seedbed.record import chain, untrusted
from tests import running
from tests.made_up_runs import write_result

BASE = (0.981, 0.984, 0.979, 0.990, 0.986, 0.975, 0.982, 0.985)
GAIN = (0.004, 0.003, 0.006, 0.005, 0.004, 0.002, 0.003, 0.005)
STEPS = 40
CLAIM: dict[str, Any] = {
    "title": "a higher rate is better",
    "settings": [f"trainer.max_steps={STEPS}", "determinism.threads=1"],
    "variants": {"base": [], "high": ["optimizer.lr=0.01"]},
    "metric": "validation_accuracy",
    "direction": "maximize",
    "seeds": [*range(6)],
    "rule": "fixed",
    "smallest_difference": 0.001,
    "alpha": 0.05,
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CODE = "src/tiny/cnn.py"  # that all runs import
DATA = {"images": "00ff"}


def write_claim(folder: Path, **changes: Any) -> Path:
    """Write a claim; a change to None removes the key."""
    whole = {key: it for key, it in {**CLAIM, **changes}.items() if it is not None}
    path = folder / "claim.yaml"
    path.write_text(yaml.safe_dump(whole, sort_keys=False))
    return path


@cache
def composed(words: tuple[str, ...]) -> dict[str, Any]:
    """Return the checked configuration of some overrides, cached."""
    return compose.configuration(*words, "seed=1").plain


def settings(lock: Lock, name: str, seed: int) -> dict[str, Any]:
    """Return the configuration of a run as train.py composes it."""
    [variant] = [each for each in lock.claim.variants if each.name == name]
    whole = deepcopy(composed((*lock.claim.settings, *variant.settings)))
    for key, value in lock.variants[name].seeds.items():
        update(whole, key, seed if value == SEED else value)
    return {**whole, "claim": lock.digest}


def update(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a value of nested dictionaries by its dotted key."""
    *sections, last = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[last] = value


def train(
    lock: Lock,
    name: str,
    seed: int,
    accuracy: float,
    *,
    place: Path | None = None,
    changes: Mapping[str, Any] = {},
    environment: Mapping[str, Any] = {},
    steps: int = STEPS,
    **summary: Any,
) -> Path:
    """Write the record of a run of a claim, with changes of its settings by dotted
    key."""
    folder = place or runs(lock) / name / f"{lock.seeds.index(seed)}_seed={seed}"
    digest = lock.variants[name].code[CODE]
    described: dict[str, Any] = {
        "imported_files": {CODE: digest},
        "data_sha256": DATA,
        **environment,
    }
    values = {"validation_accuracy": accuracy, "test_accuracy": 0.5}
    write_result(
        folder,
        seed,
        metrics=values,
        weights=f"{seed:08x}{abs(hash(name)) % 2**32:08x}",
        environment=described,
        **{"steps": steps, **summary},
    )
    path = folder / "environment.json"  # without the defaults that it was merged into
    path.write_text(json.dumps({**json.loads(path.read_text()), **described}))
    whole = settings(lock, name, seed)
    for key, value in changes.items():
        update(whole, key, value)
    (folder / "config.yaml").write_text(yaml.dump(whole, Dumper=yaml.CSafeDumper))
    write_chain(folder, steps)
    return folder


def write_chain(folder: Path, steps: int = STEPS) -> None:
    """Write plan.json and chain.csv of a run as its other files have it."""
    config = untrusted.read_dict(folder)
    environment = json.loads((folder / "environment.json").read_text())
    plan = chain.plan_of(config, environment, steps)
    written = chain.Chain(folder, plan, 0)
    written.append(steps, "a" * 64, "b" * 64)
    written.close()


def runs(lock: Lock) -> Path:
    return lock.claim.path.parent / "sweeps"


def train_all(lock: Lock, **values: Sequence[float]) -> None:
    """Write the runs of each variant, with its values in the order of the seeds."""
    for name, of_variant in values.items():
        for seed, value in zip(lock.seeds, of_variant, strict=False):
            train(lock, name, seed, float(value))


def better(gain: Sequence[float] = GAIN) -> list[float]:
    return [x + y for x, y in zip(BASE, gain, strict=False)]


def called(action: str, path: Path, *words: str) -> Any:
    """Run a command on a claim and the runs beside it."""
    place = ["--runs", str(path.parent / "sweeps")]
    return running.called(command.main, action, str(path), *place, *words)


def report(path: Path, status: int | None, action: str = "check") -> Any:
    """Return what a command prints with --json; assert its exit status (None:
    any)."""
    done = called(action, path, "--json")
    assert status in (None, done.returncode), (done.stdout, done.stderr)
    return json.loads(done.stdout)


def fixed(folder: Path, **changes: Any) -> Lock:
    """Write a claim and fix it."""
    folder.mkdir(exist_ok=True)
    return locks.fix(write_claim(folder, **changes))
