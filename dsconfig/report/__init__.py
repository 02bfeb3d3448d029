"""Findings and their output formats, independent of configs and runtimes."""

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
