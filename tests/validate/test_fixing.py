"""``--fix`` keeps comments and layout, and never adds a finding."""

from pathlib import Path

import pytest

from dsconfig.project.fixing import fix
from dsconfig.project.validator import Validator
from dsconfig.source import Document, read
from dsconfig.source.from_text import document_from_text
from mutants import CORPUS, mutants
from validate.test_command import GOOD, Run, put, run

__all__ = ["run"]

MISTYPED = (
    '{\n  // mine\n  "train_batch_size": 8, # kept\n  "zero_optimization": {"Stage": 2},\n'
    '  "gradient_clipping": 1.0\n}\n'
)
FIXED = MISTYPED.replace("Stage", "stage")
VALIDATORS = [Validator(), Validator(runtime="deepspeed", version="0.19.8")]


def test_safe_fix_keeps_comments_and_layout(run: Run) -> None:
    put("ds.json", MISTYPED)
    result = run("ds.json", "--fix")
    assert Path("ds.json").read_text() == FIXED
    assert "1 fix applied in 1 file" in result.err
    assert "0 fixes applied in 0 files" in run("ds.json", "--fix").err


def test_diff_prints_changes_and_writes_nothing(run: Run) -> None:
    put("ds.json", MISTYPED)
    result = run("ds.json", "--diff")
    assert result.code == 1
    assert '-  "zero_optimization": {"Stage": 2},\n+  "zero_optimization": {"st' in result.out
    assert Path("ds.json").read_text() == MISTYPED
    assert run(put("good.json", GOOD), "--diff").out == ""


def test_diff_marks_missing_final_newline(run: Run) -> None:
    put("ds.json", MISTYPED.rstrip())
    assert "\\ No newline at end of file" in run("ds.json", "--diff").out


def test_fixing_stdin_writes_text_to_stdout(run: Run) -> None:
    result = run("-", "--fix", stdin=MISTYPED)
    assert result.out == FIXED
    assert result.code == 0


def test_fix_keeps_line_endings_and_byte_order_mark(run: Run) -> None:
    raw = b"\xef\xbb\xbf" + MISTYPED.replace("\n", "\r\n").encode()
    Path("ds.json").write_bytes(raw)
    Path("ds.json").chmod(0o640)
    run("ds.json", "--fix")
    assert Path("ds.json").read_bytes() == raw.replace(b"Stage", b"stage")
    assert Path("ds.json").stat().st_mode & 0o777 == 0o640


def test_fix_keeps_symbolic_links(run: Run) -> None:
    put("real.json", MISTYPED)
    Path("link.json").symlink_to("real.json")
    run("link.json", "--fix")
    assert Path("link.json").is_symlink()
    assert Path("real.json").read_text() == FIXED


def test_unwritable_file_is_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    put("ds.json", MISTYPED)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "permission denied")

    monkeypatch.setattr("os.fsync", refuse)
    result = run("ds.json", "--fix")
    assert result.code == 2 and "permission denied" in result.err


def test_fix_leaves_embedded_and_missing_configs_unchanged(run: Run) -> None:
    put("train.yaml", "deepspeed: {train_batch_size: 8, zero_optimisation: {}}\n")
    assert "0 fixes" in run("train.yaml", "--fix").err
    assert run("missing.json", "--fix").code == 2


def test_conflicting_fixes_are_not_combined(run: Run) -> None:
    text = '{"train_batch_size": 8, "zero_optimization": {"Stage": 2, "STAGE": 3}}\n'
    put("ds.json", text)
    assert "DSC003" not in run("ds.json", "--output-format", "concise").out
    run("ds.json", "--unsafe-fixes")
    assert "DSC003" not in run("ds.json", "--output-format", "concise").out


def test_python_literals_become_json(run: Run) -> None:
    text = '{"train_batch_size": 8, "fp16": {"enabled": True},\n"prescale_gradients": False}\n'
    put("ds.json", text)
    run("ds.json", "--fix")
    assert Path("ds.json").read_text() == text.replace("True", "true").replace("False", "false")


def check(document: Document, validator: Validator, unsafe: bool) -> int:
    before = validator.validate(document)
    once = fix(document, validator, unsafe=unsafe)
    repaired = document.is_broken and not once.document.is_broken
    assert repaired or len(once.report.errors) <= len(before.errors)
    if before.ok:
        assert once.report.ok
    again = fix(once.document, validator, unsafe=unsafe)
    assert again.count == 0 and again.document.text == once.document.text
    return once.count


@pytest.mark.parametrize(
    ("validator", "unsafe"),
    [
        pytest.param(VALIDATORS[0], False, id="all-safe", marks=pytest.mark.long),
        pytest.param(VALIDATORS[0], True, id="all-unsafe"),
        pytest.param(VALIDATORS[1], False, id="deepspeed-safe", marks=pytest.mark.long),
        pytest.param(VALIDATORS[1], True, id="deepspeed-unsafe", marks=pytest.mark.long),
    ],
)
def test_fixing_corpus_is_idempotent(validator: Validator, unsafe: bool) -> None:
    made = sum(check(read(path), validator, unsafe) for path in sorted(CORPUS.glob("*.json")))
    assert made > 0


@pytest.mark.parametrize(
    "seed", [7, *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(100, 150))]
)
def test_fixing_mutants_adds_no_errors(seed: int) -> None:
    for text in mutants(300, seed):
        check(document_from_text(text, "mutant.json"), VALIDATORS[0], unsafe=True)


def comments(text: str) -> list[str]:
    """Return comment lines in order."""
    return [line.strip() for line in text.splitlines() if line.strip().startswith(("//", "#"))]


def paths(value: object, path: str = "") -> list[str]:
    """Return the path of every key in order."""
    found: list[str] = []
    for name, inner in value.items() if isinstance(value, dict) else ():
        found += [f"{path}/{name}", *paths(inner, f"{path}/{name}")]
    return found


@pytest.mark.parametrize(
    ("unsafe", "step"),
    [
        pytest.param(True, 2, id="unsafe, every other file"),
        pytest.param(False, 1, id="safe", marks=pytest.mark.long),
        pytest.param(True, 1, id="unsafe", marks=pytest.mark.long),
    ],
)
def test_fixing_public_files_keeps_comments_and_order(unsafe: bool, step: int) -> None:
    changed = 0
    for path in sorted(CORPUS.glob("*.json"))[::step]:
        before = read(path)
        after = fix(before, Validator().with_program(before, str(path)), unsafe=unsafe).document
        changed += after.text != before.text
        made_strict = before.json_error is not None and after.json_error is None
        if not made_strict:  # strict JSON has no comments
            assert comments(after.text or "") == comments(before.text or ""), path.name
        old, new = paths(before.value), paths(after.value)
        assert [each for each in old if each in new] == [each for each in new if each in old], path
    assert changed > 20 // step
