"""Run the tests with another Python and another PyTorch, in an environment of their own.

usage: python engine/measure/versions.py FOLDER [--python PYTHON] [--torch VERSION] [-- PYTEST...]

example:
    python engine/measure/versions.py build/3.12-2.11 --python python3.12 --torch 2.11.0

FOLDER becomes a virtual environment of about 6 GB, or is one that an earlier call made. All other
packages have the versions of requirements.txt. What follows `--` goes to pytest: without it, the
tests of `make test` run. Prints the output of pytest and a row of the table in docs/versions.md.

exit status: 0 all tests passed, 1 some did not, 2 there is no such environment
"""

import os
import re
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

from seedbed.config import options
from seedbed.errors import InputError, exit_status

ROOT = Path(__file__).resolve().parents[2]
# A release of PyTorch chooses these, so their pins belong to the pinned release alone.
CHOSEN_BY_TORCH = re.compile(r"(torch|torchvision|triton|setuptools|(cuda|nvidia)-[\w-]+)==")
VERSIONS = (
    "import platform, torch, torchvision;"
    "print(platform.python_version(), torch.__version__, torchvision.__version__, sep=' | ')"
)


def main() -> int:
    """Make the environment where there is none, run the tests, and print the row."""
    parser = options.parser(__doc__)
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--torch", metavar="VERSION")
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:end])
    folder = arguments.folder.absolute()
    python = folder / "bin" / "python"
    if not python.exists():
        install(arguments.python, arguments.torch, folder)
    status, last_line = run_tests(python, words[end + 1 :])
    versions = subprocess.run([python, "-c", VERSIONS], capture_output=True, text=True, check=True)
    print(f"| {versions.stdout.strip()} | {date.today()} | {outcome(last_line)} |")
    return int(status != 0)


def install(base: str, torch: str | None, folder: Path) -> None:
    """Make a virtual environment with one PyTorch, and pins for what it does not choose.

    Raises:
        InputError: the folder is not free, there is no such Python, or pip cannot install that.
    """
    if folder.exists():
        raise InputError(f"FOLDER: expected an environment or no folder, got {folder}; delete it")
    if shutil.which(base) is None:
        raise InputError(f"--python: expected a Python that is installed, got {base}; install it")
    pins = pinned((ROOT / "requirements.txt").read_text(), torch)
    try:
        subprocess.run([base, "-m", "venv", folder], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
        subprocess.run([*pip, *pins, "-e", str(ROOT)], check=True)
    except subprocess.CalledProcessError as error:
        shutil.rmtree(folder)
        raise InputError(
            f"--python, --torch: expected a pair that pip can install, got {base} and torch "
            f"{torch or 'as pinned'}; read its lines above"
        ) from error


def pinned(requirements: str, torch: str | None) -> list[str]:
    """Return what to install: the pins of requirements.txt, with another release of PyTorch."""
    pins = re.findall(r"^[\w-]+==.*$", requirements, re.MULTILINE)
    if torch is None:
        return pins
    return [f"torch=={torch}", "torchvision", *(p for p in pins if not CHOSEN_BY_TORCH.match(p))]


def run_tests(python: Path, words: list[str]) -> tuple[int, str]:
    """Run pytest on the CPU, as `make test` does; return its exit status and its last line."""
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", *words]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    last_line = ""
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as tests:
        assert tests.stdout is not None
        for line in tests.stdout:
            print(line, end="", flush=True)
            last_line = line
    return tests.returncode, last_line


def outcome(last_line: str) -> str:
    """Return how many tests passed, failed and were skipped, from the last line of pytest."""
    return re.sub(r" in [\d.]+s.*", "", last_line.strip("= \n"))


if __name__ == "__main__":
    sys.exit(exit_status(main))
