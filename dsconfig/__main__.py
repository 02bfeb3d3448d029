"""``dsconfig`` and ``python -m dsconfig``: exit codes and the last line of defence."""

import errno
import gc
import io
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import NoReturn

FOUND = 1
USAGE = 2
CRASHED = 101
INTERRUPTED = 130
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"

# [Note: a short life] A command lives for a moment. Four things are done for that, all here:
# - Collecting garbage costs a tenth of its life, and it makes few cycles: rarely done.
# - pydantic looks for plugins in the metadata of every package installed, and none has a say in
#   what a ds_config is: told not to, as Typer does for its own models. What the user set counts,
#   and programs that a command starts do not inherit it.
# - Taking the house down takes a sixth: out at once (`program`), unless a training library was
#   loaded, which has things to close.
# - Modules run when they are used (`dsconfig.lazy_imports`), commands when called (`commands.app`).


@contextmanager
def without_plugins() -> Generator[None]:
    """Keep pydantic from looking for plugins, and forget that again."""
    if NO_PLUGINS in os.environ:
        yield
        return
    os.environ[NO_PLUGINS] = "__all__"
    try:
        yield
    finally:
        del os.environ[NO_PLUGINS]


def main() -> None:
    """Run the command line. Exits 0, 1 (findings), 2 (usage) or 101 (our own fault)."""
    gc.set_threshold(100_000, 50, 50)
    open_what_is_closed()
    from dsconfig.commands.app import FORWARDING, app
    from dsconfig.commands.errors import UsageError

    starts_programs = not FORWARDING.isdisjoint(sys.argv[1:2])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A lone surrogate in a config has no UTF-8, and a terminal may know ASCII alone.
            stream.reconfigure(errors="backslashreplace")
    try:
        with nullcontext() if starts_programs else without_plugins():
            app(prog_name="dsconfig")
    except UsageError as error:
        from dsconfig.commands.text_table import fitted
        from dsconfig.report.render.terminal import visible

        line = f"dsconfig: error: {visible(str(error))}"  # a program reads it as one
        print(fitted(line) if sys.stderr.isatty() else line, file=sys.stderr)
        sys.exit(USAGE)
    except BrokenPipeError:
        # The reader has gone (`| head`); closing quietly is what every tool does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FOUND)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        if error.errno not in FULL:
            report_fault()
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _say_full(error)
        sys.exit(USAGE)
    except Exception:
        report_fault()


def report_fault() -> NoReturn:
    """Show the exception that is being handled, which is ours."""
    import traceback

    traceback.print_exc()
    print("dsconfig: this is a fault of dsconfig; please report it.", file=sys.stderr)
    sys.exit(CRASHED)


def _say_full(error: OSError) -> None:
    print(f"dsconfig: error: the output cannot be written: {error.strerror}", file=sys.stderr)


def open_what_is_closed() -> None:
    """Point closed standard streams at nothing; else the next file opened would be one of them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


def program() -> None:
    """``main``, and out at once."""
    try:
        main()
    except SystemExit as left:
        if "torch" in sys.modules or not isinstance(left.code, int | None):
            raise
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError) as error:
                if not isinstance(error, OSError) or error.errno not in FULL:
                    os._exit(left.code or FOUND)
                if stream is sys.stdout:
                    _say_full(error)
                os._exit(USAGE)
        os._exit(left.code or 0)


if __name__ == "__main__":
    program()
