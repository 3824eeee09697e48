"""Name the first step and stage at which two runs differ: python scripts/compare.py
RUN_A RUN_B

--help shows every option.
"""

import sys

from seedbed import cli

if __name__ == "__main__":
    sys.exit(cli.run("compare", __file__))
