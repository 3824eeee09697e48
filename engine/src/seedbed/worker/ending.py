"""How a run ends: its record is completed, and the terminal shows what became of it."""

import errno
import os
import sys
from pathlib import Path
from typing import Any

from seedbed import record
from seedbed.errors import InputError
from seedbed.record import readme, terminal
from seedbed.worker.job import Job
from seedbed.worker.summary import Summary

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_BROKEN = {errno.EROFS, errno.EIO}


def explain(error: OSError, folder: Path) -> str | None:
    """Return one line on a run folder that cannot be written; None for an error elsewhere."""
    named = isinstance(error.filename, str | bytes | os.PathLike)  # and not by a descriptor
    place = Path(os.fsdecode(error.filename)) if named else folder
    if error.errno in _FULL:
        return (
            f"{place}: expected room on the disk, got {error.strerror}; free some, then "
            f"`{terminal.resume_command(folder)}`"
        )
    if error.errno in _BROKEN or (named and place.is_relative_to(folder)):
        return (
            f"{place}: expected a run folder that can be written, got {error.strerror}; copy the "
            "folder to where you may write"
        )
    return None


def conclude(job: Job, summary: Summary, status: int) -> int:
    """Complete the record and print how the run ended; return the exit status.

    If the record cannot be completed, or the process is killed meanwhile, the run counts as
    unfinished and can be resumed.
    """
    try:
        complete(job.folder, summary)
    except KeyboardInterrupt:
        print(f"interrupted at the very end\n{how_to_resume(job.folder)}", flush=True)
        return job.stop.status()
    except (InputError, OSError) as error:
        if summary.status == "failed":  # the reason is the same, or matters more; it was printed
            return status
        explained = explain(error, job.folder) if isinstance(error, OSError) else None
        print(f"error: {explained or error}", file=sys.stderr, flush=True)
        return 2
    print("\n".join(lines(job.folder, summary.values)), flush=True)
    return status


def complete(folder: Path, summary: Summary) -> None:
    """Write the summary and README.txt, and draw the loss curve."""
    summary.write("running" if summary.status == "finished" else None)
    if (folder / "metrics.csv").exists():
        from seedbed.record import plots

        plots.loss_curve(folder)
    summary.write()
    if (folder / "environment.json").exists():
        readme.write_readme(folder)


def lines(folder: Path, summary: dict[str, Any]) -> list[str]:
    """Return the lines that say how a run ended, and what to do or look at next."""
    status, steps = summary["status"], summary.get("steps")
    if status == "failed" or steps is None:
        found = [f"{status}; the record is in {folder}"]
    else:
        fingerprints = summary["fingerprints"]
        found = [
            f"{status} after {steps} step{'' if steps == 1 else 's'} in "
            f"{summary['seconds']:.1f} s ({summary['samples_per_second']:.0f} samples/s)",
            ", ".join(f"{name} {value:.4f}" for name, value in summary["metrics"].items()),
            f"fingerprints: weights {fingerprints['weights']}, "
            f"all steps {fingerprints['all_steps']}",
            str(folder),
        ]
    if status == "interrupted" and not record.is_sweep(folder.parent):  # whose own line will do
        found.append(how_to_resume(folder))
    elif status == "finished":
        found.append(f"loss curve: {folder / 'loss_curve.png'}")
    return [line for line in found if line]


def how_to_resume(folder: Path) -> str:
    """Return the line that names the command to resume an interrupted run."""
    return f"resume it: {terminal.resume_command(folder)}"
