"""Errors that are lessons: one sentence, then the picture with the culprit marked."""


class LabError(Exception):
    """Base of every error that pp_lab explains.

    In a notebook only the explanation is shown, without the frames of our own code;
    `str(error)` is the same text.
    """

    def _render_traceback_(self):
        return [
            f"{type(self).__name__}: {line}" if n == 0 else line
            for n, line in enumerate(str(self).splitlines())
        ]


class ScheduleError(LabError, ValueError):
    """A schedule is refused. `reason` is the sentence; rank, position, op say where.

    `rank` and `op` are None where the reason is not one place; `position` counts from 0
    in the rank's list of ops.
    """

    def __init__(self, reason, rank=None, position=None, op=None, picture=""):
        super().__init__(f"{reason}\n{picture}" if picture else reason)
        self.reason, self.rank, self.position, self.op = reason, rank, position, op
