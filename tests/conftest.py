"""Set-up of the whole test suite."""

import os
import signal

# Tests run side by side. Before torch is imported; runs that tests start have their preset's own.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell starts what runs in the background with Ctrl-C ignored, and processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
