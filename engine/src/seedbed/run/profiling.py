"""A profile of some training steps (`trainer.profile_steps`)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch


@contextmanager
def profiled(
    folder: Path, steps: int, log: Callable[[str], None]
) -> Iterator[Callable[[int], None]]:
    """Write a trace of `steps` steps, after two that warm up; yield what follows each
    step."""
    # the ending that TensorBoard looks for
    path = folder / "profile" / "training.pt.trace.json"

    def save(profile: torch.profiler.profile) -> None:
        path.parent.mkdir(exist_ok=True)
        profile.export_chrome_trace(str(path))
        log(f"trace of {steps} steps, for ui.perfetto.dev or TensorBoard: {path}")

    plan = torch.profiler.schedule(wait=1, warmup=1, active=steps, repeat=1)
    with torch.profiler.profile(
        schedule=plan, on_trace_ready=save, record_shapes=True
    ) as profile:
        yield lambda _step: profile.step()
