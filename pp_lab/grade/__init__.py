"""The grade room: submissions in, marks out. Who runs what, and who believes whom:

    command    reads submissions, and writes marks and feedback (report.py)
    grader     takes the source of the answer cells (assemble.py), and has nbval run a notebook of
               checks for each submission, beside which plugin.py keeps the scores
    service    gives each check a fresh process, and ends it when its time is up
    judge      evaluates the check, with hidden sizes; runs no line of the learner's
    sandbox    runs the learner's functions, and nothing else, behind the doors that doors.py
               shuts; it is asked over a pipe

What comes out of a sandbox is plain data (wire.py): values, tensors, and requests to a rank.
Where a rank runs a learner's program, the rank itself computes, sends and counts, and the
program, in a sandbox of its own, only asks it to (answer.py, remote.py). So a program cannot
claim a gradient, a message or a makespan; it can only bring them about.
"""

import sys

# Where this package is installed, jsonschema compiles its grammar when it is imported, which
# takes seconds, for each submission. It checks a kind of string that no notebook's schema has.
sys.modules.setdefault("rfc3987_syntax", None)
