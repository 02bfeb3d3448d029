"""The memory oracles, with the required agreement for each."""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

import replays.activation_saved_bytes
import replays.deepspeed_estimator
import replays.deepspeed_live_bytes
import replays.measured_peaks
from dsconfig.cost.deepspeed.releases import RUN
from replays import Case

ORACLES = Path(__file__).parents[1] / "oracle"


def wrong(cases: Iterator[Case]) -> list[Case]:
    return [case for case in cases if not case.agrees]


def test_deepspeeds_own_estimator_is_reproduced_exactly() -> None:
    assert not wrong(replays.deepspeed_estimator.replay(ORACLES / "deepspeed_estimator.json"))


def live_errors(path: Path) -> list[float]:
    errors: list[float] = []
    for run in json.loads(path.read_text())["runs"]:
        device = replays.deepspeed_live_bytes.predicted(run)
        for field, (view, phase) in replays.deepspeed_live_bytes.PHASES.items():
            errors.append(abs(getattr(device, view)[phase] / run[field] - 1))
    return errors


def test_live_bytes_of_recorded_runs_are_within_two_percent() -> None:
    path = ORACLES / "deepspeed_live_bytes.json"
    assert not wrong(replays.deepspeed_live_bytes.replay(path))
    assert median(live_errors(path)) <= 0.007


def test_live_bytes_of_further_recordings_are_within_two_percent() -> None:
    """Accumulation, fp32, prefetch, reuse and persistence beyond the recorded runs."""
    path = ORACLES / "deepspeed_live_bytes_more.json"
    assert not wrong(replays.deepspeed_live_bytes.replay(path))
    assert median(live_errors(path)) <= 0.007


def test_live_bytes_of_earlier_releases_are_within_two_percent() -> None:
    path = ORACLES / "deepspeed_live_bytes_releases.json"
    assert not wrong(replays.deepspeed_live_bytes.replay(path))
    assert {run["deepspeed"] for run in json.loads(path.read_text())["runs"]} == set(map(str, RUN))


def test_live_bytes_of_device_and_host_with_offload_or_hpz() -> None:
    """Compare offloading and hpZ runs; for NVMe, only the host memory after backward."""
    for run in json.loads((ORACLES / "deepspeed_live_bytes_offload.json").read_text())["runs"]:
        option = replays.deepspeed_live_bytes.option_of(run)
        sizes = {part.name: part.bytes // 2 for part in option.host.components}
        host = option.host.bytes // 2
        at_step = host + sizes.get("optimizer temporaries", 0)
        device = option.device
        fields = {
            "forward_peak_bytes": device.phase_bytes["forward"] + host,
            "backward_peak_bytes": device.phase_bytes["backward"] + host,
            "after_backward_bytes": device.end_bytes["backward"] + host,
            "step_peak_bytes": device.phase_bytes["step"] + at_step,
            "after_step_bytes": device.end_bytes["step"] + host,
        }
        if "nvme" in run["name"]:
            fields = {name: fields[name] for name in ("after_backward_bytes",)}
        for field, expected in fields.items():
            assert expected == pytest.approx(run[field], rel=0.02), (run["name"], field)


def test_offloaded_gradient_equals_the_recording() -> None:
    """The peak of backward above its end, without other contributions."""
    for run in json.loads((ORACLES / "deepspeed_live_bytes_offload.json").read_text())["runs"]:
        if run["name"] in ("z1_off", "z2_off", "z2_off_gas3", "z3_off", "z3_off_params"):
            device = replays.deepspeed_live_bytes.predicted(run)
            above = device.phase_bytes["backward"] - device.end_bytes["backward"]
            recorded = run["backward_peak_bytes"] - run["after_backward_bytes"]
            assert above == pytest.approx(recorded, rel=0.04), run["name"]


def test_activations_kept_per_layer() -> None:
    assert not wrong(replays.activation_saved_bytes.replay(ORACLES / "activation_saved_bytes.json"))


def test_published_peaks() -> None:
    """Every row of the paper's table, and every usable measurement."""
    path = ORACLES / "measured_peaks.json"
    rows = json.loads(path.read_text())["rows"]
    assert not wrong(replays.measured_peaks.replay(path))
    errors = [
        abs(replays.measured_peaks.predicted(row) / replays.measured_peaks.measured(row) - 1)
        for row in rows
        if row["kind"] == "measurement" and row["usable"]
    ]
    assert median(errors) <= 0.10


def test_page_compares_every_published_figure() -> None:
    page = (Path(__file__).parents[2] / "docs" / "internals" / "memory-validation.md").read_text()
    for row in json.loads((ORACLES / "measured_peaks.json").read_text())["rows"]:
        if row["kind"] == "measurement" and row["usable"]:
            got = replays.measured_peaks.predicted(row)
            error = got / replays.measured_peaks.measured(row) - 1
            assert f"{got / 2**30:.1f} GiB | {error:+.1%} |" in page
