"""A plot of two runs: their losses, their metric, and the first difference."""

from pathlib import Path

from seedbed.compare.difference import Comparison, Record
from seedbed.errors import InputError
from seedbed.record import plots


def draw(a: Record, b: Record, result: Comparison, out: Path) -> None:
    """Draw both runs into `out`; raise InputError unless it is a writable .png path."""
    if out.suffix != ".png":
        raise InputError(f"--plot: expected a name that ends in .png, got {out}")
    first = result.difference
    columns = list(dict.fromkeys(("loss", str(a.summary.get("metric_name") or "loss"))))
    names = ", ".join(f"{x} {Path(run.name).name}" for x, run in (("A", a), ("B", b)))
    title = f"the runs diverge at step {first.step:,}" if first else "the runs agree"
    tables = {"A": a.metrics, "B": b.metrics}
    try:
        step = first.step if first else None
        plots.draw(out, tables, columns, f"{names}: {title}", step)
    except OSError as error:
        raise InputError(
            f"--plot: expected a file that can be written, got {error.strerror}: {out}"
        ) from None
