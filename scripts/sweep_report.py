"""Report on a sweep, or compare several: python scripts/sweep_report.py SWEEP [SWEEP
...]

--help shows every option.
"""

import sys

from seedbed import cli

if __name__ == "__main__":
    sys.exit(cli.run("sweep_report", __file__))
