"""The command line without a project's scripts: python -m seedbed COMMAND [...]."""

import sys

from seedbed import cli
from seedbed.errors import InputError, print_error


def main() -> int:
    name = "".join(sys.argv[1:2])
    known = ", ".join(cli.COMMANDS)
    if name in ("-h", "--help"):
        print(f"usage: python -m seedbed COMMAND [...]\ncommands: {known}")
        return 0
    if name not in cli.COMMANDS:
        return print_error(
            InputError(f"command: expected one of {known}, got {name or 'none'}")
        )
    sys.argv[:2] = [f"python -m seedbed {name}"]
    return cli.run(name)


if __name__ == "__main__":
    sys.exit(main())
