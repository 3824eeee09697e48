"""A picture of two runs: their losses, their metric, and the first difference."""

from pathlib import Path

from seedbed.compare.difference import Comparison, Record
from seedbed.compare.stages import stage_of
from seedbed.errors import InputError, printable
from seedbed.record import plots
from seedbed.record.plots import BLUE, GREY, ORANGE


def draw(a: Record, b: Record, result: Comparison, out: Path) -> None:
    """Draw both runs into a file whose name ends in .png.

    Raises:
        InputError: the name ends otherwise, or the file cannot be written.
    """
    from matplotlib.figure import Figure

    if out.suffix != ".png":
        raise InputError(f"--plot: expected a name that ends in .png, got {out}")
    with plots.style():
        figure = Figure(figsize=(6.4, 4.8), layout="constrained")
        columns = dict.fromkeys(("loss", str(a.summary.get("metric_name") or "loss")))
        panels = figure.subplots(len(columns), 1, sharex=True, squeeze=False).ravel()
        for axes, column in zip(panels, columns, strict=True):
            # B is dashed, so that A shows below it.
            for run, side, color, dash in ((a, "A", BLUE, "-"), (b, "B", ORANGE, (0, (3, 3)))):
                for phase, look in (("train", {"ls": dash}), ("validation", {"marker": "o"})):
                    steps, values = plots.points(run.metrics, phase, column)
                    label = printable(f"{side} {phase}: {Path(run.name).name}").replace("$", r"\$")
                    style = {"ls": "", "mfc": "none", **look, "color": color}
                    axes.plot(steps, values, label=label, **style)
            if result.difference is not None:
                axes.axvline(result.difference.step, color=GREY, ls=":", label="first difference")
            axes.set(ylabel=column)
        first = result.difference
        place = (
            f"diverge at step {first.step:,}: {stage_of(first.stage).name}" if first else "agree"
        )
        figure.axes[0].set_title(f"the runs {place}")
        figure.axes[0].legend()
        figure.axes[-1].set(xlabel="step")
        try:
            plots.save(figure, out)
        except OSError as error:
            raise InputError(
                f"--plot: expected a file that can be written, got {error.strerror}: {out}"
            ) from None
