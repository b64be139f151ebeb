"""pytest plugin: the cells that nbval runs are named after their exercises, and have scores.

A test passes with all points. Points, and what they are of, stand among the properties of the
JUnit XML; everything is also written to the file that PP_LAB_SCORES names.
"""

import json
import os

import pytest
from nbval.plugin import IPyNbCell

from .service import MIME

SCORES = "PP_LAB_SCORES"
_scores = {}


_from_parent = IPyNbCell.from_parent.__func__


def _named(cls, parent, *, name, cell, **rest):
    """nbval makes its tests by `from_parent`, and calls them "Cell 0" and so on."""
    return _from_parent(cls, parent, name=cell.metadata["pp_lab"]["exercise"], cell=cell, **rest)


IPyNbCell.from_parent = classmethod(_named)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call":
        score = next(
            (o.data[MIME] for o in item.test_outputs or () if MIME in o.get("data", {})), None
        )
        if score is not None:
            _scores[item.name] = score
            item.user_properties += [("points", score["points"]), ("of", score["of"])]
            if score["points"] < score["of"]:
                report.outcome = "failed"
                told = "\n".join(text for kind, text in score["reasons"] if kind != "yes")
                report.longrepr = f"{score['points']:g} of {score['of']:g}\n{told}"
    return report


def pytest_sessionfinish():
    with open(os.environ[SCORES], "w", encoding="utf-8") as file:
        json.dump(_scores, file)
