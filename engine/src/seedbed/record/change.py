"""One thing that is not the same in two records."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Change:
    """A setting, an entry of the environment or a file that is not the same in two records.

    Attributes:
        before, now: its value in the first record (A, or the checkpoint's) and in the second; None
            where it is absent.
        alters_bits: whether it can alter a bit of a run.
        kind: configuration, environment or code.
    """

    key: str
    before: Any
    now: Any
    alters_bits: bool = True
    kind: str = "configuration"

    def __str__(self) -> str:
        return f"{self.key} {self.before} -> {self.now}"
