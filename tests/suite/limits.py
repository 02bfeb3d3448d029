"""Time limits of tests, scaled by how busy the machine is.

[Note: time limits]
A limit exists to end what hangs, not to measure. Each worker sets DSCONFIG_TEST_SLOWNESS from the
load of the machine before it runs a file; every limit, in its own process and in the scripts that
it starts, is multiplied by that factor. A value that the caller sets is kept.
"""

import os
import time

VARIABLE = "DSCONFIG_TEST_SLOWNESS"
TEST_SECONDS = 240.0
"""Limit of one test, including its fixtures, on an idle machine."""
_PROBE_SECONDS = 0.01
_LARGEST = 8.0

_given = os.environ.get(VARIABLE)


def measure() -> None:
    """Set the factor: how long this process waits for 10 ms of a core, compared with 10 ms.

    The load average is no measure: threads that poll count in it without using a core. The factor
    falls by half at most from one file to the next.
    """
    if _given is None:
        began = time.perf_counter()
        end = time.thread_time() + _PROBE_SECONDS
        while time.thread_time() < end:
            pass
        now = (time.perf_counter() - began) / _PROBE_SECONDS
        previous = scaled(1.0)
        factor = min(max(1.0, now, previous / 2), _LARGEST)
        os.environ[VARIABLE] = f"{factor:.2f}"


def scaled(seconds: float) -> float:
    """Return a time limit for the current load, from that of an idle machine."""
    return seconds * float(os.environ.get(VARIABLE, "1"))
