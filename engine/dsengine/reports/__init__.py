"""What a run tells a person while it goes on."""

from dsengine.reports.printing import say
from dsengine.reports.reporter import Reporter

__all__ = ["Reporter", "say"]
