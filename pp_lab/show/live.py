"""A scene as HTML: a picture with alt text, and a script that swaps in a live SVG.

Where scripts do not run (an untrusted notebook, a code host) the picture stays. The script,
live.js, draws what it finds as data: it knows nothing about pipelines.
"""

import base64
import json
from functools import cache
from html import escape
from importlib import resources

from .explainer import Explainer
from .palette import KINDS, LABEL, MARK, MEMORY, TONES, edge, fill
from .scene import Row, Scene

MOST = 1200  # boxes in a live timeline: beyond that a browser lags and a notebook grows
HINT = (
    "Point at an op, or press Tab and then the arrow keys. Solid arrows come from what the op "
    "needed, dashed ones lead to what needed it. An idle slot tells why it is idle."
)


def embedded(kind: str, picture: bytes) -> str:
    """The address of a picture that stands in the page itself. kind: "png" or "svg+xml"."""
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"


def html(scene: Scene, picture: str, alt: str) -> str:
    """The picture, with the live timeline behind it unless the scene is too large for one.

    picture: its address, see `embedded`
    """
    image = (
        f'<img alt="{escape(alt)}" width="{scene.width}" '
        'style="max-width: 100%; height: auto; background: #fff" '
        f'src="{picture}">'
    )
    ops = scene.ops + sum(len(row.boxes) for row in scene.rows)
    if scene.ops or ops > MOST:
        note = f"A picture only: {ops} ops are too many for a live timeline."
        return f'<div class="pp-lab-timeline">{image}<p><small>{note}</small></p></div>'
    return (
        f'<div class="pp-lab-timeline">{image}'
        f'<script type="application/json">{_json(data(scene, alt))}</script>'
        f"<script>{_script()}</script></div>"
    )


def data(scene: Scene, alt: str) -> dict:
    """What live.js draws. Lengths are pixels of the scene; `needs` are the ids of boxes."""
    looks = {}
    ids = {id(box.event): k for k, box in enumerate(box for row in scene.rows for box in row.boxes)}
    explainers = {id(row.trace): Explainer(row.trace) for row in scene.rows}
    rows = [
        {
            "name": row.name,
            "x": row.left,
            "y": _round(row.y),
            "w": _round(row.right - row.left),
            "h": _round(row.height),
            "boxes": _cells(row, explainers[id(row.trace)], ids, looks),
        }
        for row in scene.rows
    ]
    return {
        "width": scene.width,
        "height": scene.height,
        "hint": HINT,
        "name": alt.split("\n")[0],
        "label": LABEL,
        "mark": MARK,
        "memory": [MEMORY, edge(MEMORY)],
        "tones": TONES,
        "rows": rows,
        "looks": [_look(*look) for look in looks],
        "kinds": {kind: _look(kind, 0) for kind in KINDS},
        "texts": [
            [_round(t.x), _round(t.y), t.text, t.size, t.anchor, t.tone, int(t.bold)]
            for t in scene.texts
        ],
        "lines": [[*map(_round, line[:4]), line.tone] for line in scene.lines],
        "areas": [" ".join(f"{_round(x)},{_round(y)}" for x, y in area) for area in scene.memory],
        "swatches": [[*map(_round, swatch[:4]), swatch[4]] for swatch in scene.swatches],
    }


def _cells(row, explainer, ids, looks):
    """The ops and the idle slots of a row, in the order of time."""
    cells = []
    for box in row.boxes:
        cell = {
            "x": _round(box.x),
            "w": _round(box.width),
            "id": ids[id(box.event)],
            "parts": [
                [looks.setdefault((part.kind, part.shade), len(looks)), part.label, part.size]
                for part in box.parts
            ],
            "needs": [ids[id(e)] for e, _ in row.trace.needs(box.event)],
            "says": explainer.op(box.event),
        }
        cells.append(cell | {"mark": 1} if box.marked else cell)
    for x, width, time, event in idle(row):
        late = [
            ids[id(e)] for e, arrival in (row.trace.needs(event) if event else ()) if arrival > time
        ]
        cells.append(
            {
                "x": _round(x),
                "w": _round(width),
                "needs": late,
                "says": explainer.idle(row.rank, row.lane, time),
            }
        )
    return sorted(cells, key=lambda cell: cell["x"])


def idle(row: Row) -> list[tuple]:
    """The gaps of a lane that a finger can hit: (x, width, when the gap begins, next event)."""
    gaps, x, time = [], row.left, 0
    for box in row.boxes:
        gaps.append((x, box.x - x, time, box.event))
        x, time = box.x + box.width, box.event.end
    if time < row.trace.makespan:
        gaps.append((x, row.right - x, time, None))
    return [gap for gap in gaps if gap[1] >= 1]


def _look(kind, shade):
    colour = fill(kind, shade)
    return [colour, edge(colour), KINDS[kind].hatch]


def _round(x):
    return round(x, 1) if x % 1 else int(x)


def _json(value):
    """JSON that cannot end the script element it stands in."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


@cache
def _script():
    return resources.files(__package__).joinpath("live.js").read_text("utf-8")
