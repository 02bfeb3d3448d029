"""An editor: starts ``dsconfig lsp``, opens files, types, and waits for findings."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from lsprotocol import types
from pygls.lsp.client import LanguageClient

from suite.limits import scaled

T = TypeVar("T")
WATCHING = types.ClientCapabilities(
    workspace=types.WorkspaceClientCapabilities(
        did_change_watched_files=types.DidChangeWatchedFilesClientCapabilities(
            dynamic_registration=True
        )
    ),
    window=types.WindowClientCapabilities(
        show_document=types.ShowDocumentClientCapabilities(support=True)
    ),
)
"""Reports changed files and can show a document, like VS Code."""
BYTES = types.ClientCapabilities(
    general=types.GeneralClientCapabilities(position_encodings=[types.PositionEncodingKind.Utf8])
)
"""Counts columns in UTF-8 bytes."""
WAIT = 60
"""Seconds after which a server that does not answer has failed."""


class Editor:
    """A client with one folder open."""

    def __init__(self, client: LanguageClient, folder: Path) -> None:
        self.client = client
        self.folder = folder
        self.published: asyncio.Queue[types.PublishDiagnosticsParams] = asyncio.Queue()
        self.shown: list[str] = []
        self.registered: list[str] = []
        self._versions: dict[str, int] = {}

    def uri(self, name: str) -> str:
        return (self.folder / name).as_uri()

    async def open(self, name: str, text: str) -> list[types.Diagnostic]:
        """Open a file with this text, which need not be saved; return its findings."""
        language = {".py": "python", ".yaml": "yaml"}.get(Path(name).suffix, "json")
        self._versions[name] = 1
        item = types.TextDocumentItem(self.uri(name), language, 1, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))
        return await self.findings(name)

    def type(self, name: str, text: str) -> None:
        """Replace the text of an open file."""
        self._versions[name] += 1
        self.client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(self._versions[name], self.uri(name)),
                [types.TextDocumentContentChangeWholeDocument(text)],
            )
        )

    async def change(self, name: str, text: str) -> list[types.Diagnostic]:
        self.type(name, text)
        return await self.findings(name)

    async def findings(self, name: str) -> list[types.Diagnostic]:
        """Return the findings of the newest version of a file."""
        while True:
            found = await _answered(self.published.get())
            if found.uri == self.uri(name) and found.version in (None, self._versions[name]):
                return list(found.diagnostics)

    def place(self, name: str, line: int, column: int) -> dict[str, Any]:
        return {
            "text_document": types.TextDocumentIdentifier(self.uri(name)),
            "position": types.Position(line, column),
        }

    async def hover(self, name: str, line: int, column: int) -> str:
        """Return the Markdown at a 0-based position; empty if there is none."""
        params = types.HoverParams(**self.place(name, line, column))
        found = await _answered(self.client.text_document_hover_async(params))
        assert found is None or isinstance(found.contents, types.MarkupContent)
        return "" if found is None else found.contents.value  # type: ignore[union-attr]

    async def complete(self, name: str, line: int, column: int) -> list[types.CompletionItem]:
        params = types.CompletionParams(**self.place(name, line, column))
        found = await _answered(self.client.text_document_completion_async(params))
        assert isinstance(found, list)
        return found

    async def actions(
        self, name: str, line: int, column: int = 0, only: Sequence[str] | None = None
    ) -> Sequence[types.CodeAction | types.Command]:
        here = types.Position(line, column)
        params = types.CodeActionParams(
            types.TextDocumentIdentifier(self.uri(name)),
            types.Range(here, here),
            types.CodeActionContext([], only=None if only is None else list(only)),
        )
        found = await _answered(self.client.text_document_code_action_async(params))
        return found or []


async def _answered(request: Awaitable[T]) -> T:
    """Return the answer of the server; raises TimeoutError if there is none."""
    return await asyncio.wait_for(request, scaled(WAIT))


@asynccontextmanager
async def _session(folder: Path, capabilities: types.ClientCapabilities) -> AsyncIterator[Editor]:
    client = LanguageClient("editor", "1")
    editor = Editor(client, folder)

    @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    def publish(params: types.PublishDiagnosticsParams) -> None:
        editor.published.put_nowait(params)

    @client.feature(types.WINDOW_SHOW_DOCUMENT)
    def show(params: types.ShowDocumentParams) -> types.ShowDocumentResult:
        editor.shown.append(params.uri)
        return types.ShowDocumentResult(success=True)

    @client.feature(types.CLIENT_REGISTER_CAPABILITY)
    def register(params: types.RegistrationParams) -> None:
        editor.registered += [each.method for each in params.registrations]

    await client.start_io(sys.executable, "-m", "dsconfig", "lsp", "--stdio")
    folders = [types.WorkspaceFolder(folder.as_uri(), folder.name)]
    await client.initialize_async(types.InitializeParams(capabilities, workspace_folders=folders))
    client.initialized(types.InitializedParams())
    try:
        yield editor
    finally:
        await _answered(client.shutdown_async(None))
        client.exit(None)
        await client.stop()


def run(
    folder: Path,
    work: Callable[[Editor], Coroutine[Any, Any, T]],
    capabilities: types.ClientCapabilities = WATCHING,
) -> T:
    """Run ``work`` with an editor that has the given capabilities."""

    async def session() -> T:
        async with _session(folder, capabilities) as editor:
            return await work(editor)

    return asyncio.run(session())
