"""Send the other ranks of torchrun or srun home: python -m seedbed.distributed.dismiss STATUS."""

import os
import sys

from seedbed.distributed import processes
from seedbed.errors import exit_status

_SECONDS = 60.0  # for the others to import PyTorch


def main() -> int:
    group = processes.find(_SECONDS)
    group.publish({"status": int(sys.argv[1])})
    if "TORCHELASTIC_USE_AGENT_STORE" not in os.environ:  # the store ends with this process
        group.wait_until_received()
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
