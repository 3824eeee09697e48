"""Resume a run that was stopped: python scripts/resume.py RUN

--help shows every option.
"""

import sys

from seedbed import cli

if __name__ == "__main__":
    sys.exit(cli.run("resume", __file__))
