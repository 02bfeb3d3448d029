"""Latency of ``dsconfig lsp``: from a change of a file to its findings, and of requests.

Prints a table with the median and the 95th percentile in milliseconds, as a client over stdin and
stdout sees them: the debounce of the server, checking, and both conversions are included.
"""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lsprotocol import types
from pygls.lsp.client import LanguageClient

ROUNDS, WARM_UP = 200, 20
NAME = "ds_config.json"


def of_200_lines() -> str:
    """Return a valid config of 200 lines: every block of a usual one, and groups of monitors."""
    config: dict[str, Any] = {
        "train_batch_size": "auto",
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95]}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}},
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "reduce_bucket_size": "auto",
        },
        "wandb": {"enabled": False},
    }
    lines = json.dumps(config, indent=2).splitlines()
    comments = [f"  // line {number}" for number in range(200 - len(lines))]
    return "\n".join([lines[0], *comments, *lines[1:]]) + "\n"


def of_unknown_keys() -> str:
    """Return a config in which 190 of 200 lines have an unknown key: the slowest kind."""
    lines = [f'  "gradient_cliping_{number}": 1,' for number in range(190)]
    return "\n".join(["{", *lines, '  "train_batch_size": 8', "}"]) + "\n"


async def measure(client: LanguageClient, uri: str, text: str) -> dict[str, list[float]]:
    """Return the milliseconds of each round by what was done."""
    published: asyncio.Queue[types.PublishDiagnosticsParams] = asyncio.Queue()

    @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    def publish(params: types.PublishDiagnosticsParams) -> None:
        published.put_nowait(params)

    item = types.TextDocumentItem(uri, "json", 0, text)
    client.text_document_did_open(types.DidOpenTextDocumentParams(item))
    await published.get()
    document, place = types.TextDocumentIdentifier(uri), types.Position(190, 5)
    requests: dict[str, Callable[[], Awaitable[object]]] = {
        "hover": lambda: client.text_document_hover_async(types.HoverParams(document, place)),
        "completion": lambda: client.text_document_completion_async(
            types.CompletionParams(document, place)
        ),
    }
    times: dict[str, list[float]] = {
        "findings after a change": [],
        **{name: [] for name in requests},
    }
    for version in range(1, ROUNDS + WARM_UP):
        change = types.TextDocumentContentChangeWholeDocument(text + " " * version)
        params = types.DidChangeTextDocumentParams(
            types.VersionedTextDocumentIdentifier(version, uri), [change]
        )
        started = time.perf_counter()
        client.text_document_did_change(params)
        while (await published.get()).version != version:
            pass
        times["findings after a change"].append((time.perf_counter() - started) * 1e3)
        for name, request in requests.items():
            started = time.perf_counter()
            await request()
            times[name].append((time.perf_counter() - started) * 1e3)
    return {name: found[WARM_UP:] for name, found in times.items()}


async def main(folder: Path) -> None:
    print("| config of 200 lines | what | median ms | p95 ms |\n|---|---|---|---|")
    for label, text in (("valid", of_200_lines()), ("190 unknown keys", of_unknown_keys())):
        client = LanguageClient("benchmark", "1")
        await client.start_io(sys.executable, "-m", "dsconfig", "lsp")
        await client.initialize_async(types.InitializeParams(types.ClientCapabilities()))
        client.initialized(types.InitializedParams())
        times = await measure(client, (folder / NAME).as_uri(), text)
        await client.shutdown_async(None)
        client.exit(None)
        await client.stop()
        for what, found in times.items():
            p95 = statistics.quantiles(found, n=20)[-1]
            print(f"| {label} | {what} | {statistics.median(found):.1f} | {p95:.1f} |")


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        asyncio.run(main(Path(temporary)))
