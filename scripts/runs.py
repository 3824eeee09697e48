"""Show a table of runs: python scripts/runs.py [FOLDER ...]

--help shows every option.
"""

import sys

from seedbed import cli

if __name__ == "__main__":
    sys.exit(cli.run("runs", __file__))
