"""torchrun that exits with the code of the first rank that failed.

python -m dsengine.torchrun [TORCHRUN_ARGUMENTS]
"""

import os
import signal
import sys
from typing import TYPE_CHECKING

from dsengine.stderr import print_error

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure


def main() -> None:
    """Run torchrun with the arguments of this process."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    from dsconfig import launch_env

    launch_env.mark_default_threads(os.environ)
    try:
        torchrun(sys.argv[1:])
    except ChildFailedError as error:
        print_error(error)
        raise SystemExit(shell_code(original_exit_code(error.get_first_failure()[1]))) from None
    except SignalException as error:
        raise SystemExit(shell_code(-error.sigval)) from None


def original_exit_code(failure: "ProcessFailure") -> int:
    """Return a rank's own exit code, or minus its signal, before the launcher intervened.

    Other ranks may exit on the news of an error before the rank that raised it; the launcher then
    kills that rank too. The error file it wrote shows that it failed by itself.
    """
    was_stopped = failure.exitcode in (-signal.SIGTERM, -signal.SIGKILL)
    return 1 if was_stopped and os.path.isfile(failure.error_file) else failure.exitcode  # noqa: PTH113


def shell_code(code: int) -> int:
    """Return an exit code in which a signal is encoded as by shells."""
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    main()
