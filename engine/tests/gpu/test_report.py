"""The report on a GPU finds what does not repeat, and a table that fails does not end
the rest."""

import os
import time
from pathlib import Path
from unittest.mock import patch

import gates
import gpu
import pytest

from seedbed import project
from seedbed.errors import InputError
from tests.running import TEMPLATE


@pytest.mark.long
def test_the_gates_on_the_cpu(tmp_path: Path) -> None:
    """All rows of one model are `same`. Negative control: another dropout seed differs,
    and would fail if it were used where nothing may differ."""
    few = {name: gates.WAYS[name] for name in list(gates.WAYS)[-3:]}
    with (
        patch.dict(os.environ, {project.PROJECT: str(TEMPLATE)}),
        patch.object(gates, "WAYS", few),
        patch.object(gates, "MODELS", {"CNN": gates.MODELS["CNN"]}),
        patch.object(gates.ways, "ROOT", TEMPLATE),
    ):
        table = gates.tables("cpu", tmp_path)["Gates"](time.monotonic() + 300)
    rows = dict(line.strip("| ").split(" | ") for line in table.splitlines()[2:])
    control = rows.pop("another dropout seed: must differ")
    assert control == "step 1, loss"
    assert set(rows.values()) == {"same"}, table
    assert len(rows) == 5
    assert list(tmp_path.glob("gates/CNN/sharded*.store")), (
        "it was a group of processes"
    )


def test_a_table_ends_with_its_error() -> None:
    def refused(_: float) -> str:
        raise InputError("data.root: expected a folder, got none")

    def broken(_: float) -> str:
        raise ZeroDivisionError("division by zero")

    now = time.monotonic()
    assert gpu.attempt(lambda _: "| a table |", now + 60) == "| a table |"
    assert (
        gpu.attempt(refused, now + 60)
        == "failed: data.root: expected a folder, got none"
    )
    assert (
        gpu.attempt(broken, now + 60) == "failed: ZeroDivisionError: division by zero"
    )
    assert gpu.attempt(lambda _: "| a table |", now + 1) == "failed: no time was left"


def test_operations_with_two_results_are_named(tmp_path: Path) -> None:
    """From what the script has printed before its time ended, and not from half a
    line."""
    out = tmp_path / "out.jsonl"
    lines = [
        '["strict", "a", "one result"]',
        '["strict", "b", "2 results"]',
        '["fast", "a", "o',
    ]

    class Ended:
        def __enter__(self) -> "Ended":
            out.write_text("\n".join(lines))
            return self

        def __exit__(self, *_: object) -> None: ...

        def poll(self) -> int:
            return 0

    with patch.object(gates.ways, "started", lambda *_, **__: Ended()):
        text = gates.operations("cpu", out, time.monotonic() + 5)
    assert text.splitlines()[2:] == [
        "- `strict`, one result (1): a",
        "- `strict`, failed: 2 results (1): b",
    ]
