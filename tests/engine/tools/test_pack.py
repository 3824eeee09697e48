"""A package replays where it is taken, is the same bytes for the same run, and is only data."""

import json
import os
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from seedbed.errors import InputError
from seedbed.tools import package
from tests.engine.tools.conftest import contents
from tests.running import command, refusal

PATCH = b"""diff --git a/src/project/marker.py b/src/project/marker.py
new file mode 100644
index 0000000..be0494f
--- /dev/null
+++ b/src/project/marker.py
@@ -0,0 +1 @@
+MARKER = 1
"""


@pytest.fixture(scope="module")
def packed(
    run: Path, before: Mapping[Path, bytes], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("packed") / "paper.zip"
    done = command("scripts/pack.py", str(run), str(out))
    assert done.returncode == 0, done.stderr
    assert contents(run) == before
    return out


def test_a_package_is_replayed_when_that_is_asked_for(packed: Path) -> None:
    """Control: without --restore-code it says what it would execute, and executes nothing."""
    done = command("scripts/verify.py", str(packed))
    assert done.returncode == 2
    assert "would execute" in done.stdout
    assert "REPRODUCED" not in done.stdout
    done = command("scripts/verify.py", str(packed), "--restore-code")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "REPRODUCED" in done.stdout
    assert "through step 12" in done.stdout


def test_another_result_is_not_reproduced(packed: Path, tmp_path: Path) -> None:
    """One bit of a package's fingerprints flipped: exit status 1, with the step and the stage."""
    changed = tmp_path / "changed.zip"
    with zipfile.ZipFile(packed) as old, zipfile.ZipFile(changed, "w") as new:
        for entry in old.infolist():
            content = old.read(entry)
            if entry.filename.endswith("fingerprints.csv"):
                lines = content.decode().splitlines()
                cells = lines[2].split(",")
                cells[3] = f"{int(cells[3], 16) ^ 1:016x}"
                lines[2] = ",".join(cells)
                content = ("\n".join(lines) + "\n").encode()
            new.writestr(entry, content)
    done = command("scripts/verify.py", str(changed), "--restore-code")
    assert done.returncode == 1, done.stderr
    assert "NOT REPRODUCED: the runs diverge at step 2: loss" in done.stdout


def test_the_same_runs_are_the_same_bytes(run: Path, packed: Path, tmp_path: Path) -> None:
    """Wherever they lie, whenever they were written; a sweep has each run, and the code once."""
    sweep = tmp_path / "sweep"
    for name in ("0_seed=0", "1_seed=1"):
        shutil.copytree(run, sweep / name)
        for path in (sweep / name).iterdir():
            os.utime(path, (1, 1))
    assert package.pack(sweep / "0_seed=0") == packed.read_bytes()
    (tmp_path / "sweep.zip").write_bytes(package.pack(sweep))
    names = zipfile.ZipFile(tmp_path / "sweep.zip").namelist()
    assert names == sorted(names)
    assert {name.split("/")[1] for name in names if name.startswith("runs/")} == {"1", "2"}
    assert sum(name.startswith("code/") for name in names) == 1


def test_the_code_of_the_package_is_what_is_imported(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commit and patch, first on the path of what is started meanwhile, and not afterwards."""
    monkeypatch.setenv("PYTHONPATH", "before")
    (run,) = package.unpack(packed, tmp_path)
    patch = run / "source.patch"
    patch.write_bytes(PATCH)
    with package.importing_code(tmp_path, run):
        first = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0])
        assert first.is_relative_to(tmp_path)
        assert (first / "seedbed" / "rng.py").is_file()
        assert (first / "project" / "marker.py").read_text() == "MARKER = 1\n"
    assert os.environ["PYTHONPATH"] == "before"
    shutil.rmtree(tmp_path / "trees")
    patch.write_bytes(PATCH.replace(b"src/project/marker.py", b"../../../marker.py"))
    with pytest.raises(InputError, match="apply failed"), package.importing_code(tmp_path, run):
        pass
    assert not (tmp_path.parent / "marker.py").exists()


def entry(name: str, mode: int = 0o100644, kind: int = zipfile.ZIP_STORED) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(name)
    made.external_attr, made.compress_type, made.create_system = mode << 16, kind, 3
    return made


@pytest.mark.parametrize(
    "bad",
    [
        entry("../escaped"),
        entry("/tmp/escaped"),
        entry("runs/1/../../../escaped"),
        entry("runs/1/checkpoints/last.pt"),
        entry("runs/1/config.yaml/x"),
        entry("code/main.tar"),
        entry("README.md", mode=0o120777),
        entry("README.md", kind=zipfile.ZIP_DEFLATED),
    ],
    ids=lambda bad: f"{bad.filename} {bad.external_attr >> 16:o} {bad.compress_type}",
)
def test_strange_entries_are_refused(bad: zipfile.ZipInfo, tmp_path: Path) -> None:
    """Paths outside, other names, links, what unpacks to more than it is."""
    out, folder = tmp_path / "strange.zip", tmp_path / "in" / "folder"
    with zipfile.ZipFile(out, "w") as file:
        file.writestr(bad, b"content")
    with pytest.raises(InputError, match="expected files of a package"):
        package.unpack(out, folder)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [out]


def test_files_that_are_no_package_are_refused(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off, foreign, empty, too large, missing: one line each."""
    out = tmp_path / "p.zip"
    out.write_bytes(packed.read_bytes()[:-1000])
    assert "expected a package" in refusal(command("scripts/verify.py", str(out)))
    (tmp_path / "empty.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    for path in (tmp_path / "empty.zip", tmp_path / "missing.zip"):
        with pytest.raises(InputError, match="expected a package"):
            package.unpack(path, tmp_path / "folder")
    monkeypatch.setattr(package, "MAX_BYTES", packed.stat().st_size - 1)
    with pytest.raises(InputError, match="expected at most"):
        package.unpack(packed, tmp_path / "folder")


def test_what_cannot_be_repeated_is_not_packed(run: Path, tmp_path: Path) -> None:
    """Runs that did not finish, code that is in no record; nothing is written."""
    copy, out = Path(shutil.copytree(run, tmp_path / "copy")), tmp_path / "p.zip"
    summary, environment = copy / "summary.json", copy / "environment.json"
    before = summary.read_text()
    summary.write_text(json.dumps(json.loads(before) | {"status": "interrupted"}))
    assert "resume it" in refusal(command("scripts/pack.py", str(copy), str(out)))
    summary.write_text(before)
    state = json.loads(environment.read_text())
    for git, message in (
        ({"lacks": {"src/x.py": "large"}}, "lacks src/x.py"),
        ({"commit": "0" * 40}, "fetch it"),
    ):
        environment.write_text(json.dumps(state | {"git": state["git"] | git}))
        with pytest.raises(InputError, match=message):
            package.pack(copy)
    with pytest.raises(InputError, match="got 0"):
        package.pack(tmp_path / "nothing")
    assert ".zip" in refusal(command("scripts/pack.py", str(run), str(tmp_path / "p.tar")))
    assert not out.exists()
