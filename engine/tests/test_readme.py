"""The picture of a run in README.md shows files of the package and their imports."""

import re
from collections.abc import Iterator

import grimp
import pytest

from seedbed.worker import TASKS
from tests.running import ENGINE, TEMPLATE

PACKAGE = ENGINE / "src" / "seedbed"
README = (ENGINE / "README.md").read_text()
STARTED = ["cli.train", "worker"]  # by train.py, and by `python -m`


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    return grimp.build_graph("seedbed", cache_dir=None)


def shown(readme: str) -> Iterator[tuple[str | None, str]]:
    """Yield each module of the picture after the one that it is indented below."""
    [picture] = re.findall(r"```text\n(train\.py.*?)```", readme, re.DOTALL)
    above: dict[int, str] = {}  # by indentation
    # the first is the project's own
    for line in filter(None, picture.splitlines()[1:]):
        file, _description = line.split(maxsplit=1)
        indentation = len(line) - len(line.lstrip())
        above = {key: module for key, module in above.items() if key < indentation}
        module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        yield above[max(above)] if above else None, module
        above[indentation] = module


def mistakes(readme: str, imports: grimp.ImportGraph) -> list[str]:
    """Return what the picture shows and the code does not have."""
    found = []
    for importer, module in shown(readme):
        if f"seedbed.{module}" not in imports.modules:
            found.append(f"no {module}")
        elif f"seedbed.{importer}" in imports.modules:
            imported = imports.find_modules_directly_imported_by(f"seedbed.{importer}")
            if importer == "worker":  # it imports the module of its task
                imported |= {path.rpartition(".")[0] for path in TASKS.values()}
            if f"seedbed.{module}" not in imported:
                found.append(f"{importer} does not import {module}")
    return found


def test_each_file_of_a_run_is_imported_by_the_one_above(
    imports: grimp.ImportGraph,
) -> None:
    assert mistakes(README, imports) == []
    assert [module for importer, module in shown(README) if importer is None] == STARTED


def test_each_file_that_the_page_names_exists() -> None:
    """Relative to the package, the engine or the template."""
    named = set(re.findall(r"[\w./]+\.py\b", README))
    places = (PACKAGE, ENGINE, TEMPLATE)
    assert [
        name for name in named if not any((place / name).is_file() for place in places)
    ] == []


@pytest.mark.parametrize(
    ("file", "other", "mistake"),
    [
        ("training/step.py", "training/gone.py", "no training.gone"),
        ("run/job.py", "rng.py", "run.process does not import rng"),
    ],
)
def test_a_wrong_picture_is_noticed(
    file: str, other: str, mistake: str, imports: grimp.ImportGraph
) -> None:
    assert mistake in mistakes(README.replace(f"  {file} ", f"  {other} ", 1), imports)
