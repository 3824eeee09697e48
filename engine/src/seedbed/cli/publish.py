"""Publish runs for others to verify: a zip with their records, the checkpoints that
audits need, and a page for its reader.

What may concern you, such as paths with your name, is listed before anything is
written; --list writes nothing. With --check, see whether an archive is signed by a key;
exit status 1 if it is not.
"""

import argparse
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from seedbed.config import options
from seedbed.errors import InputError
from seedbed.record import files, text


def main() -> int:
    parser = options.Parser(__doc__)
    parser.add("run", type=Path, nargs="?", help="a run folder, or that of a sweep")
    parser.add("--out", type=options.output, metavar="FILE.zip")
    parser.add(
        "--every",
        type=int,
        metavar="N",
        default=1,
        help="every N-th kept checkpoint only: a smaller file, longer audits",
    )
    parser.add(
        "--sign",
        type=Path,
        metavar="KEY",
        help="write FILE.zip.sig, by an Ed25519 key in a PEM file",
    )
    parser.add("--list", action="store_true", help="print what concerns you, no more")
    parser.add("--check", type=Path, metavar="FILE.zip", help="check its signature")
    parser.add("--key", type=Path, metavar="PUBLIC", help="whose signature: a PEM file")
    arguments = parser.add_common("--json").parse_args()
    require_sense(arguments)
    # so that temporary files are removed, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if arguments.check:
        return check(arguments)
    return publish(arguments)


def require_sense(arguments: argparse.Namespace) -> None:
    """Raise InputError for arguments that make no sense together."""
    wanted = arguments.check is None
    if wanted != (arguments.run is not None):
        raise InputError(
            "publish: expected a run or a sweep, or --check FILE.zip, got"
            f" {'neither' if wanted else 'both'}"
        )
    if wanted == (arguments.key is not None):
        raise InputError(
            "--key: expected a public key with --check, and else none, got"
            f" {arguments.key or 'none'}"
        )
    needs_out = wanted and not arguments.list
    if needs_out != (arguments.out is not None):
        raise InputError(
            "--out: expected a file to write, without --list and --check, got"
            f" {arguments.out or 'none'}"
        )
    if arguments.sign and not needs_out:
        raise InputError(
            "--sign: expected an archive to write (--out), got --list or --check"
        )
    if arguments.out and arguments.out.suffix != ".zip":
        raise InputError(
            f"--out: expected a name that ends in .zip, got {arguments.out}"
        )
    if arguments.every < 1:
        raise InputError(f"--every: expected an integer >= 1, got {arguments.every}")
    if (arguments.sign or arguments.check) and find_spec("cryptography") is None:
        option = "--sign" if arguments.sign else "--check"
        raise InputError(
            f"{option}: expected the package cryptography, got none; pip install"
            " cryptography"
        )


def publish(arguments: argparse.Namespace) -> int:
    """Write an archive and its signature; return the exit status."""
    from seedbed.tools import publish as tool  # needs torch

    key: Any = None
    out = arguments.out
    if out:
        tool.require_new(out)
    if arguments.sign:
        from seedbed.tools import signatures  # needs cryptography

        key = signatures.private_key(arguments.sign)
        tool.require_new(signatures.sidecar(out))
    runs = tool.runs_of(arguments.run, arguments.every)
    with TemporaryDirectory(prefix="seedbed-publish-") as folder:
        draft = tool.draft(arguments.run, runs, Path(folder))
        concerns = [*draft.concerns]
        if not arguments.json:
            options.show(tool.lines_of(concerns))
        written: dict[str, Any] = {"concerns": concerns}
        if out:
            written |= tool.write(draft, out)
    if key:
        written["signature"] = str(signatures.sign(out, key))
    if arguments.json:
        print(text.as_json(written))
    elif out:
        options.show(tool.shown(written))
    return 0


def check(arguments: argparse.Namespace) -> int:
    """Print whether an archive is signed by a key; return the exit status."""
    from seedbed.tools import signatures  # needs cryptography

    key = signatures.public_key(arguments.key)
    is_signed = signatures.is_signed(arguments.check, key)
    digest = files.of_file(arguments.check)
    if arguments.json:
        print(text.as_json({"signed": is_signed, "sha256": digest}))
    else:
        options.show(
            [
                f"{'SIGNED' if is_signed else 'NOT SIGNED'} {arguments.check} by"
                f" {arguments.key}",
                f"sha256 {digest}",
            ]
        )
    return 0 if is_signed else 1
