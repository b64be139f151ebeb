"""Paint a scene as a PNG with matplotlib's Agg, without pyplot or any other global state."""

import io

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from PIL import Image

from .palette import KINDS, LABEL, MARK, MEMORY, TONES, edge, fill
from .scene import Scene

PIXELS = 100  # of a scene, per inch
SHARPNESS = 1.5  # pixels of the PNG per pixel of the scene
POINTS = 72 / PIXELS
HATCHES = {"plain": None, "rising": "////", "falling": "\\\\\\\\", "dotted": "....."}
HATCHED = 3  # a box narrower than this shows no hatch, and is painted without

# What a user's matplotlib settings must not change.
SETTINGS = {"hatch.linewidth": 0.5, "path.sketch": None, "text.usetex": False}


def png(scene: Scene) -> bytes:
    """The picture. The same scene gives the same bytes."""
    with rc_context(SETTINGS):
        figure = Figure(
            figsize=(scene.width / PIXELS, scene.height / PIXELS),
            dpi=PIXELS * SHARPNESS,
            facecolor=TONES["paper"],
        )
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_axes((0, 0, 1, 1), frameon=False, xticks=(), yticks=())
        axes.set(xlim=(0, scene.width), ylim=(scene.height, 0))
        _idle(axes, scene)
        _ops(axes, scene)
        _memory(axes, scene)
        _lines(axes, scene)
        _texts(axes, scene)
        return compact(canvas)


def compact(canvas) -> bytes:
    """What is drawn on an Agg canvas, as a PNG: many are saved in one notebook.

    A palette of 64 colours can hardly be told from the original, and is a third of its size.
    """
    canvas.draw()
    image = Image.frombytes("RGBA", canvas.get_width_height(), canvas.buffer_rgba())
    file = io.BytesIO()
    image.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(file, "png", optimize=True)
    return file.getvalue()


def _corners(x, y, width, height):
    return [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]


def _paint(axes, boxes, colour, hatch=None, line=0.5, edges=None):
    axes.add_collection(
        PolyCollection(
            boxes,
            facecolors=colour,
            hatch=hatch,
            linewidths=line * POINTS,
            edgecolors=edges or edge(colour),
            snap=None if line else False,
        ),
        autolim=False,
    )


def _idle(axes, scene):
    boxes = [_corners(row.left, row.y, row.right - row.left, row.height) for row in scene.rows]
    boxes += [_corners(*swatch[:4]) for swatch in scene.swatches if swatch[4] == "idle"]
    _paint(axes, boxes, TONES["idle"], "//", 0, TONES["idle hatch"])


def _ops(axes, scene):
    """All ops of one look in one collection, which is much faster than one by one."""
    looks, marked = {}, []
    for row in scene.rows:
        for kind, outline in row.shares.items():
            _paint(axes, [outline], fill(kind, 0), HATCHES[KINDS[kind].hatch], line=0)
        for box in row.boxes:
            height = row.height / len(box.parts)
            for k, part in enumerate(box.parts):
                corners = _corners(box.x, row.y + k * height, box.width, height)
                look = part.kind, part.shade, box.width >= HATCHED
                looks.setdefault(look, []).append(corners)
            if box.marked:
                marked.append(_corners(box.x, row.y, box.width, row.height))
    for x, y, width, height, kind in scene.swatches:
        if kind in KINDS:
            looks.setdefault((kind, 0.0, True), []).append(_corners(x, y, width, height))
        elif kind == "mark":
            marked.append(_corners(x, y, width, height))
    for (kind, shade, wide), boxes in looks.items():
        hatch = HATCHES[KINDS[kind].hatch] if wide else None
        _paint(axes, boxes, fill(kind, shade), hatch, 0.9 if wide else 0)
    if marked:
        axes.add_collection(
            PolyCollection(
                marked, facecolors="none", edgecolors=MARK, linewidths=3 * POINTS, zorder=3
            ),
            autolim=False,
        )


def _memory(axes, scene):
    shapes = scene.memory + [
        _corners(*swatch[:4]) for swatch in scene.swatches if swatch[4] == "memory"
    ]
    _paint(axes, shapes, MEMORY)


def _lines(axes, scene):
    axes.add_collection(
        LineCollection(
            [[(x1, y1), (x2, y2)] for x1, y1, x2, y2, _ in scene.lines],
            colors=[TONES[line.tone] for line in scene.lines],
            linewidths=POINTS,
        ),
        autolim=False,
    )


def _texts(axes, scene):
    fonts = {}

    def write(x, y, text, size, anchor, colour, bold=False):
        font = fonts.setdefault(
            (size, bold),
            FontProperties(
                family="DejaVu Sans", size=size * POINTS, weight="bold" if bold else "normal"
            ),
        )
        side = {"start": "left", "middle": "center", "end": "right"}[anchor]
        axes.text(
            x,
            y + 0.36 * size,
            text,
            fontproperties=font,
            ha=side,
            va="baseline",
            color=colour,
            parse_math=False,
            zorder=4,
        )

    for x, y, text, size, anchor, tone, bold in scene.texts:
        write(x, y, text, size, anchor, TONES[tone], bold)
    for row in scene.rows:
        for box in row.boxes:
            height = row.height / len(box.parts)
            for k, part in enumerate(box.parts):
                if part.label:
                    write(
                        box.x + box.width / 2,
                        row.y + (k + 0.5) * height,
                        part.label,
                        part.size,
                        "middle",
                        LABEL,
                    )
