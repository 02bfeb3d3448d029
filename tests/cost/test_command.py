"""``dsconfig estimate`` and ``dsconfig tune`` on the command line."""

import json
from pathlib import Path

import pytest

import command_line
from command_line import Done

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
    "zero_optimization": {"stage": 2},
}


def run(*arguments: str) -> Done:
    return command_line.run(*arguments, columns=160)


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


def test_table_shows_both_bucket_numbers() -> None:
    done = run("estimate", "--params", "13e9", "--gpus", "8")
    assert done.returncode == 0
    shown = " ".join(done.stdout.split())
    assert "buckets allocated: 2.77 GiB at stages 1 and 2, 3.77 GiB at stage 3" in shown
    assert "; 4.5x rule: at most 8.38 GiB" in shown
    assert "0.3.x" not in done.stdout, "explain shows the key's history"


def test_rule_below_the_allocated_buckets_is_not_shown(config: str) -> None:
    small = ("--set", "zero_optimization.reduce_bucket_size=5000000")
    smaller = ("--set", "zero_optimization.allgather_bucket_size=5000000")
    shown = run("estimate", config, "--params", "13e9", "--gpus", "8", *small, *smaller).stdout
    assert "Communication buckets allocated: " in shown and "4.5x" not in shown


@pytest.mark.parametrize("count", ["13e9", "13B", "1.3e10", "13000M"])
def test_count_formats_are_accepted(count: str) -> None:
    done = run("estimate", "--params", count, "--gpus", "8", "--output-format", "json")
    assert json.loads(done.stdout)["inputs"]["parameters"] == 13_000_000_000


def test_json_has_the_documented_shape() -> None:
    done = run("estimate", "--params", "7e9", "--gpus", "8", "--output-format", "json")
    data = json.loads(done.stdout)
    assert data["format_version"] == "1.0"
    option = data["options"][0]
    assert set(option) >= {
        "stage",
        "offload_optimizer",
        "offload_param",
        "device",
        "host",
        "nvme",
        "bucket_rule_bytes",
        "bucket_allocated_bytes",
        "fits",
    }
    assert set(option["device"]["components"][0]) >= {"name", "bytes", "pointer", "phases"}
    assert {option["stage"] for option in data["options"]} == {0, 1, 2, 3}


def test_detail_names_keys_headroom_and_remedies(config: str) -> None:
    done = run(
        "estimate",
        config,
        "--model",
        "llama-2-7b",
        "--gpus",
        "8",
        "--device",
        "a100-40gb",
        "--seq-len",
        "4096",
        "--runtime",
        "deepspeed",
    )
    assert done.returncode == 0
    assert "zero_optimization.reduce_bucket_size" in done.stdout
    assert "over: out of memory" in done.stdout
    heading, rest = done.stdout.split("\n\n")[:2]
    verdict, host, remedies = rest.splitlines()[:3]
    assert "target: DeepSpeed 0.19.8" in heading
    assert host.startswith("Host memory: ")
    assert verdict.startswith("Does not fit: ") and "GiB over on each A100" in verdict
    assert remedies == "To fit:"


def test_fail_if_oom_sets_the_exit_code(config: str) -> None:
    flags = ["--model", "llama-2-13b", "--gpus", "8", "--seq-len", "4096", "--fail-if-oom"]
    assert run("estimate", config, *flags, "--device", "a100-40gb").returncode == 1
    small = ["--set", "train_micro_batch_size_per_gpu=1", "--recompute", "full"]
    assert run("estimate", config, *flags, *small, "--device", "h200").returncode == 0


def test_host_memory_shortfall_is_reported_without_device(config: str) -> None:
    """In depth, in the table over all choices, and of a plan."""
    flags = ["--model", "llama-3-8b", "--gpus", "8", "--seq-len", "2048"]
    flags += ["--with", "transformers==4.57.1"]  # loads fp32
    memory = ["--host-memory", "64GiB"]
    offloaded = ["--set", 'zero_optimization.offload_optimizer={"device": "cpu"}']
    stage2 = ["--set", "zero_optimization.stage=2", "--runtime", "deepspeed"]
    verdict = run("estimate", config, *flags, *memory, *stage2).stdout.split("\n\n")[1]
    assert "Does not fit: needs 239 GiB of host memory per node" in verdict
    assert "per GPU" in verdict and "59 available" in " ".join(verdict.split())
    data = json.loads(
        run("estimate", config, *flags, *memory, *stage2, "--output-format", "json").stdout
    )
    assert data["options"][0]["lacks"].startswith("needs 239 GiB of host memory per node")
    planned = run("plan", config, *flags, *memory, *stage2)
    assert "59 available" in " ".join(planned.stdout.split())
    smallest = run("estimate", *flags, *memory).stdout.split("\n\n")[1]
    assert smallest.startswith("Smallest footprint: stage 3 needs ")
    # The rule on offloaded states reports an error before any estimate.
    assert run("estimate", config, *flags, *memory, *offloaded).returncode == 1


