"""Every thread that uses the GPU sets its device; other threads are listed.

A thread starts on the first GPU, where it would create a second context for each rank.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import dsengine

HOST_ONLY = {
    "checkpoints/manifest.py": "reads files",
    "communication/exit_watch.py": "reads stacks and prints",
    "communication/peers/links.py": "sends messages over sockets",
    "communication/peers/stragglers.py": "reads stacks and sends messages",
    "communication/peers/watch.py": "starts an abort and ends the process",
    "communication/peers/abort.py": "aborts communicators, which know their device",
    "tiers/files.py": "reads and writes files",
    "torchrun_launcher.py": "watches processes",
}
SETS_DEVICE = "communication/devices.py"


def files_that_start_threads() -> Iterator[str]:
    root = Path(dsengine.__file__).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else None
                called = node.func.id if isinstance(node.func, ast.Name) else called
                if called in ("Thread", "ThreadPoolExecutor"):
                    yield path.relative_to(root).as_posix()


def test_threads_set_their_device_or_stay_on_the_host() -> None:
    assert {*files_that_start_threads()} == {*HOST_ONLY, SETS_DEVICE}
