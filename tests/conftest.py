"""Set-up of the whole test suite."""

import os

# Tests run side by side. Before torch is imported; runs that tests start have their level's own.
os.environ.setdefault("OMP_NUM_THREADS", "1")