def test_compat_prints_deepspeeds_own_tables() -> None:
    done = run("estimate", "--params", "7e9", "--gpus", "8", "--compat", "deepspeed")
    assert "  312.92GB |  13.04GB | offload_optimizer=OffloadDeviceEnum.cpu" in done.stdout


def test_config_with_errors_gives_findings_and_no_number(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text('{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 7}}')
    done = run("estimate", str(path), "--params", "7e9", "--gpus", "8")
    assert done.returncode == 1
    assert "DSC" in done.stdout and "GiB" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--gpus", "8"], "--model"),
        (["--params", "7e9"], "--gpus"),
        (["--params", "7e9", "--gpus", "0"], "--gpus"),
        (["--params", "7e9", "--gpus", "-3"], "--gpus"),
        (["--params", "7e9", "--gpus", "1.5"], "--gpus"),
        (["--params", "0", "--gpus", "8"], "--params"),
        (["--params", "1e30", "--gpus", "8"], "--params"),
        (["--params", "many", "--gpus", "8"], "--params"),
        (["--model", "llama-2-31b", "--gpus", "8"], "llama-2-13b"),
        (["--params", "7e9", "--gpus", "8", "--device", "a1000"], "a100"),
        (["--params", "7e9", "--gpus", "8", "--compat", "megatron"], "--compat"),
        (["--params", "7e9", "--gpus", "8", "--plot", "x.gif"], ".png"),
        (["--params", "7e9", "--gpus", "8", "--fit"], "--device"),
        (["--params", "7e9", "--gpus", "8", "--measured", "60GiB"], "FILE"),
        (["--params", "7e9", "--gpus", "8", "--trainable", "8e9"], "--trainable"),
        (["missing.json", "--params", "7e9", "--gpus", "8"], "missing.json"),
    ],
)
def test_bad_input_exits_2_with_one_sentence(arguments: list[str], expected: str) -> None:
    done = run("estimate", *arguments)
    assert done.returncode == 2
    assert expected.lower() in done.stderr.lower()
    assert "Traceback" not in done.stderr and not done.stdout


def test_search_writes_a_fitting_config(tmp_path: Path) -> None:
    out = tmp_path / "won.json"
    facts = ["--model", "llama-2-7b", "--gpus", "8", "--device", "a100-80gb", "--seq-len", "2048"]
    done = run("tune", *facts, "-o", str(out))
    assert done.returncode == 0 and "fastest" in done.stdout
    again = run("estimate", str(out), *facts, "--fail-if-oom")
    assert again.returncode == 0, again.stderr


def test_plots_and_page_are_self_contained(tmp_path: Path) -> None:
    chart, page = tmp_path / "out.svg", tmp_path / "out.html"
    done = run(
        "estimate", "--params", "7e9", "--gpus", "8", "--plot", str(chart), "--html", str(page)
    )
    assert done.returncode == 0
    assert "<svg" in chart.read_text()
    text = page.read_text()
    assert "http://" not in text and "https://" not in text
    assert "<script src" not in text and "<link" not in text
    assert "stage 3" in text


def test_cpu_has_no_context_or_communicators(config: str) -> None:
    flags = ("--model", "gpt2", "--gpus", "2", "--device", "cpu")
    done = run("estimate", config, *flags, "--output-format", "json")
    device = json.loads(done.stdout)["options"][0]["device"]
    assert device["visible_bytes"] == device["reserved_bytes"] == device["peak_bytes"]
    assert "nvidia-smi" not in run("estimate", config, *flags).stdout


def test_largest_micro_batch_requires_sequence_length(config: str) -> None:
    flags = ("--fit", "--params", "1e9", "--gpus", "2", "--device", "h100")
    done = run("estimate", config, *flags)
    assert "largest micro batch" not in done.stdout
    assert "requires --seq-len" in done.stderr
    assert "largest micro batch" in run("estimate", config, *flags, "--seq-len", "512").stdout


def test_compat_figures_are_available_as_json() -> None:
    flags = ("--params", "13e9", "--gpus", "8", "--compat", "deepspeed", "--output-format", "json")
    options = json.loads(run("estimate", *flags).stdout)["options"]
    assert [option["stage"] for option in options] == [2] * 2 + [3] * 6
    assert options[1]["gpu_bytes"] == 2 * 13_000_000_000 + 18 * 13_000_000_000 // 8


def test_calibrated_components_add_up(config: str) -> None:
    flags = ("--model", "llama-2-7b", "--gpus", "8", "--seq-len", "4096", "--measured", "60GiB")
    device_memory = ("--device-memory", "59GiB")
    done = run("estimate", config, *flags, *device_memory, "--output-format", "json")
    data = json.loads(done.stdout)
    assert data["unsaid"] == [], "a measured run leaves no assumptions"
    device = data["options"][0]["device"]
    assert device["visible_bytes"] == pytest.approx(60 * 2**30, rel=1e-6)
    for phase, total in device["phases"].items():
        assert total == sum(p["bytes"] for p in device["components"] if phase in p["phases"])
    assert device["peak_bytes"] == device["phases"][device["peak_phase"]]


