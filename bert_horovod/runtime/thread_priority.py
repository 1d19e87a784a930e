"""The priority of threads that work beside training."""

import os
import threading


def lower_priority() -> None:
    """Give this thread the lowest priority, so that it takes time from training only if no core is idle."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
