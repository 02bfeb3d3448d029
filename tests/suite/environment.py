"""The environment of every test process, the same however the tests were started."""

import os
import signal
from contextlib import suppress

KEPT = (
    "PATH", "HOME", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "DS_ACCELERATOR",
    "TORCH_EXTENSIONS_DIR", "DEEPSPEED_CHECKOUT", "DEEPSPEED_CLONE", "DEEPSPEED_RELEASES",
    "PROGRAMS_SOURCES", "PUBLIC_CLONES", "FAMILIES_RUNS", "FRAMEWORKS_RUNS", "LOADING_RUNS",
    "PLANS_RUNS", "PROGRAMS_RUNS", "THEIR_TESTS_RUNS",
)  # fmt: skip
"""Variables that tests inherit: where programs, packages, sources and results are."""
KEPT_PREFIXES = (
    "COVERAGE", "CUDA_", "DEEPSPEED_TESTS", "DSCONFIG_TEST_", "MUTATION_", "OPENBLAS_", "PIP_",
    "PYTEST_", "RANKS_", "SSL_",
)  # fmt: skip
SET = {
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "TERM": "xterm",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONHASHSEED": "0",
}
"""Variables with a fixed value. Others, among them COLUMNS, NO_COLOR and CI, are removed."""


def set_environment() -> None:
    """Set the environment and signal handlers of this process, which its children inherit.

    A job in the background of a script, or one started with nohup, ignores SIGINT or SIGHUP, and
    its children would too.
    """
    with suppress(ImportError):  # not part of every Python build
        import readline  # noqa: F401 - sets COLUMNS and LINES on import
    for name in ("COLUMNS", "LINES"):
        os.unsetenv(name)
    for name in list(os.environ):
        if name not in KEPT and not name.startswith(KEPT_PREFIXES):
            del os.environ[name]
    os.environ.update(SET)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