def test_option_exceeding_host_memory_does_not_fit(config: str) -> None:
    flags = ("--gpus", "8", "--device", "a100-80gb", "--host-memory", "200GB")
    done = run("estimate", "--params", "13e9", *flags)
    assert "no, needs 387 GiB of host memory per node" in done.stdout
    loading_fp32 = ("--with", "transformers==4.57.1")
    deep = ("estimate", config, "--model", "llama-2-13b", *flags, *loading_fp32, "--fail-if-oom")
    done = run(*deep)
    assert done.returncode == 1
    assert "Does not fit: needs 38" in done.stdout and "To fit without activations:" in done.stdout


def test_fail_if_oom_requires_a_device(config: str) -> None:
    done = run("estimate", config, "--model", "gpt2", "--gpus", "2", "--fail-if-oom")
    assert done.returncode == 2 and "--device" in done.stderr


def test_error_is_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"zero_optimization": {')
    done = run("estimate", str(path), "--model", "gpt2", "--gpus", "2")
    assert done.returncode == 1 and done.stdout.count("error[") == 1


@pytest.mark.parametrize(
    ("count", "formatted"), [("13e12", "13e12"), ("700M", "700e6"), ("13B", "13e9")]
)
def test_counts_use_thousands_separators(count: str, formatted: str) -> None:
    assert (
        f"{formatted} parameters on 8 GPUs"
        in run("estimate", "--params", count, "--gpus", "8").stdout
    )


@pytest.mark.parametrize("command", ["resolve", "estimate", "plan"])
def test_flag_overridden_by_file_is_named(command: str, config: str) -> None:
    flags = ("--model", "gpt2", "--gpus", "2", "--micro-batch", "8")
    done = run(command, config, *flags)
    assert done.returncode == 0
    assert "--micro-batch 8 has no effect: train_micro_batch_size_per_gpu is 4" in done.stderr


@pytest.mark.parametrize(
    ("wanted", "change"),
    [("512", "--accumulation 8"), ("100", "--micro-batch and --accumulation")],
)
def test_global_batch_that_the_trainer_computes_is_named(
    wanted: str, change: str, tmp_path: Path
) -> None:
    path = tmp_path / "ds.json"
    auto = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu"), "auto")
    path.write_text(json.dumps({**auto, "zero_optimization": {"stage": 2}}))
    flags = ("--model", "gpt2", "--gpus", "8", "--micro-batch", "8", "--global-batch", wanted)
    done = run("estimate", str(path), *flags, "--seq-len", "128")
    assert f"--global-batch {wanted} has no effect: transformers computes" in done.stderr
    assert f"(8 x 1 x 8 = 64); specify {change}, or --training-args" in done.stderr
    assert "--set train_batch_size" not in done.stderr


def test_fit_answers_include_configs() -> None:
    flags = ("--fit", "--params", "13e9", "--gpus", "8", "--device", "h100")
    done = run("estimate", *flags, "--output-format", "json")
    limits = json.loads(done.stdout)["limits"]
    assert all(limit["config"]["zero_optimization"]["stage"] in range(4) for limit in limits)
    assert "specify --host-memory" in run("estimate", *flags).stderr


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_bar_and_size_stay_on_one_line(columns: int) -> None:
    done = command_line.run("estimate", "--params", "13e9", "--gpus", "8", columns=columns)
    bars = done.stdout.partition("\nRequired per GPU\n")[2].partition("\n\n")[0].splitlines()
    assert len(bars) == 10 and all(line.endswith(" GiB") for line in bars), "and an axis"


def test_recomputation_set_only_in_file_is_reported(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({**CONFIG, "activation_checkpointing": {}}))
    facts = ["--model", "llama-2-7b", "--gpus", "8", "--device", "h100-80gb", "--seq-len", "512"]
    note = "activation_checkpointing alone has no effect"

    def peak(*flags: str) -> tuple[int, bool]:
        is_reported = note in run("estimate", str(path), *facts, *flags).stdout
        shown = run("estimate", str(path), *facts, *flags, "--output-format", "json").stdout
        return json.loads(shown)["options"][0]["device"]["peak_bytes"], is_reported

    ignored, applied = peak("--runtime", "deepspeed"), peak("--runtime", "dsengine")
    recomputed = peak("--runtime", "deepspeed", "--recompute", "full")
    disabled = peak("--runtime", "dsengine", "--recompute", "none")
    assert ignored[1] and not applied[1] and not recomputed[1]
    assert recomputed[0] < ignored[0] and applied[0] < disabled[0]


def test_releases_change_the_estimate(config: str) -> None:
    flags = ["--model", "llama-2-7b", "--gpus", "8", "--seq-len", "2048", "--runtime", "deepspeed"]
    as_json = ["--output-format", "json", "--with"]
    old, new, first = (
        json.loads(run("estimate", config, *flags, *as_json, release).stdout)["options"][0][
            "device"
        ]
        for release in ("transformers==4.45.2", "transformers==4.46.0", "torch==1.12.1")
    )
    assert old["peak_bytes"] - new["peak_bytes"] == 2 * 4 * 2048 * 32_000, "fp32 logits"
    assert first["needed_bytes"] - new["needed_bytes"] == 666_632_192 - 287_047_680
