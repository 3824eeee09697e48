"""Run the three gates on a GPU and measure its speed, for docs/measured.md.

usage: python engine/measure/gpu_report.py [--device cuda|cpu] [--part gates|speed] [--processes N]

  --part        print only this
  --processes   of the first gate (default: 20)

example:
    make -C engine gpu-report                       both parts, less than 20 minutes
    python engine/measure/gpu_report.py --part gates    where time is short: print one part
    python engine/measure/gpu_report.py --device cpu --processes 2 --part gates    try it

The gates are the tests of engine/tests/gpu: a fixed environment (20 processes, the same bits),
equivalence (what the CPU decides is the same), restart replay (killed and resumed, the same bits).

exit status: 0 all gates passed, 1 one did not, 2 it cannot be measured
"""

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

import page
import timing
from benchmark import NO_AUGMENTATION, baseline, seedbed, shell, table, write_digits
from timing import Program

from seedbed import compare
from seedbed.config import options
from seedbed.errors import InputError, exit_status

ENGINE = Path(__file__).resolve().parents[1]
GATES = {
    "fixed environment": "tests/gpu/test_fixed_environment.py",
    "equivalence": "tests/gpu/test_equivalence.py",
    "restart replay": "tests/gpu/test_restart_replay.py",
    "what only CUDA has": "tests/gpu/test_cuda.py",
}
TURNS, TURN_SECONDS = 3, 3.0


def main() -> int:
    """Measure, print and write."""
    parser = options.Parser(__doc__).add("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add("--part", choices=("gates", "speed")).add("--processes", type=int, default=20)
    arguments = parser.parse_args()
    parts: list[str] = []
    passed = True
    with tempfile.TemporaryDirectory(prefix="seedbed-gpu-") as temporary:
        folder = Path(temporary)
        device = f"trainer.device={arguments.device}"
        if subprocess.run(shell("trainer.max_steps=2", device, folder=folder / "first")).returncode:
            raise InputError(f"--device: expected one to train on, got {arguments.device}")
        first = compare.read(folder / "first")
        if arguments.part in (None, "gates"):
            text, passed = gates(arguments.device, arguments.processes, folder / "gates.xml")
            parts.append(text)
            print(text, flush=True)
        if arguments.part in (None, "speed"):
            data = write_digits(folder / "digits")
            for title, programs in sections(arguments.device, data).items():
                rounds = timing.measure(programs, 1, folder / title, TURNS, TURN_SECONDS)
                parts.append(f"### {title}\n\n{table(programs, rounds)}")
                print(parts[-1], flush=True)
    if arguments.part is None:
        page.write_section("gpu", parts, first)
    return 0 if passed else 1


def gates(device: str, processes: int, report: Path) -> tuple[str, bool]:
    """Run the tests of the gates; return a Markdown table, and whether all passed."""
    lines = ["| gate | passed | failed | skipped | seconds |", "| --- | --- | --- | --- | --- |"]
    ok = True
    variables = {"SEEDBED_GPU_TESTS_DEVICE": device, "SEEDBED_GPU_TESTS_PROCESSES": str(processes)}
    for name, path in GATES.items():
        words = ["-m", "pytest", "-q", "-m", "gpu", path, f"--junitxml={report}"]
        subprocess.run([sys.executable, *words], cwd=ENGINE, env={**os.environ, **variables})
        found = ET.parse(report).find("testsuite")
        assert found is not None  # pytest writes one
        total, skipped = int(found.get("tests", 0)), int(found.get("skipped", 0))
        failed = int(found.get("failures", 0)) + int(found.get("errors", 0))
        ok = ok and not failed and (total > skipped or name not in list(GATES)[:3])
        counts = (total - skipped - failed, failed, skipped, f"{float(found.get('time', 0)):.0f}")
        lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    return "### Three gates\n\n" + "\n".join(lines), ok


def sections(device: str, data: Path) -> dict[str, list[Program]]:
    """Return the programs of each table: a raw loop on the same device, strict and fast."""
    tables = {}
    programs = ((64, "float32", False), (1024, "float32", False), (1024, "bfloat16", False),
                (1024, "float32", True))  # fmt: skip
    for size, precision, compiled in programs:
        words = (
            f"trainer.device={device}", f"data.batch_size={size}", f"trainer.precision={precision}",
            f"trainer.compile={str(compiled).lower()}", NO_AUGMENTATION,
        )  # fmt: skip
        more = {"device": device, "precision": precision, "compile": compiled}
        strict = ("determinism=strict", *words)
        title = f"CNN, batch {size}, {precision}{', compiled' if compiled else ''}"
        tables[title] = [
            baseline("raw loop", "loop.py", data, f"data.batch_size={size}", **more),
            seedbed("strict", *strict),
            seedbed("strict, fingerprints every 100 steps", *strict, "fingerprint.every_steps=100"),
            seedbed("fast", "determinism=fast", *words),
        ]
    return tables


if __name__ == "__main__":
    sys.exit(exit_status(main))
