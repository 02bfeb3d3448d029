"""Our findings, edits and positions as the types of the Language Server Protocol.

Lines and columns are 0-based there. A column counts UTF-16 units unless client and server agreed on
another encoding.
"""

from pathlib import Path

from lsprotocol import types

from dsconfig.editor.actions import Action, ActionKind
from dsconfig.editor.completions import Completion, CompletionKind
from dsconfig.editor.hover import Hover
from dsconfig.report import Diagnostic, Edit, Effect, Position, Range, Severity
from dsconfig.source.positions import LineIndex

SOURCE = "dsconfig"
EXPLAIN = "dsconfig.explain"
"""Command that opens the page of a rule."""
SEVERITIES = {
    Severity.ERROR: types.DiagnosticSeverity.Error,
    Severity.WARNING: types.DiagnosticSeverity.Warning,
    Severity.INFO: types.DiagnosticSeverity.Information,
}
TAGS = {
    Effect.INERT: types.DiagnosticTag.Unnecessary,
    Effect.DEPRECATED: types.DiagnosticTag.Deprecated,
}
ACTION_KINDS = {
    ActionKind.FIX: types.CodeActionKind.QuickFix,
    ActionKind.REWRITE: types.CodeActionKind.RefactorRewrite,
    ActionKind.FIX_ALL: types.CodeActionKind.SourceFixAll,
}
COMPLETION_KINDS = {
    CompletionKind.KEY: types.CompletionItemKind.Property,
    CompletionKind.BLOCK: types.CompletionItemKind.Module,
    CompletionKind.VALUE: types.CompletionItemKind.Value,
}
_BYTES_PER_UNIT = {
    types.PositionEncodingKind.Utf8: ("utf-8", 1),
    types.PositionEncodingKind.Utf16: ("utf-16-le", 2),
    types.PositionEncodingKind.Utf32: ("utf-32-le", 4),
}
_START = types.Position(0, 0)


class EditorText:
    """A text in an editor: converts its positions in both directions."""

    def __init__(self, uri: str, text: str, encoding: str | types.PositionEncodingKind) -> None:
        self.uri = uri
        self.lines = LineIndex(text)
        kind = types.PositionEncodingKind(encoding)
        self._codec, self._width = _BYTES_PER_UNIT[kind]

    def position(self, ours: Position) -> types.Position:
        before = self.lines.line(ours.line)[: ours.column - 1]
        units = len(before.encode(self._codec, "surrogatepass")) // self._width
        return types.Position(ours.line - 1, units)

    def range(self, ours: Range | None) -> types.Range:
        """Return a range; without one, the start of the file."""
        if ours is None:
            return types.Range(_START, _START)
        return types.Range(self.position(ours.start), self.position(ours.end))

    def our_position(self, theirs: types.Position) -> Position:
        data = self.lines.line(theirs.line + 1).encode(self._codec, "surrogatepass")
        before = data[: theirs.character * self._width].decode(self._codec, "ignore")
        return Position(theirs.line + 1, len(before) + 1)

    def our_range(self, theirs: types.Range) -> Range:
        return Range(self.our_position(theirs.start), self.our_position(theirs.end))

    def diagnostic(self, finding: Diagnostic) -> types.Diagnostic:
        """Return a finding; one about another file is shown at the start of this one."""
        text = f"{finding.message}\nhelp: {finding.help}" if finding.help else finding.message
        is_here = finding.file is None
        related = None if is_here else [_elsewhere(finding)]
        return types.Diagnostic(
            range=self.range(finding.range if is_here else None),
            message=text if is_here else f"{finding.file}: {text}",
            severity=SEVERITIES[finding.severity],
            code=finding.code,
            code_description=types.CodeDescription(finding.url),
            source=SOURCE,
            tags=[TAGS[finding.effect]] if finding.effect in TAGS else None,
            related_information=related,
        )

    def edit(self, edit: Edit) -> types.TextEdit:
        return types.TextEdit(self.range(edit.range), edit.content)

    def action(self, action: Action) -> types.CodeAction | types.Command:
        """Return a code action, or the command that explains a rule."""
        found = action.finding
        if action.kind is ActionKind.EXPLAIN and found is not None:
            return types.Command(action.title, EXPLAIN, arguments=[found.code])
        edits = [self.edit(edit) for edit in action.edits]
        return types.CodeAction(
            title=action.title,
            kind=ACTION_KINDS[action.kind],
            diagnostics=[self.diagnostic(found)] if found is not None else None,
            is_preferred=action.is_preferred or None,
            edit=types.WorkspaceEdit(changes={self.uri: edits}),
        )

    def completion(self, found: Completion, at: types.Position, rank: int) -> types.CompletionItem:
        start = types.Position(at.line, max(at.character - found.replaced, 0))
        return types.CompletionItem(
            label=found.label,
            kind=COMPLETION_KINDS[found.kind],
            detail=found.detail or None,
            documentation=found.doc or None,
            # The quotation mark is replaced as well, so the client must not filter by it.
            filter_text=found.text,
            sort_text=f"{rank:04}",
            text_edit=types.TextEdit(types.Range(start, at), found.text),
        )

    def hover(self, found: Hover) -> types.Hover:
        content = types.MarkupContent(types.MarkupKind.Markdown, found.markdown)
        return types.Hover(content, self.range(found.range))


def _elsewhere(finding: Diagnostic) -> types.DiagnosticRelatedInformation:
    place = finding.range.start if finding.range is not None else Position(1, 1)
    start = types.Position(place.line - 1, place.column - 1)
    uri = Path(finding.file or "").absolute().as_uri()
    location = types.Location(uri, types.Range(start, start))
    return types.DiagnosticRelatedInformation(location, finding.message)
