"""summary.json of a run that a process is working on."""

from typing import Any

from seedbed import record
from seedbed.worker.job import Job


class Summary:
    """What becomes summary.json.

    Attributes:
        values: what is written; brought up to date by whoever learns more.
        is_resuming: there is a checkpoint, and whether the run can be resumed from it is not known
            yet. Until then nothing of the record is changed.
        starts_over: it had begun before, and left no checkpoint.
        predictions: their fingerprint; None until the run was tested.
        tested_step: of the weights that made them; None until then.
    """

    def __init__(self, job: Job) -> None:
        """Begin the summary of a run that is about to start, or to be resumed.

        Raises:
            InputError: the run finished.
        """
        before = record.require_unfinished(job.folder, job.request.settings)
        checkpoints = [job.folder / "checkpoints" / name for name in record.LAST_CHECKPOINTS]
        self.is_resuming = any(path.exists() for path in checkpoints)
        self.starts_over = bool(before) and not self.is_resuming
        self.predictions: str | None = None
        self.tested_step: int | None = None
        self._path = job.folder / "summary.json"
        self.values: dict[str, Any] = {
            **(before if self.is_resuming else {}),  # true until more is known
            "format_version": record.FORMAT_VERSION,
            "seed": job.settings.get("seed"),
            "resumes": before.get("resumes", []),
        }
        self.end("running")

    @property
    def status(self) -> str:
        """Return running, finished, interrupted or failed."""
        return str(self.values["status"])

    def note_resume(self, resume: dict[str, Any]) -> None:
        """Note from which step the run is resumed, and what has changed since; write it down."""
        self.is_resuming = False
        self.values["resumes"] = [*self.values["resumes"], resume]
        self.write()

    def end(self, status: str, error: str | None = None) -> None:
        """Note how the run ended."""
        self.values |= {"status": status, "error": error}

    def write(self, status: str | None = None) -> None:
        """Write summary.json, with another status than was noted if one is given."""
        record.write_json(self._path, self.values | {"status": status or self.status})
