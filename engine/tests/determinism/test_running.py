"""A preset in a process that was started by others: set, read back, and what is missing is said."""

import json
import os
from typing import Any

import pytest

from seedbed.config import compose
from seedbed.determinism.running import read_preset
from seedbed.errors import InputError
from tests.running import printed

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
    *_, line = printed("-c", CODE, name, json.dumps(settings), environment=kept | variables)
    return json.loads(line)  # type: ignore[no-any-return]


def test_strict_names_the_command_under_which_it_is_in_force() -> None:
    """Flags are set at once; variables that must be there before are named, or not to be set."""
    lines, again, warned, flags = applied("strict", {"threads": 1}, NVIDIA_TF32_OVERRIDE="1")
    assert lines == again
    assert any(line.startswith("NVIDIA_TF32_OVERRIDE: expected unset") for line in lines)
    assert (flags["on_nondeterministic"], flags["threads"]) == ("error", 1)
    unset, *words = warned[0].partition("start Python under: env -u ")[2].split()
    assert unset == "NVIDIA_TF32_OVERRIDE"
    assert "CUBLAS" not in " ".join(words)  # which is read later, and set
    variables = dict(word.split("=", 1) for word in words)
    assert applied("strict", {"threads": 1}, **variables)[:3] == [[], [], []]


@pytest.mark.parametrize("name", ["strict", "seeded", "fast", "portable"])
def test_a_preset_is_that_of_train_py(name: str) -> None:
    composed = compose.configuration(f"determinism={name}", "determinism.threads=3")
    preset = read_preset(name, {"threads": 3})
    preset["env"] = {key: None if v is None else str(v) for key, v in preset["env"].items()}
    assert preset == composed.determinism


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="preset: expected one of fast, portable, seeded, strict"):
        read_preset("stirct")
    with pytest.raises(InputError, match="thread: expected a key of configs"):
        read_preset("strict", {"thread": 1})
