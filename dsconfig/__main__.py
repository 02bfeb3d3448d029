"""Entry point of ``dsconfig`` and ``python -m dsconfig``: exit codes and uncaught errors."""

import errno
import gc
import io
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import NoReturn

from dsconfig import os_errors
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project.errors import UsageError

with lazy_imports():
    from dsconfig.commands import printing

FOUND = 1
USAGE = 2
CRASHED = 101
INTERRUPTED = 130
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"

# [Note: start-up time] Commands are short-lived. Four measures, shown here, save run time:
# - Garbage collection takes a tenth of it and frees little: it runs rarely.
# - pydantic searches the metadata of each installed package for plugins: disabled, as Typer does
#   for its own models. A setting of the user wins, and child processes do not inherit it.
# - Interpreter shutdown takes a sixth: skipped (`program`) unless torch was imported.
# - Modules are imported on first use (`dsconfig.lazy_imports`), commands when invoked.


@contextmanager
def without_plugins() -> Generator[None]:
    """Disable the plugin search of pydantic temporarily."""
    if NO_PLUGINS in os.environ:
        yield
        return
    os.environ[NO_PLUGINS] = "__all__"
    try:
        yield
    finally:
        del os.environ[NO_PLUGINS]


def main() -> None:
    """Run the command line. Exits with 0, 1 (findings), 2 (usage) or 101 (internal error)."""
    gc.set_threshold(100_000, 50, 50)
    reopen_closed_streams()
    from dsconfig.commands.app import FORWARDING, app

    starts_programs = not FORWARDING.isdisjoint(sys.argv[1:2])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Lone surrogates have no UTF-8 encoding, and a terminal may support only ASCII.
            stream.reconfigure(errors="backslashreplace")
    try:
        with nullcontext() if starts_programs else without_plugins():
            app(prog_name="dsconfig")
    except UsageError as error:
        printing.error_line(str(error))
        sys.exit(USAGE)
    except BrokenPipeError:
        # The reader has exited (`| head`): exit silently.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FOUND)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        if error.errno not in FULL:
            if error.filename is None and error.errno == errno.ENOENT:
                printing.error_line("the working directory has been removed")
                sys.exit(USAGE)
            if error.filename is None:
                report_internal_error()
            printing.error_line(f"{error.filename}: {os_errors.reason(error)}")
            sys.exit(USAGE)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _print_write_error(error)
        sys.exit(USAGE)
    except Exception:
        report_internal_error()


def report_internal_error() -> NoReturn:
    """Print the exception being handled as an internal error and exit."""
    import traceback

    printing.print_text(traceback.format_exc(), err=True, nl=False)
    printing.print_text("dsconfig: internal error; please report it.", err=True)
    sys.exit(CRASHED)


def _print_write_error(error: OSError) -> None:
    printing.error_line(f"the output cannot be written: {error.strerror}")


def reopen_closed_streams() -> None:
    """Replace closed standard streams by os.devnull, so that no other file gets their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


def program() -> None:
    """Run ``main`` and exit without interpreter shutdown."""
    try:
        main()
    except KeyboardInterrupt:  # during the imports of `main`
        os._exit(INTERRUPTED)
    except SystemExit as error_exit:
        if "torch" in sys.modules or not isinstance(error_exit.code, int | None):
            raise
        for stream in (sys.stdout, sys.stderr):
            if stream.closed:  # by the language server
                continue
            try:
                stream.flush()
            except (OSError, ValueError) as error:
                if not isinstance(error, OSError) or error.errno not in FULL:
                    os._exit(error_exit.code or FOUND)
                if stream is sys.stdout:
                    _print_write_error(error)
                os._exit(USAGE)
        os._exit(error_exit.code or 0)


if __name__ == "__main__":
    program()
