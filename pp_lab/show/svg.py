"""A scene as an SVG text: the quickest painter, for a picture that changes under a finger."""

from html import escape

from .palette import KINDS, LABEL, MARK, MEMORY, TONES, edge, fill
from .scene import Scene

HATCHES = {
    "rising": "M-2 2 L2 -2 M0 8 L8 0 M6 10 L10 6",
    "falling": "M-2 6 L2 10 M0 0 L8 8 M6 -2 L10 2",
    "dotted": "M2 2 h1 M6 6 h1",
}


def svg(scene: Scene, alt: str, cursor: float | None = None) -> str:
    """The scene, with a line at `cursor`, a time of the first trace, if one is given."""
    parts, looks = [], {}
    for row in scene.rows:
        parts.append(_box(row.left, row.y, row.right - row.left, row.height, "url(#idle)"))
        for kind, outline in row.shares.items():
            parts.append(_area(outline, fill(kind, 0)))
        for box in row.boxes:
            height = row.height / len(box.parts)
            for k, part in enumerate(box.parts):
                y = row.y + k * height
                name = looks.setdefault((part.kind, part.shade), f"l{len(looks)}")
                line = edge(fill(part.kind, part.shade))
                parts.append(_box(box.x, y, box.width, height, f"url(#{name})", line))
                if part.label:
                    middle = box.x + box.width / 2, y + height / 2
                    parts.append(_text(*middle, part.label, part.size, "middle", LABEL))
            if box.marked:
                parts.append(_box(box.x, row.y, box.width, row.height, "none", MARK, 3))
    parts += [_area(area, MEMORY) for area in scene.memory]
    for x, y, width, height, kind in scene.swatches:
        if kind in KINDS:
            paint = f"url(#{looks.setdefault((kind, 0.0), f'l{len(looks)}')})"
        else:
            paint = {"idle": "url(#idle)", "memory": MEMORY, "mark": "none"}[kind]
        parts.append(_box(x, y, width, height, paint, MARK if kind == "mark" else ""))
    for x1, y1, x2, y2, tone in scene.lines:
        parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{TONES[tone]}"/>'
        )
    for x, y, text, size, anchor, tone, bold in scene.texts:
        parts.append(_text(x, y, text, size, anchor, TONES[tone], bold))
    if cursor is not None and scene.rows:
        parts.append(_cursor(scene, cursor))
    patterns = [_pattern("idle", TONES["idle"], TONES["idle hatch"], "rising")]
    for (kind, shade), name in looks.items():
        colour = fill(kind, shade)
        patterns.append(_pattern(name, colour, edge(colour), KINDS[kind].hatch))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(alt)}" '
        f'viewBox="0 0 {scene.width} {scene.height:g}" width="{scene.width}" '
        'style="max-width:100%;height:auto;background:#fff" '
        'font-family="DejaVu Sans, Verdana, sans-serif">'
        f"<defs>{''.join(patterns)}</defs>{''.join(parts)}</svg>"
    )


def _cursor(scene, time):
    """A line across the rows of the first trace."""
    rows = [row for row in scene.rows if row.trace is scene.rows[0].trace]
    first, last = rows[0], rows[-1]
    whole = float(first.trace.makespan) or 1
    x = first.left + (first.right - first.left) * min(max(float(time), 0) / whole, 1)
    return (
        f'<line class="cursor" x1="{x:.1f}" x2="{x:.1f}" y1="{first.y - 4:g}" '
        f'y2="{last.y + last.height + 4:g}" stroke="{MARK}" stroke-width="2"/>'
    )


def _pattern(name, colour, line, hatch):
    drawn = ""
    if hatch in HATCHES:
        drawn = f'<path d="{HATCHES[hatch]}" stroke="{line}" stroke-width="1" opacity="0.55"/>'
    return (
        f'<pattern id="{name}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<rect width="8" height="8" fill="{colour}"/>{drawn}</pattern>'
    )


def _box(x, y, width, height, paint, line="", thick=0.8):
    stroke = f' stroke="{line}" stroke-width="{thick}"' if line else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'fill="{paint}"{stroke}/>'
    )


def _area(outline, colour):
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in outline)
    return f'<polygon points="{points}" fill="{colour}"/>'


def _text(x, y, text, size, anchor, colour, bold=False):
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y + 0.36 * size:.1f}" font-size="{size:g}" fill="{colour}" '
        f'text-anchor="{anchor}"{weight}>{escape(text)}</text>'
    )
