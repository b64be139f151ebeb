"""The run room: the same schedule for real, on processes that exchange real messages."""

from .lab import Lab, Run
from .launch import RunError
from .rank import P2POp
from .score import Score

__all__ = ["Lab", "P2POp", "Run", "RunError", "Score"]
