"""A picture of two runs: their losses, their metric, and the first difference."""

from pathlib import Path

from seedbed.compare.difference import Comparison, Record
from seedbed.errors import InputError, printable
from seedbed.record import plots
from seedbed.record.plots import BLUE, GREY, ORANGE


def draw(a: Record, b: Record, result: Comparison, out: Path) -> None:
    """Draw both runs into a file whose name ends in .png.

    Raises:
        InputError: the name ends otherwise, or the file cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    if out.suffix != ".png":
        raise InputError(f"--plot: expected a name that ends in .png, got {out}")
    first = result.difference
    columns = list(dict.fromkeys(("loss", str(a.summary.get("metric_name") or "loss"))))
    with plots.style(), rc_context({"text.parse_math": False}):  # names may hold a $
        figure = Figure(figsize=(6.4, 4.8), layout="constrained")
        panels = figure.subplots(len(columns), 1, sharex=True, squeeze=False)[:, 0]
        for axes, column in zip(panels, columns, strict=True):
            # B is dashed, so that A shows below it.
            for run, side, color, dash in ((a, "A", BLUE, "-"), (b, "B", ORANGE, (0, (3, 3)))):
                name = printable(Path(run.name).name)
                for phase, look in (("train", {"ls": dash}), ("validation", {"marker": "o"})):
                    curve = plots.points(run.metrics, phase, column)
                    style = {"ls": "", "mfc": "none", **look, "color": color}
                    axes.plot(*curve, label=f"{side} {phase}: {name}", **style)
            if first is not None:
                axes.axvline(first.step, color=GREY, ls=":", label="first difference")
            axes.set(ylabel=printable(column))
        title = f"the runs diverge at step {first.step:,}" if first else "the runs agree"
        panels[0].set_title(title)
        panels[0].legend()
        panels[-1].set(xlabel="step")
        try:
            plots.save(figure, out)
        except OSError as error:
            raise InputError(
                f"--plot: expected a file that can be written, got {error.strerror}: {out}"
            ) from None
