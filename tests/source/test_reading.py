"""Any input becomes a document; unreadable input reports one finding."""

import base64
import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dsconfig.source import Document, Format, read, reading

CONFIG = '{"train_batch_size": 8}'


def only(document: Document) -> str:
    (found,) = document.diagnostics
    assert document.is_unreadable or document.is_broken
    return f"{found.code} {found.message}"


def stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))


def test_read_accepts_path_as_str_or_path(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(CONFIG)
    for source in (file, str(file)):
        document = read(source)
        assert document.value == {"train_batch_size": 8}
        assert (document.name, document.format) == (str(file), Format.JSON)
    assert read(file, name="mine").name == "mine"


def test_read_text() -> None:
    assert read(CONFIG).name == "<text>"
    assert read("train_batch_size: 8\n").format is Format.HJSON


def test_read_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, CONFIG.encode())
    assert read("-").value == {"train_batch_size": 8}
    stdin(monkeypatch, b"deepspeed: {train_batch_size: 8, steps_per_print: 1}")
    assert read("-", name="train.yaml").format is Format.YAML
    monkeypatch.setattr(sys, "stdin", None)
    assert only(read("-")).startswith("DSC001")


def test_dict_has_no_text() -> None:
    document = read({"train_batch_size": 8})
    assert (document.format, document.text, document.range("")) == (Format.DICT, None, None)


def test_base64_as_in_deepspeed() -> None:
    document = read(base64.urlsafe_b64encode(b'{"a": 1, "a": 2}').decode())
    assert (document.format, document.value) == (Format.BASE64, {"a": 2})
    assert [found.effect for found in document.diagnostics] == ["altered"]
    assert read("bm90IGEgY29uZmln", format="base64").is_unreadable
    assert read("!", format="base64").is_unreadable


def test_byte_order_mark_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_bytes(b"\xef\xbb\xbf" + CONFIG.encode())
    document = read(file)
    assert document.has_bom and document.text == CONFIG
    assert document.json_error and document.json_error.message == "a byte order mark"
    file.write_bytes(b"\xef\xbb\xbf\xef\xbb\xbf" + CONFIG.encode())
    assert read(file).is_broken


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("/no/such/ds_config.json", "DSC001 file not found"),
        ("ds_config_zero3.json", "DSC001 file not found"),
        ("a\0b", "DSC001 cannot be read"),
        ("x" * 5000, "DSC001 file name too long"),
        ("", "DSC004 empty file"),
        ("   \n// nothing\n", "DSC004 empty file"),
        ("[1, 2]", "DSC005 expected an object, found a list"),
        ('"text"\n', "DSC005 expected an object, found a string"),
        ("5\n", "DSC005 expected an object, found a number"),
        ("true\n", "DSC005 expected an object, found a boolean"),
        ("null\n", "DSC005 expected an object, found null"),
    ],
)
def test_input_without_config_reports_one_finding(source: str, message: str) -> None:
    assert only(read(source)).startswith(message)


def test_binary_files_report_one_finding(tmp_path: Path) -> None:
    assert "directory" in only(read(tmp_path))
    for data, word in ((b"\xff\xfe{\0}\0", "UTF-16"), (b"ab\ncd\x80", "0x80 on line 2")):
        (tmp_path / "x.json").write_bytes(data)
        assert word in only(read(tmp_path / "x.json"))
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    assert "symbolic links" in only(read(loop))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_file_without_permission_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(CONFIG)
    file.chmod(0)
    assert "permission denied" in only(read(file))


def test_oversized_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_BYTES", 10)
    file = tmp_path / "x.json"
    file.write_text(CONFIG)
    assert "larger than" in only(read(file))


def test_wrong_arguments_raise() -> None:
    with pytest.raises(TypeError, match="not int"):
        read(5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="xml"):
        read(CONFIG, format="xml")


def test_base64_on_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, base64.urlsafe_b64encode(CONFIG.encode()) + b"\n")
    document = read("-")
    assert document.format is Format.BASE64 and document.value == {"train_batch_size": 8}
    assert document.name == "<stdin>"
