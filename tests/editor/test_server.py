"""The language server, driven by a client over stdin and stdout."""

import subprocess
import sys
from pathlib import Path

from lsprotocol import types

from editor.client import BYTES, Editor, run

CONFIG = """{
  "train_batch_size": 8,
  "train_micro_batch_size_per_gpu": "auto",
  "zero_optimization": {
    "stage": 3,
    "overlap_com": true,
    "reduce_bucket_size": "auto"
  }
}
"""
PROJECT = '[tool.dsconfig]\nmodel = "llama-3-8b"\ndevices = "8 x a100-80gb"\n'


def applied(text: str, edits: "list[types.TextEdit]") -> str:
    """Return the text with edits of ASCII lines applied."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for edit in sorted(
        edits, key=lambda each: (each.range.start.line, each.range.start.character), reverse=True
    ):
        start = starts[edit.range.start.line] + edit.range.start.character
        end = starts[edit.range.end.line] + edit.range.end.character
        text = text[:start] + edit.new_text + text[end:]
    return text


def edits_of(action: types.CodeAction | types.Command) -> "list[types.TextEdit]":
    assert isinstance(action, types.CodeAction)
    assert action.edit is not None and action.edit.changes is not None
    (edits,) = action.edit.changes.values()
    return list(edits)


def test_findings_follow_the_text(tmp_path: Path) -> None:
    async def work(editor: Editor) -> None:
        (first, *_) = await editor.open("ds_config.json", CONFIG)
        assert first.code == "DSC021" and first.severity is types.DiagnosticSeverity.Error
        assert (first.range.start.line, first.range.start.character) == (5, 4)
        assert first.code_description is not None and first.code_description.href.startswith(
            "file:"
        )
        fixed = await editor.change("ds_config.json", CONFIG.replace("overlap_com", "overlap_comm"))
        assert "DSC021" not in [each.code for each in fixed]

    run(tmp_path, work)


def test_columns_count_utf_16_units(tmp_path: Path) -> None:
    text = '{"train_batch_size": 8, "\N{MAHJONG TILE RED DRAGON}": 1, "gradient_cliping": 1}'

    async def work(editor: Editor) -> None:
        found = await editor.open("ds_config.json", text)
        (place,) = [each.range for each in found if "gradient_cliping" in each.message]
        units = text.encode("utf-16-le")[place.start.character * 2 : place.end.character * 2]
        assert units.decode("utf-16-le") == '"gradient_cliping"'

    run(tmp_path, work)


def test_other_files_have_no_findings(tmp_path: Path) -> None:
    async def work(editor: Editor) -> None:
        assert await editor.open("package.json", '{"name": "x", "version": 1}') == []
        assert await editor.open("train.py", "print(1)\n") == []
        assert await editor.hover("package.json", 0, 3) == ""
        assert await editor.complete("package.json", 0, 1) == []
        # What becomes a config is checked, and remains one while it is broken.
        found = await editor.change("package.json", CONFIG)
        assert found[0].code == "DSC021"
        assert [each.code for each in await editor.change("package.json", "{")] == ["DSC002"]

    run(tmp_path, work)


HJSON = "{\n  // comment\n  zero_optimization: {stage: 7}\n  train_batch_size: 8\n}"
YAML = (
    "deepspeed_config:\n  gradient_accumulation_steps: auto\n  zero_stage: 3\n"
    "distributed_type: DEEPSPEED\nmixed_precision: bf16\n"
)
PYTHON = 'ds_config = {"train_batch_size": 8, "zero_optimization": {"stage": 7}}\n'


FORMATS = [
    ("ds.hjson", HJSON, "DSC031"),
    ("accelerate.yaml", YAML, "DSC705"),
    ("train.py", PYTHON, "DSC031"),
]


def test_every_format_is_checked(tmp_path: Path) -> None:
    async def work(editor: Editor) -> None:
        for name, text, code in FORMATS:
            assert code in [each.code for each in await editor.open(name, text)], name

    run(tmp_path, work)


def test_hover_explains_with_the_facts_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)

    async def work(editor: Editor) -> None:
        await editor.open("ds_config.json", CONFIG.replace("overlap_com", "overlap_comm"))
        stage = await editor.hover("ds_config.json", 4, 6)
        assert "**zero_optimization.stage**" in stage and "`llama-3-8b`: " in stage
        assert "GiB per GPU in backward, the peak" in stage
        assert "hidden_size" in await editor.hover("ds_config.json", 6, 8)
        assert await editor.hover("ds_config.json", 0, 0) == ""
        await editor.change("ds_config.json", CONFIG)
        assert "[DSC021](file:" in await editor.hover("ds_config.json", 5, 6)

    run(tmp_path, work)


def test_keys_and_values_are_completed(tmp_path: Path) -> None:
    async def work(editor: Editor) -> None:
        await editor.open("ds_config.json", CONFIG)
        text = CONFIG.replace('"stage": 3,', '"stage": 3,\n    "off')
        await editor.change("ds_config.json", text)
        keys = {each.label: each for each in await editor.complete("ds_config.json", 5, 8)}
        assert {"offload_optimizer", "overlap_comm"} <= set(keys) and "stage" not in keys
        edit = keys["overlap_comm"].text_edit
        assert isinstance(edit, types.TextEdit)
        assert '"overlap_comm": null' in applied(text, [edit])
        values = await editor.complete("ds_config.json", 4, 13)
        assert {"0", "1", "2", "3"} <= {each.label for each in values}
        top = await editor.complete("ds_config.json", 1, 2)
        assert {"fp16", "optimizer"} <= {each.label for each in top}

    run(tmp_path, work)


def test_actions_fix_resolve_and_explain(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT + 'runtime = "dsengine"\n')

    async def work(editor: Editor) -> None:
        await editor.open("ds_config.json", CONFIG)
        offered = await editor.actions("ds_config.json", 5, 6)
        fix, explain = offered
        assert '"overlap_comm": true' in applied(CONFIG, edits_of(fix))
        assert isinstance(explain, types.Command)
        await editor.client.workspace_execute_command_async(
            types.ExecuteCommandParams(explain.command, explain.arguments)
        )
        assert editor.shown and editor.shown[0].endswith("DSC021.md")
        (resolve,) = await editor.actions("ds_config.json", 6, 30, only=["refactor"])
        assert '"reduce_bucket_size": 16777216' in applied(CONFIG, edits_of(resolve))

    run(tmp_path, work)


def test_all_safe_fixes_are_one_action(tmp_path: Path) -> None:
    text = CONFIG.replace('"overlap_com": true', '"overlap_comm": True')

    async def work(editor: Editor) -> None:
        await editor.open("ds_config.json", text)
        (action,) = await editor.actions("ds_config.json", 0, only=["source.fixAll"])
        assert '"overlap_comm": true' in applied(text, edits_of(action))

    run(tmp_path, work)


def test_changed_settings_are_read_again(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"

    async def work(editor: Editor) -> None:
        assert await editor.open("ds_config.json", CONFIG)
        assert editor.registered == [types.WORKSPACE_DID_CHANGE_WATCHED_FILES]
        project.write_text('[tool.dsconfig]\nignore = ["DSC"]\n')
        changed = types.FileEvent(project.as_uri(), types.FileChangeType.Created)
        editor.client.workspace_did_change_watched_files(
            types.DidChangeWatchedFilesParams([changed])
        )
        assert await editor.findings("ds_config.json") == []
        project.write_text('[tool.dsconfig]\nruntime = "nosuch"\n')
        editor.client.text_document_did_save(
            types.DidSaveTextDocumentParams(
                types.TextDocumentIdentifier(editor.uri("ds_config.json"))
            )
        )
        (problem,) = await editor.findings("ds_config.json")
        assert "nosuch" in problem.message

    run(tmp_path, work)


def test_columns_count_bytes_for_a_client_that_does(tmp_path: Path) -> None:
    text = '{"train_batch_size": 8, "\N{MAHJONG TILE RED DRAGON}": 1, "gradient_cliping": 1}'

    async def work(editor: Editor) -> None:
        found = await editor.open("ds_config.json", text)
        (place,) = [each.range for each in found if "gradient_cliping" in each.message]
        assert text.encode()[place.start.character : place.end.character] == b'"gradient_cliping"'

    run(tmp_path, work, BYTES)


def test_missing_package_is_named(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['pygls'] = None; from dsconfig.__main__ import program; "
    done = subprocess.run(
        [sys.executable, "-c", f"{hidden} sys.argv = ['dsconfig', 'lsp']; program()"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "dsconfig-zero[lsp]" in done.stderr
