"""A package replays where it is taken, is the same bytes for the same run, and is only data."""

import io
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from seedbed.compare import verify
from seedbed.errors import InputError
from seedbed.tools import package
from tests import tiny
from tests.running import ROOT, command, refusal
from tests.tools.conftest import contents

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


@pytest.mark.long
def test_a_package_is_replayed_when_that_is_asked_for(packed: Path) -> None:
    """Control: without --restore-code it says what it would execute, and executes nothing."""
    done = command("scripts/verify.py", str(packed))
    assert done.returncode == 2
    assert "12 steps, by the code of commit " in done.stdout
    assert f"nothing was executed; to do so: scripts/verify.py {packed}" in done.stdout
    assert "REPRODUCED" not in done.stdout
    done = command("scripts/verify.py", str(packed), "--restore-code")
    assert done.returncode == 0, done.stdout + done.stderr
    before, _, outcome = done.stdout.partition(f"REPRODUCED run 1 of {packed}")
    assert "replaying 12 steps, which took " in before
    assert "through step 12" in outcome
    assert "git.commit" not in done.stdout
    assert "seedbed-verify-" not in done.stdout


@pytest.mark.long
def test_another_result_is_not_reproduced(packed: Path, tmp_path: Path) -> None:
    """One bit of a package's fingerprints flipped: exit status 1, with the step and the stage."""
    changed, entries = tmp_path / "changed.zip", dict[str, bytes]()
    with zipfile.ZipFile(packed) as old, zipfile.ZipFile(changed, "w") as new:
        for entry in old.infolist():
            content = old.read(entry)
            if entry.filename.endswith("fingerprints.csv"):
                lines = content.decode().splitlines()
                cells = lines[2].split(",")
                cells[3] = f"{int(cells[3], 16) ^ 1:016x}"
                lines[2] = ",".join(cells)
                content = ("\n".join(lines) + "\n").encode()
            if entry.filename != "SHA256SUMS":
                entries[entry.filename] = content
        entries["SHA256SUMS"] = package._sums(entries)
        for name, content in entries.items():
            new.writestr(name, content)
    done = command("scripts/verify.py", str(changed), "--restore-code")
    assert done.returncode == 1, done.stderr
    assert "NOT REPRODUCED: the runs diverge at step 2: loss" in done.stdout


