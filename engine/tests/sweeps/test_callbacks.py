"""The start and the end of a sweep."""

import sys
from functools import partial
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from seedbed.config import command, launchers
from seedbed.errors import InputError
from seedbed.sweeps import callbacks


def test_an_error_of_our_own_ends_a_sweep_before_its_first_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hydra would make a warning of it and go on without a record of the sweep."""

    def broken(_hydra: object) -> None:
        raise ZeroDivisionError("why")

    monkeypatch.setattr(launchers, "prepare", broken)
    config = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}}})
    with pytest.raises(SystemExit) as ended:
        callbacks.SweepFolder().on_multirun_start(config)
    assert ended.value.code == 1
    assert "ZeroDivisionError: why" in capsys.readouterr().err


class TestReportOfASweep:
    def test_what_ended_a_sweep_without_runs_is_not_hidden(self, tmp_path: Path) -> None:
        """There is nothing to report, and the error that there is says why."""
        assert callbacks.report_sweep(tmp_path, ended_early=True) is False

    def test_a_sweep_without_runs_that_nothing_ended_is_an_error(self, tmp_path: Path) -> None:
        """Twin: nobody else would say so."""
        with pytest.raises(InputError, match="expected a folder of runs"):
            callbacks.report_sweep(tmp_path, ended_early=False)

    @pytest.mark.parametrize("error", [KeyboardInterrupt, InputError, RuntimeError])
    def test_errors_pass_through_the_report(
        self, error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ctrl-C before the first run is still Ctrl-C."""

        def ended() -> None:
            raise error("why")

        report = partial(callbacks.report_sweep, tmp_path)
        monkeypatch.setattr(command, "_at_end", [report])
        monkeypatch.setattr(sys, "argv", ["train.py"])
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
        with pytest.raises(error, match="why"):
            command.run(ended)
