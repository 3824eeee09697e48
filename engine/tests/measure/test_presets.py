"""docs/presets.md shows what the preset files set."""

import shutil
from pathlib import Path

import presets

from tests.running import ROOT

FOLDER = ROOT / "configs" / "determinism"


def test_the_page_is_what_the_files_give() -> None:
    """A changed preset needs `python engine/measure/presets.py`."""
    assert presets.PAGE.read_text() == presets.page(FOLDER)


def test_a_changed_setting_changes_the_page(tmp_path: Path) -> None:
    """Negative control: one value of one preset is seen, and moves its row."""
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    fast = tmp_path / "fast.yaml"
    fast.write_text(fast.read_text().replace("interop_threads: 1", "interop_threads: 3"))
    assert "| `interop_threads` | 1 | 1 | 3 | 1 |" in presets.page(tmp_path)
    assert "| `interop_threads` | 1 |\n" in presets.page(FOLDER)


def test_every_preset_is_on_the_page() -> None:
    """No file of the folder is left out."""
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(presets.PRESETS)
