"""Findings and how they are shown. Knows nothing of configs, models or runtimes."""

from dsconfig.report.diagnostic import (
    Applicability,
    Diagnostic,
    Edit,
    Effect,
    Fix,
    Position,
    Range,
    Severity,
)
from dsconfig.report.report import FileReport, Reader, Report

__all__ = [
    "Applicability",
    "Diagnostic",
    "Edit",
    "Effect",
    "FileReport",
    "Fix",
    "Position",
    "Range",
    "Reader",
    "Report",
    "Severity",
]
