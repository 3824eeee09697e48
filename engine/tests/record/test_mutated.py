"""A record of which any one value was changed: it is refused, contradicted, or listed
as a limit.

Each value of config.yaml, summary.json, environment.json, interpolations.json,
plan.json and chain.csv is changed in turn, and each file in code.zip, as verify.py and
compare.py see them. The run itself takes the place of its replay, as it has the same
bits.
"""

import json
import shutil
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from seedbed import compare, record
from seedbed.compare import Record, stated, verify
from seedbed.config import interpolations
from seedbed.errors import InputError
from seedbed.record import chain, code, untrusted
from tests.running import trained

Tree = dict[str, Any]
Keys = tuple[Any, ...]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ("trainer.keep_checkpoint_every_steps=5", "notes=x", "tags=[a]")
    return trained(tmp_path_factory.mktemp("mutated") / "run", *words)


def leaves(tree: Any, keys: Keys = ()) -> Iterator[Keys]:
    """Yield the keys of each value in nested mappings and lists, also of empty ones."""
    items: list[Any] = []
    if isinstance(tree, dict):
        items = list(tree.items())
    elif isinstance(tree, list):
        items = list(enumerate(tree))
    for key, value in items:
        yield from leaves(value, (*keys, key))
    if not items:
        yield keys


def nearby(value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}1" if isinstance(value, str) else "x"


def other_type(value: Any) -> Any:
    return [{"x": 1}] if isinstance(value, str | int | float) else 5


def mutants(tree: Tree) -> Iterator[tuple[Keys, Tree]]:
    """Yield the tree with another value, a value of another type, and without the
    value."""
    for keys in leaves(tree):
        for change in (nearby, other_type, None):
            mutant = deepcopy(tree)
            parent: Any = mutant
            for key in keys[:-1]:
                parent = parent[key]
            value = parent[keys[-1]]
            if change is None and value in (None, {}, []):  # the same to every reader
                continue
            if change is None:
                del parent[keys[-1]]
            else:
                parent[keys[-1]] = change(value)
            yield keys, mutant


def problems(folder: Path, original: Record) -> tuple[list[str], list[str]]:
    """Return what is noticed of a record, and what is listed as not compared.

    InputError is what a command prints in one line; any other exception fails the test.
    """
    try:
        recorded = compare.read(folder)
        verify.trusted_config(folder)
        interpolations.read(folder)
        verify.range_of(recorded)
        # A replay has the configuration of the record, and the environment of this
        # machine.
        origin = replace(original.origin, settings=recorded.origin.settings)
        replayed = replace(original, origin=origin)
        of = original.origin.folder
        assert of is not None
        lines, left_out = stated.compare_stated(
            recorded, of, recorded, replayed, ends=True
        )
        found = compare.compare(recorded, original)
        lines += stated.other_weights(recorded, original)
        lines += stated.contradictions(recorded.summary, recorded.metrics)
        lines += [str(change) for change in record.changes(recorded.origin, origin)]
        return lines + ([str(found.difference)] if found.difference else []), left_out
    except InputError as error:
        return [str(error)], []


def is_listed(name: str, key: str, left_out: list[str]) -> bool:
    """Return whether a value of a file, or the file, is among what was not compared."""
    for entry in left_out:
        file, _, keys = entry.partition(": ")
        patterns = keys.partition(" (")[0].split(", ") if keys else ["*"]
        if file == name and any(
            fnmatchcase(key, each) or key.startswith(f"{each}.") for each in patterns
        ):
            return True
    return False


def read(path: Path) -> Tree:
    text = path.read_text()
    tree: Tree = yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)
    return tree


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


def test_a_record_that_was_not_changed_has_no_problems(run: Path, copy: Path) -> None:
    """The negative control of all tests here."""
    lines, left_out = problems(copy, compare.read(run))
    assert lines == []
    assert is_listed("summary.json", "seconds", left_out)
    assert not is_listed("summary.json", "metrics.test_accuracy", left_out)
    assert not is_listed("config.yaml", "optimizer.lr", left_out)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("config.yaml", 300),
        ("summary.json", 100),
        ("environment.json", 300),
        ("interpolations.json", 40),
        (chain.PLAN, 100),
    ],
)
def test_a_changed_value_is_noticed_or_listed(
    name: str, least: int, run: Path, copy: Path
) -> None:
    original = compare.read(run)
    path = copy / name
    missed = list[str]()
    count = 0
    for keys, mutant in mutants(read(path)):
        is_yaml = path.suffix == ".yaml"
        text = (
            yaml.dump(mutant, Dumper=yaml.CSafeDumper)
            if is_yaml
            else json.dumps(mutant)
        )
        path.write_text(text)
        lines, left_out = problems(copy, original)
        key = ".".join(map(str, keys))
        missed += [] if lines or is_listed(name, key, left_out) else [key]
        count += 1
    assert missed == []
    assert count >= least


def test_a_changed_cell_of_the_chain_is_noticed(run: Path, copy: Path) -> None:
    original = compare.read(run)
    path = copy / chain.FILE
    table = [line.split(",") for line in path.read_text().splitlines()]
    for line, column in (
        (i, j) for i in range(1, len(table)) for j in range(len(table[0]))
    ):
        changed = deepcopy(table)
        changed[line][column] = f"{changed[line][column]}1"
        path.write_text("".join(",".join(row) + "\n" for row in changed))
        assert problems(copy, original)[0], (line, column)


@pytest.mark.long
def test_a_changed_file_of_the_code_is_noticed_or_listed(run: Path, copy: Path) -> None:
    """Other content, a file less and a file more."""
    original = compare.read(run)
    path = copy / "code.zip"
    files = untrusted.read_zip(path)
    changes: list[tuple[str, dict[str, bytes]]] = []
    for name in files:
        changes += [(name, {**files, name: files[name] + b"\n"})]
    changes += [
        (name, {**files, name: b""}) for name in ("x.py", "src/x.py", "PYTHONPATH2")
    ]
    imported = original.origin.imported
    for name, changed in changes:
        path.write_bytes(untrusted.zipped(changed))
        lines, left_out = problems(copy, original)
        engine = tuple(f"elsewhere/{package}/" for package in code.ENGINE)
        is_engine = name.startswith(engine) and name not in imported
        assert lines or (
            is_engine and any(each.startswith("code.zip: ") for each in left_out)
        ), name
    assert len(changes) > 100
