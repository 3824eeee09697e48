"""What is tried with Seedbed that needs a class: a logger that acts, a refused operation."""

import digits

from seedbed.loggers import Entry, Run


class AfterStep:
    """A logger that does what is tried after each step, but ends the process only once."""

    def __init__(self, run: Run, draws: bool, signal: int | None) -> None:
        self._settings = {"draws": draws, "signal": signal, "resume": bool(run.history)}

    def log(self, entry: Entry) -> None:
        """Do what is tried."""
        if any(name.startswith("train/") for name in entry.values):
            digits.after_step(entry.step, self._settings)

    def save(self) -> None:
        """Save nothing."""

    def close(self, finished: bool) -> None:
        """Close nothing."""


class Refused(digits.Refused):
    """The network with the refused operation, whatever the configuration says of the CNN."""

    def __init__(self, **_: object) -> None:
        super().__init__()
