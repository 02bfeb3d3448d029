"""``dsconfig`` and ``python -m dsconfig``: exit codes and the last line of defence."""

import gc
import io
import os
import sys

FOUND = 1
USAGE = 2
CRASHED = 101
INTERRUPTED = 130


def main() -> None:
    """Run the command line. Exits 0, 1 (findings), 2 (usage) or 101 (our own fault)."""
    # A command lives for a moment and makes few cycles: collecting them costs a tenth of its life.
    gc.set_threshold(100_000, 50, 50)
    from dsconfig.commands.app import app
    from dsconfig.commands.errors import UsageError

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A lone surrogate in a config has no UTF-8, and a terminal may know ASCII alone.
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="dsconfig")
    except UsageError as error:
        print(f"dsconfig: error: {error}", file=sys.stderr)
        sys.exit(USAGE)
    except BrokenPipeError:
        # The reader has gone (`| head`); closing quietly is what every tool does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FOUND)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception:
        import traceback

        traceback.print_exc()
        print("dsconfig: this is a fault of dsconfig; please report it.", file=sys.stderr)
        sys.exit(CRASHED)


def program() -> None:
    """``main``, and out at once: taking the house down takes a sixth of a short command's time.

    Where a training library was loaded, the usual way is taken, since it has things to close.
    """
    try:
        main()
    except SystemExit as left:
        if "torch" in sys.modules or not isinstance(left.code, int | None):
            raise
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                os._exit(left.code or FOUND)
        os._exit(left.code or 0)


if __name__ == "__main__":
    program()
