"""Determinism presets: every setting is set, read back, and missed when it does not hold."""

import json
import subprocess
import sys
from functools import cache
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from seedbed import determinism
from seedbed.errors import InputError
from tests.running import ROOT, command

PRESETS = sorted(path.stem for path in (ROOT / "configs" / "determinism").glob("*.yaml"))
APPLY = """
import json, sys
from seedbed import determinism
preset = json.loads(sys.argv[1])
before = determinism.in_force()
determinism.apply(preset)
print(json.dumps([before, determinism.in_force(), determinism.differences(preset)]))
"""


def preset(name: str) -> dict[str, Any]:
    tree = OmegaConf.create(
        {"determinism": OmegaConf.load(ROOT / "configs" / "determinism" / f"{name}.yaml")}
    )
    return OmegaConf.to_container(tree, resolve=True)["determinism"]  # type: ignore[index, return-value, call-overload]


def applied(chosen: dict[str, Any], environment: dict[str, str]) -> list[Any]:
    """Apply a preset in a fresh process; return the flags before and after, and what differs."""
    return json.loads(_applied(json.dumps(chosen), tuple(environment.items())))  # type: ignore[no-any-return]


@cache
def _applied(chosen: str, environment: tuple[tuple[str, str], ...]) -> str:
    words = [sys.executable, "-c", APPLY, chosen]
    how: dict[str, Any] = {"capture_output": True, "text": True, "check": True, "timeout": 120}
    return str(subprocess.run(words, env=dict(environment), **how).stdout)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_in_force_after_it_was_applied(name: str) -> None:
    """What a preset asks for is what the backends report, in a fresh process."""
    chosen = preset(name)
    environment = determinism.environment_variables(chosen, {"PATH": "/usr/bin:/bin"})
    _, after, differences = applied(chosen, environment)
    assert differences == []
    for path, asked in determinism.asked_flags(chosen).items():
        assert asked is None or after[path] == asked


def test_every_flag_that_can_be_set_is_set() -> None:
    """Twin: a preset that asks for the opposite of each default changes each flag."""
    chosen = preset("strict")
    opposite = json.loads(json.dumps(chosen))
    for path, value in determinism.asked_flags(chosen).items():
        *sections, last = path.split(".")
        section = opposite
        for part in sections:
            section = section[part]
        if isinstance(value, bool):
            section[last] = not value
    opposite |= {"on_nondeterministic": "warn", "float32_matmul_precision": "medium", "threads": 3}
    environment = determinism.environment_variables(chosen, {"PATH": "/usr/bin:/bin"})
    _, strict, _ = applied(chosen, environment)
    _, other, _ = applied(opposite, environment)
    unchanged = {path for path in strict if strict[path] == other[path]}
    assert unchanged == {"interop_threads", "cpu_capability", "mkl_branch", "avx"}


def test_presets_list_the_same_knobs() -> None:
    """A setting is in every preset's file, or in none; so a preset never inherits by accident."""
    knobs = {name: set(determinism.asked_flags(preset(name))) for name in PRESETS}
    for name in PRESETS:
        assert knobs[name] == knobs["strict"] == set(determinism.flags())


def test_a_variable_that_must_not_be_set_is_refused() -> None:
    """TF32 is not switched on behind the flags."""
    with pytest.raises(InputError, match=r"NVIDIA_TF32_OVERRIDE: expected no such .*got '1'"):
        determinism.environment_variables(preset("strict"), {"NVIDIA_TF32_OVERRIDE": "1"})
    # Twins: presets that promise less do not mind; of other variables the preset wins.
    assert determinism.environment_variables(preset("fast"), {"NVIDIA_TF32_OVERRIDE": "1"})
    environment = determinism.environment_variables(preset("strict"), {"OMP_NUM_THREADS": "7"})
    assert environment["OMP_NUM_THREADS"] == "2"


def test_what_is_in_force_but_not_asked_is_found() -> None:
    """Reading back would be worth nothing if it could not find a difference."""
    chosen = preset("strict")
    environment = determinism.environment_variables(chosen, {"PATH": "/usr/bin:/bin"})
    environment |= {"PYTHONHASHSEED": "1", "MKL_CBWR": "AVX2"}
    _, _, lines = applied(chosen | {"cpu_capability": "Z80"}, environment)
    assert sorted(line.partition(",")[0] for line in lines) == [
        "MKL_CBWR: expected unset in the environment",
        "PYTHONHASHSEED: expected 0 in the environment",
        "determinism.cpu_capability: expected Z80",
    ]


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.long
def test_the_compiler_is_imported_as_the_preset_says(asked: bool) -> None:
    """A flag for a module that is not imported yet holds when it is."""
    program = (
        "import sys; from seedbed import determinism\n"
        f"determinism.apply({{'inductor_deterministic': {asked}}})\n"
        f"assert determinism.in_force()['inductor_deterministic'] is {asked}\n"
        "assert 'torch._inductor.config' not in sys.modules\n"
        "import torch._inductor.config\n"
        "print(torch._inductor.config.deterministic)\n"
        f"determinism.apply({{'inductor_deterministic': {not asked}}})\n"
        f"assert torch._inductor.config.deterministic is {not asked}\n"
    )
    otherwise = {determinism.INDUCTOR_VARIABLE: str(int(not asked))}
    done = command("-c", program, environment=otherwise)
    assert done.stdout == f"{asked}\n", done.stderr


def test_recurrent_layers_alone_leave_memory_unfilled() -> None:
    """The flag is as before behind the layer, also where it raised; the bits are the same."""
    seen = []

    class Seen(torch.nn.LSTM):
        def forward(self, *inputs: Any) -> Any:
            seen.append(torch.utils.deterministic.fill_uninitialized_memory)
            return super().forward(*inputs)

    torch.manual_seed(0)
    model, x = torch.nn.Sequential(Seen(3, 4)), torch.ones(2, 5, 3)
    plain, flags = model(x)[0], torch.utils.deterministic
    assert flags.fill_uninitialized_memory
    determinism.leave_recurrent_unfilled(model)
    assert torch.equal(model(x)[0], plain)
    with pytest.raises(RuntimeError):
        model(torch.ones(2, 5, 7))
    assert flags.fill_uninitialized_memory
    assert seen == [True, False, False]
