"""A preset in a process that was started by others: set, read back, and what is missing is said."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from seedbed.config import compose
from seedbed.determinism.running import read_preset
from seedbed.errors import InputError
from tests.running import ROOT

CODE = """
import json, sys, warnings, seedbed
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    lines = seedbed.apply_preset(sys.argv[1], **json.loads(sys.argv[2]))
    again = seedbed.apply_preset(sys.argv[1], **json.loads(sys.argv[2]))
from seedbed import determinism
print(json.dumps([lines, again, [str(w.message) for w in caught], determinism.in_force()]))
"""


def applied(name: str, settings: dict[str, Any], **variables: str) -> list[Any]:
    """Apply a preset in a process with some variables; return what it found."""
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LD_LIBRARY_PATH")}
    done = subprocess.run(
        [sys.executable, "-c", CODE, name, json.dumps(settings)],
        cwd=ROOT,
        env={**kept, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_strict_without_its_variables() -> None:
    """The flags are in force; one line has the command with the variables, also the second time."""
    lines, again, warned, flags = applied("strict", {"threads": 1})
    assert lines == again
    assert len(warned) == 2
    assert "\n" not in warned[0]
    command = warned[0].partition("start Python under: env ")[2]
    assert "PYTHONHASHSEED=0" in command
    assert "OMP_NUM_THREADS=1" in command
    assert "CUBLAS" not in command  # which is read later, and set
    assert {line.partition(":")[0] for line in lines} == {
        word.partition("=")[0] for word in command.split()
    }
    assert (flags["on_nondeterministic"], flags["threads"]) == ("error", 1)


def test_strict_under_the_command_that_it_names() -> None:
    """Nothing is missing then, and nothing is warned of."""
    _, _, (warned, _), _ = applied("strict", {"threads": 1})
    command = warned.partition("start Python under: env ")[2]
    variables = dict(word.split("=", 1) for word in command.split())
    lines, _, more, _ = applied("strict", {"threads": 1}, **variables)
    assert (lines, more) == ([], [])


def test_a_variable_that_must_not_be_set_is_named() -> None:
    lines, _, (warned, *_), _ = applied("strict", {}, NVIDIA_TF32_OVERRIDE="1")
    assert any(line.startswith("NVIDIA_TF32_OVERRIDE: expected unset") for line in lines)
    assert "-u NVIDIA_TF32_OVERRIDE" in warned


@pytest.mark.parametrize("name", ["strict", "seeded", "fast", "portable"])
def test_a_preset_is_that_of_train_py(name: str) -> None:
    composed = compose.configuration(f"determinism={name}", "determinism.threads=3")
    preset = read_preset(name, {"threads": 3})
    preset["env"] = {key: None if v is None else str(v) for key, v in preset["env"].items()}
    assert preset == composed.determinism


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="preset: expected one of fast, portable, seeded, strict"):
        read_preset("stirct")
    with pytest.raises(InputError, match="thread: expected a setting of the preset"):
        read_preset("strict", {"thread": 1})
