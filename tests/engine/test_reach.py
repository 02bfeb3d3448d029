"""The replacement reaches every Python process below, next to a package named deepspeed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dsengine
import forked_python
from dsengine import startup, unreplaced

ROOT = Path(__file__).parents[2]
BASE_PYTHON = Path(sys.base_prefix, "bin", "python3")
"""A Python without dsengine."""
PROBE = "import deepspeed, sys; print(deepspeed.__name__, 'torch' in sys.modules)"
REPLACED = "dsengine False\n"
INSTALLED = "deepspeed False\n"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which another package named deepspeed can be imported."""
    package = tmp_path / "site" / "deepspeed"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '0.0'\n")
    dropped = (startup.MODE, "RANK", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    paths = [package.parent, ROOT, ROOT / "engine"]
    return kept | {"PYTHONPATH": os.pathsep.join(map(str, paths))}


def run(
    *command: str, environment: dict[str, str], folder: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *command], env=environment, cwd=folder, capture_output=True, text=True
    )


def stdout_of(*command: str, environment: dict[str, str]) -> str:
    done = run(*command, environment=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


GRANDCHILD = f"""
import os, subprocess, sys
code = {PROBE!r}
shell = f"cd / && '{{sys.executable}}' -c '{{code.replace(chr(39), chr(34))}}'"
subprocess.run(["bash", "-c", shell], check=True)
"""


@pytest.mark.parametrize(
    ("start", "first_line"),
    [
        (("-m", "dsengine"), ""),
        (("-m", "dsengine.as_deepspeed"), ""),
        ((), "import dsengine.as_deepspeed\n"),
    ],
)
def test_grandchild_imports_dsengine(
    start: tuple[str, ...], first_line: str, environment: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(GRANDCHILD)
    assert stdout_of(str(script), environment=environment) == INSTALLED
    script.write_text(first_line + GRANDCHILD)
    assert stdout_of(*start, str(script), environment=environment) == REPLACED


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_multiprocessing_imports_dsengine(
    method: str, environment: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"""
import multiprocessing

def train():
    import deepspeed
    print(deepspeed.__name__)

if __name__ == "__main__":
    process = multiprocessing.get_context({method!r}).Process(target=train)
    process.start()
    process.join()
""")
    assert stdout_of("-m", "dsengine", str(script), environment=environment) == "dsengine\n"


def test_two_environment_variables_are_sufficient(
    environment: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"""
import os, subprocess, sys
kept = {{name: os.environ[name] for name in ("PATH", "PYTHONPATH")}}
kept["PYTHONPATH"] = "/first" + os.pathsep + kept["PYTHONPATH"]
subprocess.run([sys.executable, "-c", {PROBE!r}], env=kept, check=True)
""")
    assert stdout_of("-m", "dsengine", str(script), environment=environment) == REPLACED


def test_metadata_names_dsengine_in_children(environment: dict[str, str]) -> None:
    code = (
        "from importlib import metadata, util; import sys;"
        "print(metadata.version('deepspeed'), util.find_spec('deepspeed').loader.real.name);"
        "print([d.metadata['Name'] for d in metadata.distributions(path=['/'])])"
    )
    printed = stdout_of("-m", "dsengine", sys.executable, "-c", code, environment=environment)
    assert printed == f"{dsengine.__version__} dsengine\n[]\n"


def test_hook_imports_nothing_of_dsengine_before_it_is_needed(environment: dict[str, str]) -> None:
    code = "import sys; print({'torch', 'dsengine', 'dsconfig', 'pydantic'} & set(sys.modules))"
    hooked = startup.child_environment(environment)
    assert stdout_of("-c", code, environment=hooked) == "set()\n"


@pytest.mark.parametrize("hides", [False, True])
def test_hidden_sitecustomize_runs(
    hides: bool, environment: dict[str, str], tmp_path: Path
) -> None:
    text = "import sys\nprint('hidden', sys.modules[__name__].__file__)\n"
    if hides:
        text += """
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == "deepspeed":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
"""
    hidden = tmp_path / "site" / "sitecustomize.py"
    hidden.write_text(text)
    hooked = startup.child_environment(environment)
    assert stdout_of("-c", PROBE, environment=hooked) == f"hidden {hidden}\n{REPLACED}"


def test_environment_is_extended_once() -> None:
    first = startup.child_environment({"PYTHONPATH": "/a::/b", "PATH": "/bin"})
    assert first["PYTHONPATH"] == os.pathsep.join([startup.HOOK_FOLDER, "/a", "", "/b"])
    assert first["PATH"] == os.pathsep.join([startup.PROGRAM_FOLDER, "/bin"])
    assert startup.child_environment(first) == first and startup.has_hook(first)
    assert startup.child_environment({})["PYTHONPATH"] == startup.HOOK_FOLDER


def test_foreign_deepspeed_ends_process_if_required(environment: dict[str, str]) -> None:
    code = (
        "import sys, types; sys.modules['deepspeed'] = types.ModuleType('deepspeed');"
        "import colorsys; print('not reached')"
    )
    hooked = startup.child_environment(environment)
    assert stdout_of("-c", code, environment=hooked) == "not reached\n"
    done = run("-c", code, environment=hooked | {startup.MODE: startup.REQUIRED})
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: deepspeed is not replaced" in done.stderr
    replaced = run("-c", PROBE, environment=hooked | {startup.MODE: startup.REQUIRED})
    assert replaced.stdout == REPLACED, replaced.stderr


def test_late_replacement_ends_process_if_required(environment: dict[str, str]) -> None:
    code = (
        "import deepspeed\n"
        "try:\n    import dsengine.as_deepspeed\n"
        "except ImportError as error:\n    print('caught')"
    )
    assert stdout_of("-c", code, environment=environment) == "caught\n"
    done = run("-c", code, environment=environment | {startup.MODE: startup.REQUIRED})
    assert (done.returncode, done.stdout) == (1, "")
    assert "dsengine: error: deepspeed is already imported" in done.stderr


@pytest.mark.skipif(not BASE_PYTHON.exists(), reason="this Python is not installed in a prefix")
def test_python_without_dsengine_reports_it(environment: dict[str, str], tmp_path: Path) -> None:
    site = (tmp_path / "site").rename(tmp_path / "\x1b]0;owned\x07")
    hooked = environment | {"PYTHONPATH": os.pathsep.join([startup.HOOK_FOLDER, str(site)])}
    command = [str(BASE_PYTHON), "-c", PROBE]
    done = subprocess.run(command, env=hooked, capture_output=True, text=True)
    assert done.stdout == INSTALLED
    assert "warning: deepspeed is not replaced, but imported from" in done.stderr
    assert r"\x1b]0;owned\x07" in done.stderr and "\x1b" not in done.stderr
    assert f"dsengine cannot be imported by {BASE_PYTHON}" in done.stderr
    required = hooked | {startup.MODE: startup.REQUIRED}
    done = subprocess.run(command, env=required, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "") and "DSENGINE=required" in done.stderr


@pytest.mark.parametrize("option", ["-S", "-E", "-I"])
def test_isolated_python_is_not_replaced(option: str, environment: dict[str, str]) -> None:
    hooked = startup.child_environment(environment)
    code = "import sys; print([type(each).__module__ for each in sys.meta_path])"
    assert "sitecustomize" in stdout_of("-c", code, environment=hooked)
    assert "sitecustomize" not in stdout_of(option, "-c", code, environment=hooked)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("python -I a.py", "I"),
        ("python -uE a.py", "E"),
        ("python -X dev -W ignore -S -m a", "S"),
        ("python -u -Xdev a.py -I", None),
        ("python -c pass -E", None),
        ("python -Wignore -m pip -S", None),
        ("python --check-hash-based-pycs never a.py", None),
        ("python - -I", None),
        ("python", None),
    ],
)
def test_isolating_options_are_found(words: str, option: str | None) -> None:
    assert unreplaced.isolating_option(words.split()) == option


