"""code.zip holds what a training process imported, wherever that lies, and imports as it did."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from seedbed import record
from seedbed.record import archive, code
from tests import pages
from tests.made_up_runs import edit_summary

# A loop that imports, step by step, and keeps what it has imported.
LOOP = """
import sys
from pathlib import Path
from seedbed.worker.imports import Imports
observer = Imports(Path(sys.argv[1]), {"git": {"commit": None}}, Path(sys.argv[2]))
for name in sys.argv[3:]:
    __import__(name)
    observer.note()
"""


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """Make a project without git, and a package and a module elsewhere on PYTHONPATH."""
    for name, text in {
        "project/src/mine/__init__.py": "",
        "project/src/mine/model.py": "import table, other.part\nSUM = table.T + other.part.P\n",
        "project/table.py": "T = 1\n",
        "project/scratch.py": "raise SystemExit('never imported')\n",
        "elsewhere/other/__init__.py": "",
        "elsewhere/other/part.py": "P = 2\n",
        "site-packages/installed.py": "I = 4\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "run").mkdir()
    return tmp_path


def kept(places: Path, *modules: str) -> dict[str, bytes]:
    """Import modules in a process; return what its code.zip holds besides the engine."""
    root = places / "project"
    path = [root / "src", root, places / "elsewhere", places / "site-packages"]
    subprocess.run(
        [sys.executable, "-c", LOOP, str(places / "run"), str(root), *modules],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        check=True,
        timeout=120,
    )
    files = archive.read(places / "run" / code.ARCHIVE)
    return {name: files[name] for name in files if "seedbed" not in name}


def test_imported_files_are_kept_and_imported_from_their_zip(places: Path) -> None:
    """In the project and elsewhere, also later and without git; not installed ones, nor scratch.py.

    They are imported by unzip and PYTHONPATH, when the places are gone.
    """
    files = kept(places, "installed", "mine.model")
    assert set(files) == {
        *("src/mine/__init__.py", "src/mine/model.py", "table.py"),
        *("elsewhere/other/__init__.py", "elsewhere/other/part.py", "PYTHONPATH"),
    }
    assert files["PYTHONPATH"] == b"src:.:elsewhere\n"
    digests = record.read_json(places / "run" / "environment.json")["imported_files"]
    for name, content in files.items():
        assert name == "PYTHONPATH" or digests[name] == code.sha256(content)
    for name in ("project", "elsewhere"):
        shutil.rmtree(places / name)
    with zipfile.ZipFile(places / "run" / code.ARCHIVE) as made:
        made.extractall(places / "again")
    command = 'PYTHONPATH=$(cat PYTHONPATH) "$0" -c "import mine.model; print(mine.model.SUM)"'
    words, again = ["sh", "-c", command, sys.executable], places / "again"
    done = subprocess.run(words, cwd=again, capture_output=True, text=True, check=True)
    assert done.stdout == "3\n"


def test_equal_code_gives_equal_bytes_wherever_it_lies(places: Path, tmp_path: Path) -> None:
    """Copies of the places, imported in another order; negative control: one changed line."""
    kept(places, "table", "mine.model")
    first = (places / "run" / code.ARCHIVE).read_bytes()
    copy = Path(shutil.copytree(places, tmp_path / "copy", ignore=shutil.ignore_patterns("copy")))
    kept(copy, "mine.model")
    assert (copy / "run" / code.ARCHIVE).read_bytes() == first
    (copy / "elsewhere" / "other" / "part.py").write_text("P = 3\n")
    kept(copy, "mine.model")
    assert (copy / "run" / code.ARCHIVE).read_bytes() != first


def test_a_run_names_what_it_uses_and_nothing_else(quick_run: Path) -> None:
    """The model's file and the loop's; neither another model nor what starts or compares runs."""
    files = record.read_json(quick_run / "environment.json")["imported_files"]

    assert {"src/tiny/cnn.py", "elsewhere/seedbed/training/loop.py"} <= files.keys()
    assert "src/tiny/recurrent.py" not in files
    assert not [path for path in files if path.startswith("elsewhere/seedbed/compare")]
    kept = archive.read(quick_run / code.ARCHIVE)
    for name, digest in files.items():
        assert code.sha256(kept[name]) == digest
        assert kept[name] == code.read_here(name)


@pytest.mark.long
def test_only_imported_files_keep_a_run_from_resuming(tmp_path: Path) -> None:
    """Without git; a new file does not, nor one that is gone; a changed model does."""
    project = pages.copy_project(tmp_path / "project", {})
    (project / "scratch.py").write_text("x = 1\n")
    steps = ("trainer.max_steps=4", "trainer.checkpoint_every_steps=2", "determinism.threads=1")
    pages.run(project, "train.py", "hydra.run.dir=runs/a", *steps)
    whole = archive.read(project / "runs/a" / code.ARCHIVE)
    model = project / "src/project/models/cnn.py"
    (project / "scratch.py").unlink()
    model.with_name("next.py").write_text("x = 1\n")
    for name, words, status in (
        ("unchanged", [], 0), ("changed", [], 2), ("allowed", ["--allow-changed"], 0)
    ):  # fmt: skip
        run = Path(shutil.copytree(project / "runs/a", project / "runs" / name))
        edit_summary(run, status="interrupted")
        done = pages.run(project, "scripts/resume.py", str(run), *words, status=status)
        assert ("src/project/models/cnn.py" in done.stderr) == (name == "changed")
        now = archive.read(run / code.ARCHIVE)
        changed = [path for path in whole if whole[path] != now[path]]
        assert changed == (["src/project/models/cnn.py"] if name == "allowed" else [])
        if name == "unchanged":
            model.write_text(model.read_text() + "# else\n")
    assert archive.read(run / "code_until_step_4.zip") == whole
