"""Compare the bits of the probe's operations between two environments, machines, or threads.

usage: python engine/measure/operation_bits.py FILE [--against FILE] [--threads N]

example:
    python3.12 engine/measure/operation_bits.py build/2.11.json
    python3.11 engine/measure/operation_bits.py build/2.15.json --against build/2.11.json
    python engine/measure/operation_bits.py build/1.json --threads 1 --against build/2.15.json

Each operation of `probe_ops.py` runs forward and backward under determinism=strict on the CPU, on
the same drawn inputs, with N threads (as many as the preset has). FILE gets the fingerprints of its
results. With `--against`, the operations whose bits are other ones there are printed, and those
that raise an error in one of the two alone.

exit status: 0 written, 2 invalid request
"""

import json
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from seedbed import record
from seedbed.config import options
from seedbed.errors import InputError, exit_status

ROOT = Path(__file__).resolve().parents[2]
STRICT = ROOT / "configs" / "determinism" / "strict.yaml"
REPEATED = 2  # a result that is not even the same twice has no bits to compare
Bits = dict[str, str]


def main() -> int:
    """Measure, write, compare."""
    parser = options.parser(__doc__)
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument("--against", metavar="FILE", type=Path)
    parser.add_argument("--threads", metavar="N", type=int)
    arguments = parser.parse_args()
    if arguments.threads is not None and arguments.threads < 1:
        raise InputError(f"--threads: expected 1 or more, got {arguments.threads}; give a number")
    if arguments.against and not arguments.against.is_file():
        raise InputError(f"--against: expected a file, got {arguments.against}; measure it first")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    found = measure(arguments.threads)
    written = json.dumps({"torch": metadata.version("torch"), "bits": found}, indent=1)
    record.write_atomically(arguments.file, written + "\n")
    if arguments.against:
        other = record.read_json(arguments.against)
        print("\n".join(differences(found, other["bits"])))
        print(f"{len(found)} operations, torch {metadata.version('torch')} and {other['torch']}")
    return 0


def measure(threads: int | None) -> dict[str, Bits]:
    """Return, for each operation, the fingerprints of its results and of its gradients."""
    from seedbed import fingerprint
    from seedbed.probe.catalog import catalogue
    from seedbed.probe.probe import probe

    strict: Any = OmegaConf.load(STRICT)
    strict.threads = threads or strict.threads
    found = {}
    for operation in catalogue():
        finding = probe(operation, "cpu", strict, strict, REPEATED)
        trial = finding.strict
        found[operation.name] = {
            "error": finding.unavailable or trial.raised,
            "not repeated": trial.differs_in,
            **{
                phase: fingerprint.text(int(fingerprint.of_tensors(tensors)))
                for phase, tensors in trial.first.items()
            },
        }
    return found


def differences(ours: dict[str, Bits], theirs: dict[str, Bits]) -> list[str]:
    """Return a line for each operation whose bits or errors are not the same in both."""
    lines = []
    for name in dict.fromkeys([*ours, *theirs]):
        mine, other = ours.get(name, {}), theirs.get(name, {})
        keys = dict.fromkeys([*mine, *other])
        differing = [key for key in keys if mine.get(key) != other.get(key)]
        errors = {bits.get("error", "not in the catalogue") for bits in (mine, other)}
        if differing:
            lines.append(": ".join([name, ", ".join(differing), *sorted(errors - {""})]))
    return lines


if __name__ == "__main__":
    sys.exit(exit_status(main))
