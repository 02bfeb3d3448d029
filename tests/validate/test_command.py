"""``dsconfig validate`` from end to end."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dsconfig.__main__ import main
from dsconfig.project import settings

GOOD = '{"train_batch_size": 8, "zero_optimization": {"stage": 2}, "gradient_clipping": 1.0}\n'
BAD = '{"train_batch_size": 8, "zero_optimisation": {"stage": 2}}\n'
BROKEN = '{"train_batch_size": 8\n'


@dataclass
class Result:
    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``dsconfig validate`` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "DSCONFIG_OUTPUT_FORMAT", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    settings.clear_cache()

    def call(*arguments: str, stdin: str | bytes = b"", command: str = "validate") -> Result:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "argv", ["dsconfig", command, *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        code = left.value.code
        return Result(code if isinstance(code, int) else 0, captured.out, captured.err)

    return call


def put(name: str, text: str) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return name


def files_of(result: Result) -> list[str]:
    return [file["file"] for file in json.loads(result.out)["files"]]


def codes_of(result: Result) -> list[str]:
    data = json.loads(result.out)["files"]
    return [found["code"] for file in data for found in file["diagnostics"]]


# --- exit codes and streams --------------------------------------------------------------------


def test_clean_file_exits_0_with_summary_on_stderr(run: Run) -> None:
    result = run(put("ds.json", GOOD))
    assert result.code == 0
    heading, summary = result.err.splitlines()
    assert heading.startswith("ds.json: target: DeepSpeed 0.19.8")
    assert summary == "1 file, 0 errors, 0 warnings"
    assert result.out == ""
    assert "info[DSC613]" in run("ds.json", "--runtime", "deepspeed").out


def test_error_exits_1_with_findings_on_stdout(run: Run) -> None:
    result = run(put("ds.json", BAD))
    assert result.code == 1
    assert "ds.json:1:25" in result.out and "help:" in result.out
    assert "1 error" in result.err


@pytest.mark.parametrize(
    "name", ["missing.json", "folder.json", "binary.json", "deep.json", "nothing*.json"]
)
def test_unreadable_input_exits_2(run: Run, name: str) -> None:
    Path("folder.json").mkdir()
    Path("binary.json").write_bytes(b"\x80\x00")
    put("deep.json", '{"a": ' * 10_000)
    result = run(name, "--output-format", "json")
    if name == "folder.json":
        assert (result.code, result.out) == (2, "") and "no config found" in result.err
    else:
        assert (result.code, codes_of(result)) == (2, ["DSC001"])


@pytest.mark.parametrize(("text", "code"), [(BROKEN, "DSC002"), ("", "DSC004"), ("[]", "DSC005")])
def test_file_without_config_has_one_finding(run: Run, text: str, code: str) -> None:
    result = run(put("ds.json", text), "--output-format", "json", "--runtime", "deepspeed")
    assert (result.code, codes_of(result)) == (1, [code])


def test_file_of_two_megabytes_is_read(run: Run) -> None:
    numbers = ",\n".join(map(str, range(10**8, 10**8 + 10**5)))
    text = f'{{"train_batch_size": 8, "_comment": [{numbers}, "{"x" * 10**6}"]}}'
    assert len(text) > 2 * 10**6
    assert run(put("ds.json", text), "--quiet").code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("--no-such-option",),
        ("--output-format", "xml"),
        ("--runtime", "horovod"),
        ("--deepspeed-version", "newest"),
        ("--select", "everything"),
        ("--ignore", "DSC1234"),
        ("--set", "stage"),
        ("--baseline", "missing.json"),
        ("--device", "abacus"),
    ],
)
def test_usage_error_exits_2_with_message_on_stderr(run: Run, arguments: tuple[str, ...]) -> None:
    result = run(put("ds.json", GOOD), *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err


def test_flags_change_exit_code(run: Run) -> None:
    put("bad.json", BAD)
    put("idle.json", '{"train_batch_size": 8, "$dsconfig": {"ignore": ["DSC999"]}}')
    assert run("bad.json", "--exit-zero").code == 0
    assert run("missing.json", "--exit-zero").code == 2
    assert run("idle.json").code == 0
    assert run("idle.json", "--error-on-warning").code == 1


def test_statistics_count_findings_by_rule(run: Run) -> None:
    for name in ("ds_config_a.json", "ds_config_b.json"):
        Path(name).write_text(BAD.replace("{", '{"gradient_cliping": 1, ', 1))
    result = run("--statistics", "--runtime", "deepspeed")
    assert result.code == 1
    header, first, *_ = result.out.splitlines()
    assert header.split() == ["findings", "files", "rule"]
    assert first.split() == ["4", "2", "DSC021", "unknown-key"]
    assert run("--statistics", "--output-format", "json").code == 2


def test_quiet_prints_nothing_for_clean_file(run: Run) -> None:
    result = run(put("ds.json", GOOD), "--quiet")
    assert (result.code, result.err) == (0, "")


# --- input files -------------------------------------------------------------------------------


def test_directories_are_searched_for_configs(run: Run) -> None:
    put("a/ds_config.json", BROKEN)
    put("a/b/other.json", GOOD)
    put("a/b/package.json", '{"name": "x"}')
    put("a/c/train.yaml", "deepspeed: {train_batch_size: 8}")
    put("a/c/other.yaml", "a: 1")
    put("a/node_modules/ds_config.json", BAD)
    put("a/.hidden/ds_config.json", BAD)
    put("a/large.json", GOOD + " " * 2**20)
    found = files_of(run("a", "--output-format", "json"))
    assert found == ["a/ds_config.json", "a/b/other.json", "a/c/train.yaml"]
    assert files_of(run("--output-format", "json")) == found


def test_search_skips_files_that_only_mention_deepspeed(run: Run) -> None:
    """Recorded runs of TRL, tuners of ms-swift, documentation and container files."""
    put("a/recorded.json", '{"config": {"args": {"gradient_accumulation_steps": 1}}, "steps": []}')
    put("a/tuner.json", '{"cmd": "sft", "args": {"gradient_accumulation_steps": 16}}')
    put("a/script.json", '{"model": "m", "lr": 1e-3, "epochs": 3, "train_batch_size": 8}')
    put("a/args.json", '{"output_dir": "o", "max_steps": 9, "gradient_accumulation_steps": 2}')
    put("a/neox.json", '{"num_layers": 1, "hidden_size": 8, "train_batch_size": 8, "pos_emb": "r"}')
    put("a/mkdocs.yml", "nav:\n  deepspeed: deepspeed.md\n")
    put("a/compose.yml", "services: {train: {environment: {deepspeed: '1'}}}\n")
    put("a/switched_off.yaml", "output_dir: o\ndeepspeed:\n")
    assert run("a").code == 2
    put("a/mixed.json", '{"model": "m", "lr": 1, "seed": 1, "zero_optimization": {"stage": 2}}')
    put("a/remarks.json", '{"_a": 1, "_b": 2, "//": "c", "train_batch_size": 8}')
    put("a/slip.json", '{"train_batch_size": 8, "zero_optimisation": {"stage": 2}}')
    put("a/cut.json", '{"train_batch_size": 8, "fp16": {"enabled": true}')
    put("a/missing.yaml", "output_dir: o\ndeepspeed: missing.json\n")
    found = files_of(run("a", "--output-format", "json"))
    assert found == [
        f"a/{name}"
        for name in ("cut.json", "missing.yaml", "mixed.json", "remarks.json", "slip.json")
    ]


def test_config_named_by_several_files_is_reported_once(run: Run) -> None:
    put("ds.json", BAD)
    for name in ("a.yaml", "b.yaml"):
        put(name, "output_dir: o\ndeepspeed: ds.json\n")
    result = run("a.yaml", "b.yaml", "ds.json", "--runtime", "deepspeed")
    assert result.out.count("error[") == 1 and result.code == 1
    assert "3 files, 1 error," in result.err


def test_specified_releases_are_printed(run: Run) -> None:
    put("ds.json", GOOD)
    heading = run("ds.json", "--with", "transformers==4.48.0", "--runtime", "transformers").err
    assert "checked for known bugs of transformers 4.48.0" in " ".join(heading.split())
    alone = run("ds.json", "--with", "transformers==4.48.0", "--runtime", "deepspeed").err
    assert "known bugs" not in " ".join(alone.split())


def test_specified_release_selects_target_program(run: Run) -> None:
    twice = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8}
    put("ds.json", json.dumps({**twice, "zero_optimization": {"stage": 2}}))
    by_trainer = run("ds.json", "--with", "transformers==4.48.0", "--with", "accelerate==1.2.0")
    assert by_trainer.code == 1 and "error[DSC847]" in by_trainer.out
    assert "inferred from --with" in " ".join(by_trainer.err.split())
    by_accelerate = run("ds.json", "--with", "accelerate==0.25.0")
    assert "DSC848" in by_accelerate.out
    assert "DSC84" not in run("ds.json", "--with", "transformers==4.49.0").out


def test_globs_list_each_file_once(run: Run) -> None:
    put("x/1.json", GOOD)
    put("x/y/2.json", GOOD)
    found = files_of(run("x/**/*.json", "x/1.json", "--output-format", "json"))
    assert found == ["x/1.json", "x/y/2.json"]


def test_stdin_filename_is_printed(run: Run) -> None:
    result = run("-", "--output-format", "concise", stdin=BAD)
    assert result.code == 1 and "<stdin>:1:25: DSC" in result.out
    named = run("-", "--stdin-filename", "x/ds.json", "--output-format", "concise", stdin=BAD)
    assert "x/ds.json:1:25: DSC" in named.out


def test_overrides_are_checked(run: Run) -> None:
    put("ds.json", GOOD)
    assert run("ds.json", "--set", "zero_optimization.stage=7").code == 1
    assert run("missing.json", "--set", "a=1").code == 2


def test_facts_trigger_rules(run: Run) -> None:
    put("ds.json", GOOD)
    assert run("ds.json", "--world-size", "3", "--runtime", "deepspeed").code == 1
    assert run("ds.json", "--world-size", "4", "--runtime", "deepspeed").code == 0


def test_output_format_from_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSCONFIG_OUTPUT_FORMAT", "github")
    assert "::error file=ds.json,line=1,col=25" in run(put("ds.json", BAD)).out


# --- selection of findings ---------------------------------------------------------------------


def test_select_and_ignore(run: Run) -> None:
    put("ds.json", BAD)
    (code,) = set(codes_of(run("ds.json", "--output-format", "json", "--select", "DSC0")))
    assert run("ds.json", "--ignore", code).code == 0
    assert run("ds.json", "--ignore", "DSC0,DSC1", "--ignore", "DSC7").code == 0
    assert run("ds.json", "--select", "DSC9").code == 0
    put("broken.json", BROKEN)
    assert codes_of(run("broken.json", "--select", "DSC9", "--output-format", "json")) == ["DSC002"]


def test_baseline_suppresses_known_findings(run: Run) -> None:
    put("ds.json", BAD)
    put("base.json", run("ds.json", "--output-format", "json").out)
    assert run("./ds.json", "--baseline", "base.json").code == 0
    put("ds.json", BAD.replace("{", '{"no_such_key": 1, ', 1))
    result = run("ds.json", "--baseline", "base.json", "--output-format", "json")
    assert result.code == 1 and len(codes_of(result)) == 1
    known = len(json.loads(Path("base.json").read_text())["files"][0]["diagnostics"])
    assert f"{known} suppressed by the baseline" in result.err
    summary = run("ds.json", "--baseline", "base.json").err.splitlines()[-1]
    assert summary.endswith(f"{known} suppressed by the baseline")


@pytest.mark.parametrize("text", ["{", "[]", '{"files": [{}]}'])
def test_invalid_baseline_is_a_usage_error(run: Run, text: str) -> None:
    put("ds.json", GOOD)
    result = run("ds.json", "--baseline", put("base.json", text))
    assert result.code == 2 and "--output-format json" in result.err


def test_pyproject_settings(run: Run) -> None:
    put("legacy/ds.json", BAD)
    put("new/ds_config.json", BAD)
    put("vendor/ds_config.json", BAD)
    put(
        "pyproject.toml",
        '[tool.dsconfig]\nexclude = ["vendor/*"]\nper-file-ignores = {"legacy/*" = ["DSC0"]}\n'
        'runtime = "deepspeed"\ndeepspeed-version = "0.16.4"\nselect = ["DSC"]\n'
        'ignore = ["DSC9"]\n',
    )
    assert run("legacy/ds.json").code == 0
    assert run("new/ds_config.json").code == 1
    assert files_of(run(".", "--output-format", "json")) == ["legacy/ds.json", "new/ds_config.json"]
    assert run("vendor/ds_config.json").code == 1


@pytest.mark.parametrize(
    "table",
    [
        "dsconfig = 1",
        "[tool.dsconfig]\nselekt = []",
        "[tool.dsconfig]\nignore = 'DSC1'",
        "[tool.dsconfig]\nruntime = 5",
        "[tool.dsconfig]\nper-file-ignores = []",
        "[tool.dsconfig\n",
    ],
)
def test_malformed_settings_are_a_usage_error(run: Run, table: str) -> None:
    put("ds.json", GOOD)
    put("pyproject.toml", f"[tool]\n{table}\n" if table.startswith("dsconfig") else table)
    result = run("ds.json")
    assert result.code == 2 and "pyproject.toml" in result.err


def test_other_pyproject_files_are_ignored(run: Run) -> None:
    put("x/pyproject.toml", "[tool.other] # tool.dsconfig")
    Path("x/y").mkdir()
    Path("x/y/pyproject.toml").write_bytes(b"\x80")
    assert run(put("x/y/ds.json", GOOD)).code == 0


# --- subprocesses ------------------------------------------------------------------------------


def test_output_is_ascii_on_ascii_terminal(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text('{"train_batch_size": 8, "\u4e2d": 1}', encoding="utf-8")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "dsconfig", "validate", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 1
    assert "\\u4e2d" in result.stdout


def test_validate_does_not_import_heavy_packages(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(GOOD)
    program = (
        "import sys\nfrom dsconfig.__main__ import main\n"
        f"sys.argv = ['dsconfig', 'validate', {str(file)!r}]\n"
        "try:\n    main()\nfinally:\n"
        "    heavy = {'torch', 'deepspeed', 'transformers', 'yaml', 'rich', 'jsonschema'}\n"
        "    print(sorted(heavy & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.splitlines()[-1] == "[]"
