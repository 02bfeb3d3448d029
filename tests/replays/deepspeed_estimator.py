"""DeepSpeed's own estimator functions: equal integers; printed tables equal to the letter."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dsconfig.cost import compat
from replays import Case


def replay(path: Path) -> Iterator[Case]:
    oracle = json.loads(path.read_text())
    for table in ("rows", "extra_rows", "docs_example_rows"):
        for index, row in enumerate(oracle.get(table, [])):
            yield _numbers(f"{table}[{index}]", row)
    for index, row in enumerate(oracle.get("printer_text", [])):
        got = _text(row)
        yield Case(f"printer_text[{index}]", row["stdout"], got, got == row["stdout"])


def _numbers(name: str, row: Mapping[str, Any]) -> Case:
    got = _states(row)
    found = {"cpu_bytes": got.cpu_bytes, "gpu_bytes": got.gpu_bytes}
    if "largest_layer_bytes" in row:
        found["largest_layer_bytes"] = got.largest_layer_bytes or 0
    expected = {key: row[key] for key in found}
    return Case(name, expected, found, expected == found)


def _states(row: Mapping[str, Any]) -> compat.States:
    shared = {
        "total_params": float(row["params"]),
        "num_gpus_per_node": row["gpus_per_node"],
        "num_nodes": row["nodes"],
        "cpu_offload": row["cpu_offload"],
        "additional_buffer_factor": row.get("additional_buffer_factor", 1.5),
    }
    if row["stage"] == 2:
        return compat.zero2_model_states(**shared)
    return compat.zero3_model_states(
        **shared,
        largest_layer_params=row["largest_layer_params"],
        cpu_offload_params=row["cpu_offload_params"],
        zero_init=row["zero_init"],
    )


def _text(row: Mapping[str, Any]) -> str:
    hardware = (row["num_gpus_per_node"], row["num_nodes"])
    if row["call"].startswith("zero2"):
        return compat.zero2_table(row["total_params"], *hardware)
    return compat.zero3_table(row["total_params"], row["largest_layer_params"], *hardware)
