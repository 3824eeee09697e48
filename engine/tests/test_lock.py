"""What `make install` installs is what was locked, file by file."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.running import TEMPLATE

PIN = re.compile(r"^([\w.-]+==[^\s;]+)", re.MULTILINE)


def test_every_pin_of_the_lock_has_hashes() -> None:
    hashes = (TEMPLATE / "requirements-hashes.txt").read_text()
    pins = PIN.findall((TEMPLATE / "requirements.txt").read_text())
    assert PIN.findall(hashes) == pins
    assert len(pins) > 50
    entries = re.split(r"\n(?=\w)", hashes)[1:]
    for pin, entry in zip(pins, entries, strict=True):
        assert entry.startswith(pin)
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), pin


def wheel(folder: Path) -> Path:
    """Make a wheel of an empty package `locked` in a folder; return it."""
    path = folder / "locked-1.0-py3-none-any.whl"
    about = "locked-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("locked.py", "")
        archive.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: locked\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{about}/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{about}/RECORD", "")
    return path


@pytest.mark.long
@pytest.mark.parametrize("case", ["own hash", "other hash", "no hash", "other pin"])
def test_make_installs_what_was_locked(case: str, tmp_path: Path) -> None:
    """By uv, and by pip where uv fails; nothing else, and nothing without a hash.

    It fetches uv from the package registry.
    """
    digest = hashlib.sha256(wheel(tmp_path).read_bytes()).hexdigest()
    of_other = hashlib.sha256(b"").hexdigest()
    entry = {
        "other hash": f"locked==1.0 \\\n    --hash=sha256:{of_other}\n",
        "no hash": "locked==1.0\n",
        "other pin": f"locked==1.1 \\\n    --hash=sha256:{digest}\n",
    }
    own = f"locked==1.0 \\\n    --hash=sha256:{digest}\n"
    (tmp_path / "requirements.txt").write_text("locked==1.0\n")
    (tmp_path / "requirements-hashes.txt").write_text(entry.get(case, own))
    shutil.copy(TEMPLATE / "Makefile", tmp_path)
    links = {"UV_FIND_LINKS": str(tmp_path), "PIP_FIND_LINKS": str(tmp_path)}
    words = ["make", "install", f"PYTHON={sys.executable}"]
    how: Any = {"cwd": tmp_path, "capture_output": True, "text": True}
    done = subprocess.run(words, env={**os.environ, **links}, **how)
    is_installed = any(tmp_path.glob(".venv/lib/python*/site-packages/locked.py"))
    assert is_installed == (case == "own hash"), done.stderr
    assert (done.returncode == 0) == is_installed, done.stderr
    if case == "other hash":
        assert "Hash mismatch" in done.stderr  # of uv
        assert "DO NOT MATCH THE HASHES" in done.stderr  # of pip
    elif case == "other pin":
        assert "got others: locked==1.0 locked==1.1 ; do make lock" in done.stderr


def test_an_edit_without_a_new_lock_is_refused(tmp_path: Path) -> None:
    """The environment would lack what has been added."""
    (tmp_path / ".venv").mkdir()
    for name in ("requirements.txt", "requirements-hashes.txt", ".venv/installed"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / "requirements.in").touch()
    shutil.copy(TEMPLATE / "Makefile", tmp_path)
    done = subprocess.run(
        ["make", "install"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].endswith("got an older one; do make lock")
