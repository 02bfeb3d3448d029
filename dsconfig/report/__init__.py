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
from dsconfig.report.report import FileReport, FileTarget, Report

__all__ = [
    "Applicability",
    "Diagnostic",
    "Edit",
    "Effect",
    "FileReport",
    "FileTarget",
    "Fix",
    "Position",
    "Range",
    "Report",
    "Severity",
]
