"""Invalid requests to commands with `--json`: JSON on stdout, one line on stderr,
status 2."""

import json
import shutil
from pathlib import Path

import pytest

from seedbed.cli import COMMANDS
from tests.running import command, refusal

INVALID = {
    "verify": ["{missing}"],
    "compare": ["{missing}", "{missing}"],
    "sweep_report": ["{missing}"],
    "claim": ["check", "{missing}"],
    "runs": ["{missing}"],
    "evaluate": ["{missing}"],
    "predict": ["{missing}", "--out", "{missing}.csv"],
    "export": ["{missing}", "--format", "safetensors", "--out", "{missing}.bin"],
    "publish": ["{missing}", "--out", "{missing}.zip"],
    "search": ["hparams_search=missing"],
}


def test_every_command_with_json_is_tried() -> None:
    """Negative control of the list: no other command takes it."""
    for name in {*COMMANDS} - {*INVALID, "train"}:
        assert "--json" not in command("-m", "seedbed", name, "--help").stdout


@pytest.mark.parametrize("name", INVALID)
@pytest.mark.parametrize("words", [[], ["--no-such-option"]])
def test_an_invalid_request_is_answered_in_json(
    name: str, words: list[str], tmp_path: Path
) -> None:
    """Negative control: without `--json`, stdout is empty."""
    arguments = [word.format(missing=tmp_path / "missing") for word in INVALID[name]]
    done = command("-m", "seedbed", name, *arguments, *words, "--json")
    assert json.loads(done.stdout) == {"error": refusal(done)}
    done = command("-m", "seedbed", name, *arguments, *words)
    assert refusal(done)
    assert done.stdout == ""


@pytest.mark.long
def test_an_error_of_the_evaluating_process_is_answered(
    quick_sweep: Path, tmp_path: Path
) -> None:
    """Of a run; in a sweep, beside the rows of the others. Negative control: a good
    run."""
    sweep = Path(shutil.copytree(quick_sweep, tmp_path / "sweep"))
    first, second = sorted(path.parent for path in sweep.glob("*/config.yaml"))
    (first / "checkpoints" / "best.pt").unlink()
    done = command("-m", "seedbed", "evaluate", str(first), "--json")
    assert json.loads(done.stdout) == {"run": str(first), "error": refusal(done)}
    done = command("-m", "seedbed", "evaluate", str(sweep), "--json")
    bad, good = json.loads(done.stdout)
    assert bad == {"run": str(first), "error": refusal(done)}
    assert good["run"] == str(second)
    assert "test_loss" in good
