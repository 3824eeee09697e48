"""Fix a claim before its runs, and check it afterwards: python scripts/claim.py new
claim.yaml

--help shows every option.
"""

import sys

from seedbed import cli

if __name__ == "__main__":
    sys.exit(cli.run("claim", __file__))