LOADS_TORCH = """
import mmap, os, signal, sys
file = open(sys.argv[1], "rb")
loaded = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
print("loaded", flush=True)
if os.fork() == 0:
    signal.pause()
os.wait()
"""
"""Waits for a signal; a process that has mapped libtorch_python appears to have loaded torch."""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are watched on Linux")
@pytest.mark.parametrize(
    ("options", "paths", "reason"),
    [
        ((), None, None),
        ((), "/elsewhere", "PYTHONPATH lacks"),
        (("-I",), None, "option -I disables"),
    ],
)
def test_processes_without_the_hook_are_found(
    options: tuple[str, ...],
    paths: str | None,
    reason: str | None,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    library = tmp_path / "libtorch_python.so"
    library.write_text("not empty")
    hooked = startup.child_environment(environment)
    if paths is not None:
        hooked["PYTHONPATH"] = paths
    command = [sys.executable, *options, "-c", LOADS_TORCH, str(library)]
    with subprocess.Popen(command, env=hooked, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None and started.stdout.readline() == "loaded\n"
            found = list(unreplaced.unreplaced(started.pid))
        finally:
            subprocess.run(["pkill", "-P", str(started.pid)], check=False)
            started.kill()
    if reason is None:
        assert found == []
    else:
        assert started.pid in {each.pid for each in found}
        assert all(reason in str(each) for each in found)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are watched on Linux")
def test_process_without_the_hook_is_terminated_if_required(
    environment: dict[str, str], tmp_path: Path
) -> None:
    library = tmp_path / "libtorch_python.so"
    library.write_text("not empty")
    loads = tmp_path / "loads.py"
    loads.write_text(LOADS_TORCH.replace("if os.fork() == 0:\n    ", "").replace("os.wait()", ""))
    shell = f"PYTHONPATH=/elsewhere '{sys.executable}' {loads} {library}; echo $?"
    required = environment | {startup.MODE: startup.REQUIRED}
    done = run("-m", "dsengine", "bash", "-c", shell, environment=required)
    assert done.stdout == "loaded\n143\n"
    assert "error: deepspeed is not replaced in process" in done.stderr
    assert "extend PYTHONPATH" in done.stderr and "terminated (DSENGINE=required)" in done.stderr


@pytest.fixture
def start(tmp_path: Path) -> tuple[str, ...]:
    """Return the arguments of Python that run a script on the installed DeepSpeed."""
    script = tmp_path / "train.py"
    script.write_text("print('started')\n")
    (tmp_path / "site" / "deepspeed" / "__init__.py").write_text("def initialize(): ...\n")
    return ("-m", "dsengine.with_deepspeed", str(script))


def test_run_on_the_installed_deepspeed_starts_without_the_replacement(
    environment: dict[str, str], start: tuple[str, ...]
) -> None:
    done = forked_python.run(*start, environment=environment)
    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ({}, "was started with dsengine in its place"),
        pytest.param(
            {startup.MODE: startup.REQUIRED},
            "DSENGINE=required excludes it",
            marks=pytest.mark.long,  # the same without the replacement is below
        ),
    ],
)
def test_run_on_the_installed_deepspeed_is_refused_under_the_replacement(
    mode: dict[str, str], words: str, environment: dict[str, str], start: tuple[str, ...]
) -> None:
    replaced = startup.child_environment(environment)
    check_refusal(run(*start, environment=replaced | mode), words)


def test_run_on_the_installed_deepspeed_is_refused_if_the_replacement_is_required(
    environment: dict[str, str], start: tuple[str, ...]
) -> None:
    required = environment | {startup.MODE: startup.REQUIRED}
    done = forked_python.run(*start, environment=required)
    check_refusal(done, "DSENGINE=required excludes it")


def check_refusal(done: "subprocess.CompletedProcess[str]", words: str) -> None:
    assert (done.returncode, done.stdout) == (1, "") and words in done.stderr
    assert "Traceback" not in done.stderr
