"""The show room: timelines and memory strips. It draws a `Trace` and asks it for the reasons."""

from .blueprint import Blueprint, blueprint
from .chart import Chart, chart
from .comparison import Comparison, compare
from .timeline import Timeline, bundle, stack, timeline

__all__ = [
    "Blueprint", "Chart", "Comparison", "Timeline", "blueprint", "bundle", "chart", "compare",
    "stack", "timeline",
]  # fmt: skip
