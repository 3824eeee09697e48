"""summary.json: each name in it is explained in docs/record.md."""

import re
from pathlib import Path

import pytest

from seedbed import record
from tests.run.runs import LSTM, StopAt, begun, whole, work
from tests.running import TEMPLATE

pytestmark = pytest.mark.usefixtures("this_process_trains")


def explained() -> set[str]:
    page = (TEMPLATE / "docs" / "record.md").read_text()
    section = page.partition("## summary.json\n")[2].partition("\n##")[0]
    rows = [
        line.split("|")[1] for line in section.splitlines() if line.startswith("| `")
    ]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_each_name_in_a_summary_is_explained(tmp_path: Path) -> None:
    """Of a finished run and of one that was stopped; no name is explained that is not
    there."""
    stopped = begun(tmp_path / "run", *LSTM)
    assert work(stopped, StopAt(9)) == 143
    names = [
        {*record.read_summary(run)} - {"format_version"}
        for run in (whole(*LSTM), stopped)
    ]
    assert names[0] | names[1] == explained()
