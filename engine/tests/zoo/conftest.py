"""The zoo's table: how many cases of each library hold each invariant."""

from collections import defaultdict
from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print a row for each library, and a column for each invariant: how many of how many."""
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, ()):
            _, _, test = report.nodeid.partition("tests/zoo/test_zoo.py::")
            name, _, case = test.partition("[")
            if "/" in case:
                one = counts[case.split("/")[0], name.removeprefix("test_")]
                one[0] += outcome == "passed"
                one[1] += 1
    columns = list(dict.fromkeys(name for _, name in counts))
    groups = list(dict.fromkeys(group for group, _ in counts))
    for name in columns:
        terminalreporter.section(f"zoo: {name}", sep="-")
        for group in groups:
            if (group, name) in counts:
                held, of = counts[group, name]
                terminalreporter.write_line(f"{group:16} {held:4} of {of}")
