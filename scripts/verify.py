"""Replay a run from its record and compare the bits: python scripts/verify.py RUN

--help shows every option.
"""

import sys

from seedbed import cli

if __name__ == "__main__":
    sys.exit(cli.run("verify", __file__))
