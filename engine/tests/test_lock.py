"""What `make install` installs is what was locked, file by file."""

import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.running import TEMPLATE

UV = Path(sys.executable).with_name("uv")  # as `make install` leaves it
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


def test_a_file_with_another_hash_is_not_installed(tmp_path: Path) -> None:
    """The Makefile gives uv the pins and, as constraints, their hashes: uv must compare
    these, although the pins have none. Negative control: with the file's own hash it is
    installed."""
    digest = hashlib.sha256(wheel(tmp_path).read_bytes()).hexdigest()
    other = hashlib.sha256(b"").hexdigest()
    (tmp_path / "pins.txt").write_text("locked==1.0\n")
    for name, given in (("other", other), ("own", digest)):
        hashes = tmp_path / f"{name}.txt"
        hashes.write_text(f"locked==1.0 \\\n    --hash=sha256:{given}\n")
        options = ["--no-config", "--no-cache", "--no-index", "--find-links", tmp_path]
        files = ["-r", tmp_path / "pins.txt", "-c", hashes, "--target", tmp_path / name]
        done = subprocess.run(
            [UV, "pip", "install", *options, *files], capture_output=True, text=True
        )
        is_installed = (tmp_path / name / "locked.py").exists()
        assert is_installed == (name == "own"), done.stderr
        assert ("Hash mismatch" in done.stderr) == (name == "other"), done.stderr
