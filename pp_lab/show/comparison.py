"""Schedules side by side: a table of figures, and their timelines over one time axis."""

from functools import cached_property

from ..schedule import Cost
from ..schedule.cost import F1B2
from ..schedule.table import table
from .timeline import stack


class Comparison:
    """`table` are the figures, `timeline` is the picture; the repr is the table."""

    def __init__(self, figures):
        self.table = figures

    @property
    def rows(self):
        """The table's rows, in the order of the schedules."""
        return self.table.rows

    @cached_property
    def timeline(self):
        """All timelines over one time axis, each with the cost of its stages."""
        return stack(*self.table.traces)

    def save(self, path):
        """Write the picture as a PNG file."""
        self.timeline.save(path)

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {
            "text/plain": repr(self),
            "text/html": self.table._repr_html_() + self.timeline.html,
        }

    def __repr__(self):
        return str(self.table)


def compare(schedules, cost: Cost = F1B2) -> Comparison:
    """Simulate schedules and show them side by side.

    `cost` is that of a rank's whole share of the model: with v stages per rank, each stage
    costs `cost.split(v)`, so that all schedules do the same work.
    """
    return Comparison(table(schedules, cost))
