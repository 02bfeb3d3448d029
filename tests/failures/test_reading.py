"""Reading of logs: several ranks, formats, hostile input, output of the command."""

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dsconfig
from dsconfig.commands.app import app
from dsconfig.failures import reading
from dsconfig.failures.text import last_time, rank_in_name, without_prefix

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
TIMEOUT = (
    "[E801 01:16:56.381097551 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)\n"
)


def test_error_of_one_rank_precedes_timeouts_of_others(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text("[2025-08-01 01:00:00,000] start\n" + TIMEOUT)
    (tmp_path / "rank3.log").write_text("[2025-08-01 01:06:50,000] step\n\n" + OOM)
    diagnosis = dsconfig.diagnose(tmp_path)
    [first] = diagnosis.failures
    assert (first.signature, first.rank, first.line) == ("gpu-out-of-memory", 3, 3)
    assert [each.signature for each in diagnosis.consequences] == ["nccl-timeout"]


def test_error_after_a_timeout_is_a_consequence(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(TIMEOUT)
    (tmp_path / "rank3.log").write_text("[2025-08-01 01:30:00,000] step\n" + OOM)
    diagnosis = dsconfig.diagnose(tmp_path)
    assert [each.signature for each in diagnosis.failures] == ["nccl-timeout"]
    assert [each.signature for each in diagnosis.consequences] == ["gpu-out-of-memory"]


def test_errors_of_two_ranks_are_both_reported(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(OOM)
    (tmp_path / "rank1.log").write_text("RuntimeError: 'weight' must be 2-D\n")
    names = [each.signature for each in dsconfig.diagnose(tmp_path).failures]
    assert names == ["gpu-out-of-memory", "embedding-partitioned"]


def test_same_failure_of_all_ranks_is_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(f"[rank{rank}]: {OOM}" for rank in (1, 0, 2)))
    [failure] = dsconfig.diagnose(path).failures
    assert (failure.rank, failure.line, failure.ranks) == (1, 1, (0, 1, 2))


@pytest.mark.parametrize(
    ("line", "text", "rank"),
    [
        ("[rank3]: RuntimeError: x", "RuntimeError: x", 3),
        ("[default1]:RuntimeError: x", "RuntimeError: x", 1),
        ("[1,5]<stderr>:RuntimeError: x", "RuntimeError: x", 5),
        (" 7: RuntimeError: x", "RuntimeError: x", 7),
        ("(WorkerDict pid=12, ip=10.0.0.1) RuntimeError: x", "RuntimeError: x", None),
        ("  0%|          | 0/27 [00:00<?, ?it/s]RuntimeError: x", "RuntimeError: x", None),
    ],
)
def test_prefixes_are_removed(line: str, text: str, rank: int | None) -> None:
    assert without_prefix(line) == (text, rank)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("logs/run_rank3.log", 3),
        ("logs/none/attempt_0/12/stderr.log", 12),
        ("/tmp/nccl_trace_rank_4", 4),
        ("train.log", None),
        ("run-2024/train.log", None),
    ],
)
def test_rank_of_a_file_name(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


def test_times_of_deepspeed_and_torch_are_comparable() -> None:
    assert last_time("[2025-08-01 01:06:56,500] x") == last_time("[E801 01:06:56.500000000 x")
    assert last_time("no time") is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 5000,
        bytes(range(256)) * 4000,
        b"x" * 5_000_000,
        b"\r" * 10_000,
        b"'loss': nan" * 300_000,
        b"\xff\xfe" + "epoch 1\n".encode("utf-16-le"),
        b"\x1b]0;" + b"a" * 100_000,
    ],
    ids=["empty", "zeros", "binary", "long", "returns", "repeated", "utf-16", "title"],
)
def test_unknown_content_is_a_valid_answer(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(data)
    done = CliRunner().invoke(app, ["doctor", "--log", str(path)])
    assert done.exit_code == 0, done.output
    if b"nan" not in data:
        assert "No known failure found." in done.output and "py-spy" in done.output


def test_formats_of_terminals_are_read(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(
        b"a\r\n10%\r20%\r\x1b[31m" + OOM.replace("CUDA out", "CUDA \x1b[1mout").encode()
    )
    [failure] = dsconfig.diagnose(path).failures
    assert (failure.signature, failure.line) == ("gpu-out-of-memory", 2)
    path.write_bytes(b"\xff\xfe" + f"start\n{OOM}".encode("utf-16-le"))
    assert dsconfig.diagnose(path).failures[0].line == 2


def test_line_numbers_beyond_a_block(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    with path.open("w") as file:
        for step in range(60_000):
            file.write(f"{{'loss': 1.5, 'grad_norm': 0.5, 'epoch': {step}}}\n")
        file.write(OOM)
    diagnosis = dsconfig.diagnose(path)
    assert diagnosis.failures[0].line == 60_001
    assert diagnosis.facts["files"][0]["lines"] == 60_001


def test_json_has_the_documented_keys(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("[rank1]: " + OOM)
    done = CliRunner().invoke(app, ["doctor", "--log", str(path), "--output-format", "json"])
    data = json.loads(done.stdout)
    assert set(data) == {"format_version", "failures", "consequences", "facts"}
    keys = {"signature", "file", "line", "rank", "cause", "remedy", "threads"}
    keys |= {"frame", "figures", "confidence"}
    assert set(data["failures"][0]) == keys and data["failures"][0]["rank"] == 1


def test_runtime_selects_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("Current loss scale already at minimum\n")
    remedy = dsconfig.diagnose(path, runtime="transformers").failures[0].remedy
    assert "TrainingArguments" in remedy
    assert "TrainingArguments" not in dsconfig.diagnose(path).failures[0].remedy
    with pytest.raises(ValueError, match="is not one of"):
        dsconfig.diagnose(path, runtime="torch")


def test_facts_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        "- PyTorch version: 2.5.1+cu124 (GPU)\n- Transformers version: 4.46.1\n"
        "[INFO] [config.py:733:__init__] Config mesh_device None world_size = 8\n"
        "DeepSpeed info: version=0.15.4, git-hash=unknown\n"
        "AssertionError: no_sync context manager is incompatible with gradient partitioning\n"
    )
    diagnosis = dsconfig.diagnose(path)
    releases = {"torch": "2.5.1", "transformers": "4.46.1", "deepspeed": "0.15.4"}
    assert diagnosis.facts["releases"] == releases and diagnosis.facts["ranks"] == 8
    # The refusal is of DeepSpeed 0.16 and newer.
    assert [each.signature for each in diagnosis.failures] == ["unrecognized-exception"]


def test_options_of_logs_require_a_log() -> None:
    done = CliRunner().invoke(app, ["doctor", "--output-format", "json"])
    assert "require --log" in str(done.exception)


def test_too_many_files_are_refused_before_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_FILES", 3)
    monkeypatch.setattr(reading, "_read", lambda path: pytest.fail(f"{path} was read"))
    for name in "abcd":
        (tmp_path / f"{name}.log").write_text("step 1")
    with pytest.raises(ValueError, match="more than 3 files"):
        dsconfig.diagnose(tmp_path)


def test_log_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    log = b"[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(log)))
    (failure, *_) = dsconfig.diagnose("-").failures
    assert (failure.file, failure.line) == ("<stdin>", 1)


def diagnosed(text: str, folder: Path) -> dsconfig.Diagnosis:
    path = folder / "train.log"
    path.write_text(text)
    return dsconfig.diagnose(path)


def test_remedy_does_not_suggest_a_higher_stage_than_3(tmp_path: Path) -> None:
    frame = '  File "/env/deepspeed/runtime/zero/{}.py", line 2, in step\n'
    remedies = [
        diagnosed(f"Traceback (most recent call last):\n{frame.format(file)}    x\n{OOM}", tmp_path)
        .failures[0]
        .remedy
        for file in ("stage3", "stage_1_and_2")
    ]
    assert "higher stage" not in remedies[0] and "use more GPUs" in remedies[0]
    assert "higher stage" in remedies[1]
    assert all(f"--log {tmp_path / 'train.log'}`" in remedy for remedy in remedies)


MISMATCH = """\
[rank0]: ValueError: Please correct the following DeepSpeed config values that mismatch \
TrainingArguments values:
[rank0]: - ds train_batch_size=32 vs hf train_batch_size (calculated)=4
[rank0]: - ds bf16.enabled=True vs hf bf16=False
[rank0]: The easiest method is to set these DeepSpeed config values to 'auto'.
"""


def test_values_that_contradict_the_arguments_are_listed(tmp_path: Path) -> None:
    (failure,) = diagnosed(MISMATCH, tmp_path).failures
    assert failure.cause.endswith(
        "ds train_batch_size=32 vs hf train_batch_size (calculated)=4; "
        "ds bf16.enabled=True vs hf bf16=False"
    )


def test_findings_of_dsengine_are_cause_and_fix(tmp_path: Path) -> None:
    findings = dsconfig.validate(
        {"train_batch_size": 8, "zero_optimization": {"overlap_com": True}, "amp": 3},
        runtime="dsengine",
    ).errors
    message = "".join(
        f"[rank1]:   {each.code} {each.pointer}: {each.message}\n"
        + (f"[rank1]:     {each.help}\n" if each.help else "")
        for each in findings
    )
    text = f"[rank1]: x.DeepSpeedConfigError: this config cannot be run:\n{message}[rank1]: next\n"
    (failure,) = diagnosed(text, tmp_path).failures
    assert failure.signature == "config-refused-by-dsengine" and len(findings) > 1
    for each in findings:
        assert f"{each.code} {each.pointer}: {each.message}" in failure.cause
        assert each.help is not None and each.help in failure.remedy
    assert "next" not in failure.cause + failure.remedy


def test_refusal_without_findings_has_a_complete_remedy(tmp_path: Path) -> None:
    (failure,) = diagnosed(
        "E.DeepSpeedConfigError: this config cannot be run:\n", tmp_path
    ).failures
    assert failure.remedy.startswith("`dsconfig validate FILE`")


def test_threads_have_a_heading(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(MISMATCH)
    output = CliRunner().invoke(app, ["doctor", "--log", str(tmp_path / "train.log")]).output
    assert "\n  Threads:\n    https://github.com/" in output


def test_cut_text_ends_with_an_ellipsis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: " + "x" * 99
    (tmp_path / "train.log").write_text(f"[rank0]: {OOM}{report}\n")
    output = CliRunner().invoke(app, ["doctor", "--log", "train.log"]).output
    (row,) = (line for line in output.splitlines() if "elastic.multi" in line)
    assert row.endswith("...")


def test_commands_name_the_config_that_is_passed(tmp_path: Path) -> None:
    log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    (tmp_path / "train.log").write_text(log)
    (tmp_path / "my ds.json").write_text('{"train_batch_size": 8}')
    found = dsconfig.diagnose(*[tmp_path / "train.log"]).for_config("my ds.json").failures
    assert found and all("FILE" not in failure.remedy for failure in found)
    arguments = ["doctor", str(tmp_path / "my ds.json"), "--log", str(tmp_path / "train.log")]
    output = " ".join(CliRunner().invoke(app, arguments).output.split())
    assert "dsconfig estimate '" in output
    assert " FILE" not in output


def test_word_of_a_log_is_not_the_name_of_the_config(tmp_path: Path) -> None:
    lines = "ValueError: this config cannot be run:\n  DSC404 x\n    remove FILE\n"
    (tmp_path / "train.log").write_text(lines)
    diagnosis = dsconfig.diagnose(tmp_path / "train.log")
    (failure,) = diagnosis.failures
    assert failure.remedy.startswith("remove FILE. `dsconfig validate FILE`")
    (named,) = diagnosis.for_config("ds.json").failures
    assert named.remedy.startswith("remove FILE. `dsconfig validate ds.json`")


def test_long_line_ends_with_an_ellipsis(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(f"ValueError: {'long ' * 300}\n")
    (failure,) = dsconfig.diagnose(*[tmp_path / "train.log"]).failures
    assert len(failure.text) == 300
    assert failure.text.endswith("...")
    assert failure.cause.endswith("...")


def test_growing_memory_is_distinguished_from_needed_memory(tmp_path: Path) -> None:
    frame = '  File "/job/train.py", line 9, in forward\n    x\n'
    oom = f"Traceback (most recent call last):\n{frame}{OOM}"

    def first(sizes: Sequence[float], form: str) -> str:
        lines = "".join(f"{form.format(size)}\n{{'loss': 1.5}}\n" for size in sizes)
        return diagnosed(lines + oom, tmp_path).failures[0].signature

    rising = [10.0, 12.5, 15.0, 17.5, 20.0, 22.5]
    usage = (
        "[INFO] [utils.py:782:see_memory_usage] after step\n[INFO] MA {0:.2f} GB  Max_MA 30 GB  "
    )
    forms = ("memory allocated: {0} GB", "| N/A  61C  P0 |  {0:.0f}000MiB / 81559MiB | 9% |")
    for form in (*forms, usage + "CA 40 GB  Max_CA 40 GB"):
        assert first(rising, form) == "gpu-memory-grows"
        for steady in ([0, 10, 20, 20, 20, 20], rising[:5], rising[::-1], [10, 20] * 5, [20.0] * 9):
            assert first(steady, form) == "gpu-out-of-memory-forward"
    assert first(rising, "max allocated: {0} GB") == "gpu-out-of-memory-forward"


@pytest.mark.parametrize(
    ("bar", "name"),
    [
        ("  0%|          | 0/1540 [00:00<?, ?it/s]", "forward"),
        (" 84%|####5 | 4200/5000 [3:10:01<36:12,  2.71s/it]", "later"),
        ("Map: 84%|####5 | 4200/5000 [00:01<00:01, 2710.0it/s]", "forward"),
        ("100%|######| 5000/5000 [00:01<00:00, 2710.0it/s]", "forward"),
    ],
)
def test_step_of_a_lack_of_memory_decides(bar: str, name: str, tmp_path: Path) -> None:
    frame = (
        'Traceback (most recent call last):\n  File "/job/train.py", line 9, in forward\n    x\n'
    )
    (failure,) = diagnosed(f"{bar}{frame}{OOM}", tmp_path).failures
    assert failure.signature == f"gpu-out-of-memory-{name}"
    assert name == "forward" or "after 4,200 steps" in failure.cause


def test_failure_after_a_restart_is_another_failure(tmp_path: Path) -> None:
    steps = "{'loss': 1.5, 'epoch': 0.1}\n" * 5
    log = f"{OOM}{steps}RuntimeError: CUDA error: an illegal memory access was encountered\n"
    end = "E1112 10:11:14 api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 4132) of binary: x\n"
    names = [each.signature for each in diagnosed(log + end, tmp_path).failures]
    assert names == ["gpu-out-of-memory", "illegal-memory-access"]
    names = [each.signature for each in diagnosed(log.replace(steps, "") + end, tmp_path).failures]
    assert names == ["gpu-out-of-memory"]


def test_unknown_failure_states_the_releases_with_its_line(tmp_path: Path) -> None:
    source = 'assert sub_module.training, "backward pass is invalid for module in evaluation mode"'
    place = "site-packages/deepspeed/x.py"
    for function, cause, remedy in (
        (
            "pre_sub_module_backward_function",
            "contains that line since 0.9.0 up to 0.15.3",
            "newer than 0.15.3",
        ),
        ("another", "", ""),
    ):
        frame = f'  File "/{place}", line 9, in {function}\n    {source}\n'
        log = f"Traceback (most recent call last):\n{frame}AssertionError: x\n"
        (failure,) = diagnosed(log, tmp_path).failures
        assert failure.signature == "unrecognized-exception"
        assert cause in failure.cause and remedy in failure.remedy
        assert ("contains that line" in failure.cause) == bool(cause)


def test_facts_are_redacted(tmp_path: Path) -> None:
    (tmp_path / "rank0.txt").write_text(
        'Process 7: python /home/alice/train.py\nThread 7 (idle): "MainThread"\n'
        "    step (/home/alice/job/train.py:16)\n"
    )
    diagnosis = dsconfig.diagnose(tmp_path / "rank0.txt")
    assert "alice" in str(diagnosis.data)
    assert "alice" not in str(diagnosis.redacted().data)
    assert str(tmp_path) not in str(diagnosis.redacted().data)


def test_value_that_the_log_lacks_is_left_out(tmp_path: Path) -> None:
    (failure,) = diagnosed("torch.OutOfMemoryError: CUDA out of mem", tmp_path).failures
    assert failure.cause == "out of GPU memory"
    (failure,) = diagnosed(OOM, tmp_path).failures
    assert failure.cause == "out of GPU memory (2.15 GB (2.00 GiB) requested)"
