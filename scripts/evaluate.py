"""Evaluate the saved weights of a run: python scripts/evaluate.py RUN

--help shows every option.
"""

import sys

from seedbed import cli

if __name__ == "__main__":
    sys.exit(cli.run("evaluate", __file__))
