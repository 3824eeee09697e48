"""Files that only callbacks and loggers use may change; all others count."""

import zipfile
from pathlib import Path
from typing import Any

import pytest

from seedbed.record import code
from seedbed.record.code import Origin
from seedbed.record.observers import observing as observing_files

SETTINGS = {
    "model": {"_target_": "project.net.Net"},
    "callbacks": {"draw": {"_target_": "project.drawing.Drawing"}},
}
FILES = {
    "src/project/net.py": "from project.layers import Layer\n",
    "src/project/layers.py": "import torch\n",
    "src/project/drawing.py": "from project.pictures import draw\n",
    "src/project/pictures.py": "from project.colours import RED\n",
    "src/project/colours.py": "RED = 1\n",
}
OBSERVING = ("drawing", "pictures", "colours")


@pytest.fixture
def origin(tmp_path: Path) -> Any:
    def make(files: dict[str, str], settings: Any = SETTINGS) -> Origin:
        folder = tmp_path / str(len([*tmp_path.iterdir()]))
        folder.mkdir()
        with zipfile.ZipFile(folder / code.ARCHIVE, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
        return Origin(settings, {"imported_files": dict.fromkeys(files, "")}, folder)

    return make


def observing(*origins: Origin) -> set[str]:
    return {Path(name).stem for name in observing_files(FILES, *origins)}


def test_what_callbacks_import_is_theirs(origin: Any) -> None:
    """Also what that imports."""
    assert observing(origin(FILES)) == {*OBSERVING}
    assert observing(origin(FILES), origin(FILES)) == {*OBSERVING}


def test_a_file_that_only_one_of_two_runs_has_may_be_theirs(origin: Any) -> None:
    """Negative control: the other run's model has its name."""
    before = {
        "src/project/net.py": FILES["src/project/net.py"],
        "src/project/layers.py": "",
        "src/project/drawing.py": "",
    }
    assert observing(origin(before), origin(FILES)) == {*OBSERVING}
    named = before | {"src/project/net.py": "# as in colours\n"}
    assert observing(origin(named), origin(FILES)) == {"drawing", "pictures"}


def test_a_run_without_callbacks_has_none(origin: Any) -> None:
    """One that only adds a callback may differ in its files."""
    settings = SETTINGS | {"callbacks": {}}
    assert observing(origin(FILES, settings)) == set()
    of_training = {name: FILES[name] for name in [*FILES][:2]}
    without = origin(of_training, settings)
    assert observing(without) == set()
    assert observing(without, origin(FILES)) == {*OBSERVING}


@pytest.mark.parametrize(
    ("changed", "settings", "theirs"),
    [
        # Files name each other.
        ({"colours": "# for drawing"}, {}, {*OBSERVING}),
        # The model, or what it imports, has the name of a helper.
        ({"net": "import project.pictures"}, {}, set()),
        ({"layers": "# like colours"}, {}, set()),
        # A module that nothing names, and that may be imported in any way.
        ({"hidden": "import project.drawing"}, {}, set()),
        # Training imports by names that it computes, or that Python takes for others.
        ({"net": "import_module(f'project.{name}')"}, {}, set()),
        ({"layers": "from project import \uff50\uff49\uff43tures"}, {}, set()),
        # A callback imports what training uses, and could change it.
        ({"colours": "from project.layers import ALL"}, {}, set()),
        ({"colours": "from project import layers as l"}, {}, set()),
        ({"colours": "import importlib"}, {}, set()),
        ({"drawing": "import project.layers, project.pictures"}, {}, set()),
        ({"colours": "syntax error"}, {}, set()),
        # Negative control: it has the word alone.
        ({"colours": "LAYERS = 'layers'"}, {}, {*OBSERVING}),
        # Another section of the settings.
        ({}, {"method": {"_target_": "project.pictures.Step"}}, set()),
        ({}, {"model": {"_target_": "project.drawing.Net"}}, set()),
    ],
)
def test_what_others_may_use_counts(
    origin: Any, changed: dict[str, str], settings: Any, theirs: set[str]
) -> None:
    files = FILES | {f"src/project/{name}.py": text for name, text in changed.items()}
    run = origin(files, SETTINGS | settings)
    assert observing(run) == theirs
    assert observing(origin(FILES), run) == theirs
