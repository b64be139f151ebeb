"""The show room: timelines and memory strips. It draws a `Trace` and asks it for the reasons."""

from .chart import Chart, chart
from .compare import Comparison, compare
from .timeline import Timeline, bundle, stack, timeline

__all__ = ["Chart", "Comparison", "Timeline", "bundle", "chart", "compare", "stack", "timeline"]
