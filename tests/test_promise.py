"""Your models, data sets and methods are reproducible: each YAML file that you add is
tested here.

A file is tested by a short run of the default configuration, or of an experiment that
uses it. Others take the place of the default's or, if it lacks keys that they refer to,
are tried together. So an experiment says which data set, model and method belong
together.
"""

from pathlib import Path

import pytest

import seedbed
from seedbed import testing
from seedbed.errors import InputError

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
GROUPS = ("experiment", "data", "model", "method")
FILES = [
    f"{g}={path.stem}" for g in GROUPS for path in sorted((CONFIGS / g).glob("*.yaml"))
]


def uses(*words: str) -> list[str]:
    """Return the files that a command line uses, or none if it cannot be trained."""
    try:
        composed = testing.compose(*words)
        testing.short(composed, {})
    except InputError:
        return []
    return [f"{group}={composed[group].name}" for group in GROUPS[1:]]


def commands() -> dict[str, tuple[str, ...]]:
    """Map each file to the command line that tests it."""
    found: dict[str, tuple[str, ...]] = dict.fromkeys(uses(), ())
    for file in FILES:
        if file not in found:
            group = file.partition("=")[0]
            partners = [f for f in FILES if not f.startswith(("experiment", group))]
            tries = [
                (file,),
                *((file, other) for other in partners if group != "experiment"),
            ]
            words = next((words for words in tries if uses(*words)), (file,))
            found = dict.fromkeys([file, *uses(*words)], words) | found
    return {file: found[file] for file in FILES}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path | InputError]:
    """Train in every way; map each file to the folder of its runs, or to the error."""
    lines = commands()
    trained = testing.train_in_ways(lines.values(), tmp_path_factory.mktemp("promise"))
    return {file: trained[words] for file, words in lines.items()}


def require_first(runs: dict[str, Path | InputError], file: str) -> Path:
    """Return the folder of a file's runs; skip or fail the test if the first did not
    finish."""
    folder = runs[file]
    refused = isinstance(folder, InputError)
    error = str(folder) if refused else testing.error_of(folder / "first")
    if error and testing.lacks_files(error):
        pytest.skip(f"its files are not on this machine: {error.partition('; ')[0]}")
    if error:
        log = "" if refused else f"; see {folder / 'first' / 'train.log'}"
        pytest.fail(f"{file}: {error}{log}", pytrace=False)
    assert isinstance(folder, Path)
    return folder


@pytest.mark.parametrize("way", ["again", "two_workers", "resumed"])
@pytest.mark.parametrize("file", FILES)
def test_same_bits(runs: dict[str, Path | InputError], file: str, way: str) -> None:
    """In another process, with two loader workers, and stopped and resumed."""
    folder = require_first(runs, file)
    assert testing.difference(folder / "first", folder / way) is None
    assert bool(seedbed.read(folder / way).summary["resumes"]) is (way == "resumed")


@pytest.mark.parametrize("file", FILES)
def test_another_seed_gives_other_bits(
    runs: dict[str, Path | InputError], file: str
) -> None:
    """Negative control: the comparison above can find a difference."""
    folder = require_first(runs, file)
    assert testing.difference(folder / "first", folder / "other_seed") is not None
