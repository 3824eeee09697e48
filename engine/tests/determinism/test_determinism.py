"""Determinism presets: every setting is applied and read back; differences are
reported.

In a training process, in a process that Seedbed did not start, and on an unsuitable
processor.
"""

import json
import os
import platform
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from seedbed import assemble, config, determinism, launch, record
from seedbed.config import compose
from seedbed.determinism import backends
from seedbed.determinism.running import read_preset as preset
from seedbed.errors import InputError
from seedbed.methods import Supervised
from tests.running import QUICK, ROOT, printed, refusal, train, trained, typed

PRESETS = sorted(
    path.stem for path in (ROOT / "configs" / "determinism").glob("*.yaml")
)
# Applies a preset before each change; prints flags and differences after it.
APPLY = """
import json, sys, torch
from seedbed import determinism
preset, backends, found = json.loads(sys.argv[1]), torch.backends, []
backends.fp32_precision = "tf32"  # which what is not set would take
for change in json.loads(sys.argv[2]):
    determinism.apply(preset)
    exec(change)
    found.append([determinism.in_force(), determinism.differences(preset)])
print(json.dumps(found))
"""


def environment_of(chosen: dict[str, Any]) -> dict[str, str]:
    return determinism.environment_variables(chosen, {"PATH": "/usr/bin:/bin"})


def applied(
    chosen: dict[str, Any],
    environment: dict[str, str],
    *changes: str,
    prefix: Sequence[str] = (),
) -> list[Any]:
    """Apply a preset in a fresh process; return flags and differences, alone and per
    change."""
    words = ("-c", APPLY, json.dumps(chosen), json.dumps(["", *changes]))
    [line] = printed(*words, environment=environment, prefix=prefix)
    return json.loads(line)  # type: ignore[no-any-return]


@pytest.mark.long
def test_every_flag_that_can_be_set_is_set() -> None:
    """A fresh process reads them back. Negative control: opposite settings change each
    flag."""
    chosen = preset("strict")
    others = {
        "on_nondeterministic": "warn",
        "float32_matmul_precision": "medium",
        "threads": 3,
    }
    others["replace_except"] = ["put_"]
    opposite = OmegaConf.create(chosen | others)
    for path, value in determinism.asked_flags(chosen).items():
        if isinstance(value, bool):
            OmegaConf.update(opposite, path, not value)
    [[strict, ours]] = applied(chosen, environment_of(chosen))
    [[other, theirs]] = applied(
        OmegaConf.to_container(opposite), environment_of(chosen)
    )
    assert ours == theirs == []
    unchanged = {path for path in strict if strict[path] == other[path]}
    assert unchanged == {"interop_threads", "cpu_capability", "mkl_branch", "avx"}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_that_of_train_py_and_lists_every_flag(name: str) -> None:
    """Each file lists all flags, so no preset inherits a value by accident."""
    composed = compose.configuration(f"determinism={name}", "determinism.threads=3")
    chosen = preset(name, {"threads": 3})
    chosen["env"] = {
        key: None if v is None else str(v) for key, v in chosen["env"].items()
    }
    assert chosen == composed.plain["determinism"]
    assert set(determinism.asked_flags(chosen)) == set(backends.flags())


def test_a_variable_that_must_not_be_set_is_refused() -> None:
    """NVIDIA_TF32_OVERRIDE would enable TF32 in spite of the flags."""
    with pytest.raises(
        InputError, match=r"NVIDIA_TF32_OVERRIDE: expected it unset .*got '1'"
    ):
        determinism.environment_variables(
            preset("strict"), {"NVIDIA_TF32_OVERRIDE": "1"}
        )
    # Negative controls: `fast` accepts it, and `strict` overrides other variables.
    assert determinism.environment_variables(
        preset("fast"), {"NVIDIA_TF32_OVERRIDE": "1"}
    )
    environment = determinism.environment_variables(
        preset("strict"), {"OMP_NUM_THREADS": "7"}
    )
    assert environment["OMP_NUM_THREADS"] == "2"


def test_flags_that_code_sets_are_found_and_named() -> None:
    """Also flags set through PyTorch's newer API, whose values the older one refuses to
    read."""
    changes = {
        "torch.use_deterministic_algorithms(False)": (
            "on_nondeterministic: expected error"
        ),
        "torch.set_float32_matmul_precision('medium')": (
            "float32_matmul_precision: expected high"
        ),
        "backends.mkldnn.conv.fp32_precision = 'bf16'": (
            "float32_matmul_precision: expected high"
        ),
        "backends.cuda.matmul.fp32_precision = 'tf32'": (
            "float32_matmul_precision: expected high"
        ),
        "backends.cudnn.allow_tf32 = True": (
            "cudnn.allow_tf32: expected False, got True"
        ),
        "backends.cudnn.rnn.fp32_precision = 'tf32'": (
            "cudnn.allow_tf32: expected False, got True"
        ),
        "torch.set_num_threads(7)": "threads: expected 2, got 7",
        "backends.cudnn.benchmark = True": "cudnn.benchmark: expected False, got True",
        "backends.fp32_precision = 'none'": "",
        "with backends.cudnn.flags(benchmark=True): pass": "",
        "torch.manual_seed(3)": "",
    }
    chosen = preset("strict")
    [(_, none), *found] = applied(chosen, environment_of(chosen), *changes)
    assert none == []
    for (change, start), (_, lines) in zip(changes.items(), found, strict=True):
        assert bool(lines) == bool(start), (change, lines)
        assert not lines or lines[0].startswith(f"determinism.{start}"), (change, lines)


