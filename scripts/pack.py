"""Pack runs with their code: python scripts/pack.py RUN OUT.zip

--help shows every option.
"""

import sys

from seedbed import cli

if __name__ == "__main__":
    sys.exit(cli.run("pack", __file__))
