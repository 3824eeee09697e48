"""Find nondeterministic operations and unseeded draws: python scripts/probe_ops.py [OVERRIDES]

--help shows every option.
"""

import sys

from seedbed import cli

if __name__ == "__main__":
    sys.exit(cli.run("probe_ops", __file__))
