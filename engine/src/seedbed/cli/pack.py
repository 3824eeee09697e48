"""Pack a run or a sweep for readers of a paper: records, code, and how to replay them.

usage: python scripts/pack.py RUN|SWEEP OUT.zip

The same runs pack to the same bytes. Checkpoints are left out: a replay makes them again.

example:
    python scripts/pack.py runs/a paper.zip
    python scripts/verify.py paper.zip                   what it would execute
    python scripts/verify.py paper.zip --restore-code    replays each run: REPRODUCED

exit status: 0 packed, 2 it cannot be
"""

import hashlib
from pathlib import Path

from seedbed.config import options
from seedbed.errors import InputError
from seedbed.tools import package, places


def main() -> int:
    """Write the package that the command line asks for."""
    parser = options.parser(__doc__)
    parser.add_argument("run", metavar="RUN|SWEEP", type=Path, help="a run, or a folder of runs")
    parser.add_argument("out", metavar="OUT.zip", type=Path, help="the file to write")
    arguments = parser.parse_args()
    if arguments.out.suffix != ".zip":
        raise InputError(
            f"OUT.zip: expected a name that ends in .zip, got {arguments.out}; name another"
        )
    out = places.require_output("OUT.zip", arguments.out)
    content = package.pack(arguments.run)
    places.write("OUT.zip", out, content)
    digest = hashlib.sha256(content).hexdigest()
    print(f"{arguments.out}: {len(content):,} bytes, SHA-256 {digest}")
    print(f"check it: python scripts/verify.py {arguments.out} --restore-code")
    return 0
