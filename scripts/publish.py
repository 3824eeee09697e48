"""Publish a run for others to verify: python scripts/publish.py RUN --out FILE.zip

--help shows every option.
"""

import sys

from seedbed import cli

if __name__ == "__main__":
    sys.exit(cli.run("publish", __file__))