def test_the_same_runs_are_the_same_bytes(
    run: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever they lie, whenever they were written; a sweep has each run, and the code once.

    Also under a user's settings of git, which change the modes and line ends of `git archive`.
    """
    (tmp_path / ".gitconfig").write_text("[tar]\numask = 0077\n[core]\nautocrlf = true\n")
    monkeypatch.setenv("HOME", str(tmp_path))
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


def test_the_code_of_the_package_is_what_is_imported(packed: Path, tmp_path: Path) -> None:
    """Commit and patch, and it goes away; a patch that leads out of the code is refused."""
    (run,) = package.unpack(packed, tmp_path / "in")
    held = verify.read(run)
    with package.code_of(run, replace(held, patch=PATCH)) as tree:
        first = Path(tree.variables["PYTHONPATH"].split(os.pathsep)[0])
        assert first.is_relative_to(tmp_path)
        assert (first / "seedbed" / "rng.py").is_file()
        assert (first / "project" / "marker.py").read_text() == "MARKER = 1\n"
    assert not tree.root.exists()
    out = PATCH.replace(b"src/project/marker.py", b"../../../marker.py")
    with (
        pytest.raises(InputError, match="apply failed"),
        package.code_of(run, replace(held, patch=out)),
    ):
        pass
    assert not (tmp_path / "marker.py").exists()


def link(name: str, target: str) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = tarfile.SYMTYPE, target
    return made


def of_size(name: str, size: int) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.size = size
    return made


@pytest.mark.parametrize(
    "bad",
    [
        of_size("../escaped", 0),
        link("src/link", "/etc/passwd"),
        link("src/link", "../../escaped"),
        of_size("src/large", package.MAX_BYTES + 1),
    ],
    ids=lambda bad: f"{bad.name} {bad.linkname} {bad.size}",
)
def test_code_that_leads_out_is_refused(packed: Path, tmp_path: Path, bad: tarfile.TarInfo) -> None:
    """Paths and links outside, and more than fits: one line, and nothing is written outside."""
    (run,) = package.unpack(packed, tmp_path / "in")
    held = verify.read(run)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(replace_size(bad))
    content = buffer.getvalue()
    if bad.size:  # a header alone: who reads it must not go by it
        content = bad.tobuf() + bytes(1024)
    (run.parents[1] / f"code/{held.code.commit}.tar").write_bytes(content)
    with (
        pytest.raises(InputError, match=r"^code/\w+\.tar: expected") as caught,
        package.code_of(run, held),
    ):
        pass
    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert not (tmp_path / "escaped").exists()
    assert not (tmp_path / "in" / "escaped").exists()


def replace_size(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return an entry that can be written: without content."""
    made = tarfile.TarInfo(member.name)
    made.type, made.linkname = member.type, member.linkname
    return made


def rewritten(packed: Path, out: Path, change: Callable[[dict[str, bytes]], object]) -> Path:
    """Write a package with other entries."""
    with zipfile.ZipFile(packed) as old:
        entries = {name: old.read(name) for name in old.namelist()}
    change(entries)
    with zipfile.ZipFile(out, "w") as new:
        for name, content in entries.items():
            new.writestr(name, content)
    return out


@pytest.mark.parametrize(
    "change",
    [
        lambda entries: entries.update({"runs/1/config.yaml": b"seed: 1\n"}),
        lambda entries: entries.pop("SHA256SUMS"),
        lambda entries: entries.pop("requirements.txt"),
        lambda entries: entries.update({"code/" + "0" * 40 + ".tar": b""}),
    ],
    ids=["changed", "without digests", "without a file", "with another"],
)
def test_wrong_digests_are_refused(
    packed: Path, tmp_path: Path, change: Callable[[dict[str, bytes]], object]
) -> None:
    """What is not as SHA256SUMS says; nothing is taken out. Control: the same bytes again."""
    assert package.unpack(rewritten(packed, tmp_path / "same.zip", len), tmp_path / "same")
    out = rewritten(packed, tmp_path / "changed.zip", change)
    with pytest.raises(InputError, match="SHA256SUMS"):
        package.unpack(out, tmp_path / "in")
    assert not (tmp_path / "in").exists()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_comes_twice_is_refused(packed: Path, tmp_path: Path) -> None:
    """Which of the two would be replayed?"""
    out = Path(shutil.copy(packed, tmp_path / "twice.zip"))
    with zipfile.ZipFile(out, "a") as package_file:
        package_file.writestr("runs/1/config.yaml", b"seed: 1\n")
    with pytest.raises(InputError, match=r"each once .* got 'runs/1/config\.yaml'"):
        package.unpack(out, tmp_path / "in")


def test_digests_of_code_lock_and_data_are_in_it(packed: Path, run: Path) -> None:
    """A reader checks the files by sha256sum, and the data by the README."""
    data = json.loads((run / "environment.json").read_text())["data_sha256"]
    with zipfile.ZipFile(packed) as file:
        readme, sums = (file.read(name).decode() for name in ("README.md", "SHA256SUMS"))
        assert file.read("requirements.txt") == (ROOT / "requirements.txt").read_bytes()
    assert data
    assert all(f"{digest}  {name}" in readme for name, digest in data.items())
    assert sums.count("\n") == len(zipfile.ZipFile(packed).namelist()) - 1


@pytest.mark.long
def test_every_run_of_a_sweep_is_replayed(tmp_path: Path) -> None:
    """Of one package, each with its own settings."""
    words = ["-m", "seed=0,1", f"hydra.sweep.dir={tmp_path / 'sweep'}", "determinism.threads=1"]
    done = command("train.py", *words, *tiny.OVERRIDES, "trainer.max_steps=3")
    assert done.returncode == 0, done.stderr
    out = tmp_path / "sweep.zip"
    done = command("scripts/pack.py", str(tmp_path / "sweep"), str(out))
    assert done.returncode == 0, done.stderr
    done = command("scripts/verify.py", str(out), "--restore-code", "--trust", "tests.tiny")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [f"REPRODUCED run {n} of {out}" in done.stdout for n in (1, 2, 3)] == [True, True, False]
    assert "git.commit" not in done.stdout
    assert "seedbed-" not in done.stdout


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
        entry("runs/1/source.patch ", kind=zipfile.ZIP_LZMA),
        entry("runs\\1\\config.yaml"),
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
    with zipfile.ZipFile(tmp_path / "short.zip", "w") as file:
        file.writestr("README.md", b"content")
        file.filelist[0].file_size = file.filelist[0].compress_size = 7000
    for path in (tmp_path / "empty.zip", tmp_path / "short.zip", tmp_path / "missing.zip"):
        with pytest.raises(InputError, match=r"expected a package .*, got \S"):
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
