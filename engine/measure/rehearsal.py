"""What the rehearsal of a resume costs: python engine/measure/rehearsal.py, from the top.

Each model is trained for a few steps with and without it, in processes that take turns. The seconds
are those of all cores of the whole process, since other processes take their share of the clock's.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

TURNS = 3
LARGE = (
    *("experiment=char_gpt", "model.width=1024", "model.layers=8", "model.heads=8"),
    *("data.file=README.md", "data.batch_size=4", "data.eval_batch_size=4"),
    *("method.prompts=[]", "determinism.threads=2"),
)
MODELS: dict[str, tuple[str, ...]] = {
    "cnn": (),
    "cnn, compiled": ("trainer.compile=true",),
    "gpt, 100 million": LARGE,
}


def train(folder: Path, *overrides: str) -> tuple[float, float]:
    """Return the CPU seconds and the peak memory, in GB, of a run of four steps."""
    words = ("seed=0", "trainer.max_steps=4", f"hydra.run.dir={folder}", *overrides)
    process = subprocess.Popen([sys.executable, "train.py", *words], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"error: {folder}: expected a run that finishes, got status {status}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e6


def main() -> None:
    """Print a table of medians."""
    print("| model | CPU seconds without | with | peak memory without, GB | with |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as place:
        for model, overrides in MODELS.items():
            found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
            for turn in range(TURNS):
                for rehearsed, results in found.items():
                    chosen = f"trainer.rehearse_resume={str(rehearsed).lower()}"
                    folder = Path(place, f"{model}{turn}{rehearsed}".replace(",", ""))
                    results.append(train(folder, *overrides, chosen))
            seconds, memory = (
                [sorted(one[part] for one in found[each])[TURNS // 2] for each in found]
                for part in (0, 1)
            )
            print(
                f"| {model} | {seconds[0]:.2f} | {seconds[1]:.2f} "
                f"| {memory[0]:.2f} | {memory[1]:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
