"""The language server: findings while typing, hover, completion and code actions over stdio.

[Note: debounce] A change is checked ``DELAY`` seconds later, unless another change of the same file
arrives first. The whole text is sent with each change: configs are small, and a server that applies
partial changes must split lines exactly as its client does.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from dsconfig import __version__
from dsconfig.editor import actions, completions, hover, open_file
from dsconfig.editor.actions import ActionKind
from dsconfig.editor.open_file import OpenFile
from dsconfig.editor.protocol import ACTION_KINDS, EXPLAIN, SOURCE, EditorText
from dsconfig.project.errors import UsageError
from dsconfig.project.neighbours import Neighbours
from dsconfig.report import rule_pages

DELAY = 0.01
SETTINGS = "**/pyproject.toml"
WARM_UP = '{"train_batch_size": "auto", "zero_optimization": {"stage": 3}, "unknown": 1}'
"""Checked at the start, so that the first file does not wait for the tables to load."""


@dataclass
class _Opened:
    """An open file: whether it has been a config so far, its newest check, and a pending one."""

    is_config: bool = False
    text: EditorText | None = None
    file: OpenFile | None = None
    pending: asyncio.TimerHandle | None = None


class Server(LanguageServer):
    """Serves the configs that a client has open."""

    def __init__(self, version: str) -> None:
        super().__init__(SOURCE, version, types.TextDocumentSyncKind.Full)  # pyright: ignore[reportUnknownMemberType]
        self._opened: dict[str, _Opened] = {}
        self._neighbours = Neighbours()
        self.is_shut_down = False
        self.exit_code = 0
        """1 after an exit without a shutdown request."""

    def check_soon(self, uri: str) -> None:
        """Check a file after ``DELAY``; a check that is pending is replaced."""
        opened = self._opened.setdefault(uri, _Opened())
        if opened.pending is not None:
            opened.pending.cancel()
        opened.pending = asyncio.get_running_loop().call_later(DELAY, self.check, uri)

    def check(self, uri: str) -> None:
        """Check a file and publish its findings."""
        document = self.workspace.get_text_document(uri)
        opened = self._opened.setdefault(uri, _Opened())
        opened.pending = None
        opened.text = EditorText(uri, document.source, self.workspace.position_encoding or "utf-16")
        path = path_of(uri)
        # A config that is broken while it is edited remains one.
        opened.is_config = opened.is_config or open_file.is_config(document.source, path)
        found: list[types.Diagnostic] = []
        opened.file = None
        if opened.is_config:
            try:
                opened.file = open_file.open_file(document.source, path, self._neighbours)
                report = opened.file.checked.report
                found = [opened.text.diagnostic(each) for each in report.diagnostics]
            except UsageError as error:
                found = [_settings_error(str(error))]
        self.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(uri, found, version=document.version)
        )

    def check_all(self) -> None:
        """Check every open file again: settings or files beside them have changed."""
        self._neighbours = Neighbours()
        open_file.clear_caches()
        for uri in self._opened:
            self.check_soon(uri)

    def current(self, uri: str) -> tuple[OpenFile, EditorText] | None:
        """Return the newest text of a config, checked; None for other files."""
        opened = self._opened.get(uri)
        if opened is not None and opened.pending is not None:
            opened.pending.cancel()
            self.check(uri)
        if opened is None or opened.file is None or opened.text is None:
            return None
        return opened.file, opened.text

    def close(self, uri: str) -> None:
        """Forget a file and withdraw its findings."""
        opened = self._opened.pop(uri, None)
        if opened is not None and opened.pending is not None:
            opened.pending.cancel()
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))


def _settings_error(message: str) -> types.Diagnostic:
    start = types.Position(0, 0)
    return types.Diagnostic(
        types.Range(start, start), message, types.DiagnosticSeverity.Error, source=SOURCE
    )


def path_of(uri: str) -> str:
    """Return the path of a file URI, or the name of a file that has not been saved."""
    parts = urlsplit(uri)
    return url2pathname(parts.path) if parts.scheme == "file" else Path(parts.path).name or uri


def create() -> Server:
    """Return a server with all features, not started."""
    server = Server(__version__)

    @server.feature(types.INITIALIZE)
    def initialize(_: types.InitializeParams) -> None:
        open_file.open_file(WARM_UP, "ds_config.json")

    @server.feature(types.INITIALIZED)
    async def initialized(_: types.InitializedParams) -> None:
        await _watch_settings(server)

    @server.feature(types.SHUTDOWN)
    def shutdown(_: None) -> None:
        server.is_shut_down = True

    @server.feature(types.EXIT)
    def exit(_: None) -> None:
        server.exit_code = 0 if server.is_shut_down else 1

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def did_open(params: types.DidOpenTextDocumentParams) -> None:
        server.check(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def did_change(params: types.DidChangeTextDocumentParams) -> None:
        server.check_soon(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def did_close(params: types.DidCloseTextDocumentParams) -> None:
        server.close(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def did_save(_: types.DidSaveTextDocumentParams) -> None:
        server.check_all()

    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def files_changed(_: types.DidChangeWatchedFilesParams) -> None:
        server.check_all()

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def show_hover(params: types.HoverParams) -> types.Hover | None:
        current = server.current(params.text_document.uri)
        if current is None:
            return None
        file, text = current
        found = hover.hover(file, text.our_position(params.position))
        return None if found is None else text.hover(found)

    @server.feature(
        types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions(trigger_characters=['"', ":", " "])
    )
    def complete(params: types.CompletionParams) -> list[types.CompletionItem]:
        current = server.current(params.text_document.uri)
        if current is None:
            return []
        file, text = current
        found = completions.completions(file, text.our_position(params.position))
        return [text.completion(each, params.position, rank) for rank, each in enumerate(found)]

    @server.feature(
        types.TEXT_DOCUMENT_CODE_ACTION,
        types.CodeActionOptions(
            [
                types.CodeActionKind.QuickFix,
                types.CodeActionKind.RefactorRewrite,
                types.CodeActionKind.SourceFixAll,
            ]
        ),
    )
    def offer(params: types.CodeActionParams) -> list[types.CodeAction | types.Command]:
        current = server.current(params.text_document.uri)
        if current is None:
            return []
        file, text = current
        only = params.context.only
        found = actions.actions(file, text.our_range(params.range))
        if only is not None:  # no quick fix for one place: editors request it when they save a file
            found = [each for each in found if _is_among(each.kind, only)]
            found += actions.fix_all(file) if _is_among(ActionKind.FIX_ALL, only) else []
        return [text.action(each) for each in found]

    @server.command(EXPLAIN)
    async def explain(code: str) -> None:
        await server.window_show_document_async(
            types.ShowDocumentParams(uri=rule_pages.url(code), take_focus=True)
        )

    return server


def _is_among(kind: ActionKind, only: Sequence[types.CodeActionKind | str]) -> bool:
    """Return whether a client wants a kind of action, or a kind that contains it."""
    converted = ACTION_KINDS.get(kind)
    names = (each.value if isinstance(each, types.CodeActionKind) else each for each in only)
    return converted is not None and any(
        f"{converted.value}.".startswith(f"{name}.") for name in names
    )


async def _watch_settings(server: Server) -> None:
    """Ask the client to report changes of project settings, if it can."""
    workspace = server.client_capabilities.workspace
    watching = workspace.did_change_watched_files if workspace is not None else None
    if watching is None or not watching.dynamic_registration:
        return
    options = types.DidChangeWatchedFilesRegistrationOptions(
        [types.FileSystemWatcher(glob_pattern=SETTINGS)]
    )
    registration = types.Registration("settings", types.WORKSPACE_DID_CHANGE_WATCHED_FILES, options)
    await server.client_register_capability_async(types.RegistrationParams([registration]))