class Switching(Supervised):
    """Changes the matmul precision: in the constructor, or in a step."""

    def __init__(self, at: int, **options: Any) -> None:
        super().__init__(**options)
        self.at = at
        self.on_step_end(None, 0)

    def on_step_end(self, model: Any, step: int) -> None:
        if step == self.at:
            torch.set_float32_matmul_precision("medium")


@pytest.mark.parametrize(("at", "steps"), [(0, 0), (7, 4)])
def test_a_run_stops_where_code_switches_a_flag(
    at: int, steps: int, tmp_path: Path
) -> None:
    """After the build or before a checkpoint. Negative control: an earlier checkpoint
    is saved."""
    method = (f"method._target_={__name__}.Switching", f"+method.at={at}")
    done = train(tmp_path / "run", *QUICK, *method, "trainer.checkpoint_every_steps=4")
    line = "determinism.float32_matmul_precision: expected highest, got medium in force"
    assert refusal(done).startswith(line)
    last = tmp_path / "run" / "checkpoints" / "last.pt"
    saved = torch.load(last)["progress"]["step"] if last.exists() else 0
    assert saved == steps


CODE = """
import json, warnings, seedbed
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    lines = seedbed.apply_preset("strict", threads=1)
from seedbed import determinism
print(json.dumps([lines, [str(w.message) for w in caught], determinism.in_force()]))
"""


def applied_here(**variables: str) -> list[Any]:
    """Apply strict in a fresh process with some variables; return lines, warnings and
    flags."""
    kept = {
        k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LD_LIBRARY_PATH")
    }
    *_, line = printed("-c", CODE, environment=kept | variables)
    return json.loads(line)  # type: ignore[no-any-return]


@pytest.mark.long
def test_strict_names_the_command_under_which_it_is_in_force() -> None:
    """Flags are set at once; variables that must be set or unset before the start are
    named."""
    lines, warned, flags = applied_here(NVIDIA_TF32_OVERRIDE="1")
    assert any(
        line.startswith("NVIDIA_TF32_OVERRIDE: expected unset") for line in lines
    )
    assert (flags["on_nondeterministic"], flags["threads"]) == ("error", 1)
    unset, *words = warned[0].partition("start Python under: env -u ")[2].split()
    assert unset == "NVIDIA_TF32_OVERRIDE"
    assert "CUBLAS" not in " ".join(words)  # read late, so it was set
    variables = dict(word.split("=", 1) for word in words)
    assert applied_here(**variables)[:2] == [[], []]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(
        InputError, match="preset: expected one of fast, portable, seeded, strict"
    ):
        preset("stirct")
    with pytest.raises(InputError, match="thread: expected a key of configs"):
        preset("strict", {"thread": 1})


AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
needs_x86_64 = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="portable is for x86-64"
)


@needs_x86_64
@pytest.mark.long
def test_an_lstm_in_bfloat16_is_refused_on_avx2_and_has_a_way_out(
    tmp_path: Path,
) -> None:
    """One line names the layer and two settings that work; the second one is tested."""
    words = ("model=lstm", "trainer.precision=bfloat16", "trainer.max_steps=1")
    held = tuple(f"++determinism.env.{name}={value}" for name, value in AVX2.items())
    message = refusal(train(tmp_path / "refused", *QUICK, *words, *held))
    assert message.startswith("trainer.precision: expected float32 for an LSTM on a ")
    assert "in module layer" in message
    trained(tmp_path / "run", *words, *held, "determinism.mkldnn.enabled=false")


@pytest.mark.long
@needs_x86_64
def test_what_a_machine_takes_from_its_processor_is_part_of_the_run(
    tmp_path: Path,
) -> None:
    """Variables that a machine sets for all users are recorded, and set again where
    missing."""
    limits = {"ATEN_CPU_CAPABILITY": "default", "OPENBLAS_CORETYPE": "Nehalem"}
    run = trained(tmp_path / "run", environment=limits)
    kept = record.read_config(run).determinism.env
    assert {name: kept[name] for name in limits} == limits
    again = launch.training_environment(config.check(record.read_config(run)))
    assert {name: again[name] for name in limits} == limits


@pytest.mark.parametrize(("name", "refused"), [("portable", True), ("strict", False)])
def test_portable_is_refused_on_arm_and_strict_is_not(
    name: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """portable pins x86-64 libraries: the error names the processor, not a flag's
    value."""
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(determinism, "apply", lambda _: None)
    monkeypatch.setattr(determinism, "differences", lambda _: [])
    said = "determinism.avx: expected an x86-64 processor, got arm64"
    with pytest.raises(InputError, match=said) if refused else nullcontext():
        assemble.prepare_backends(typed(determinism=preset(name)))
