"""The explorer as a page of its own, served on this machine, without torch or Jupyter."""

import argparse
import json
import sys
from dataclasses import fields
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from .explore import FAMILY, LIMITS, NAMES, Choice, view

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>pp_lab explorer</title>
<style>body{font:15px/1.5 system-ui,sans-serif;margin:1.5em auto;max-width:62em;padding:0 1em}
form{display:grid;grid-template-columns:repeat(auto-fit,minmax(19em,1fr));gap:.3em 1.5em}
label{display:flex;white-space:nowrap;align-items:center;justify-content:space-between;gap:.7em}
input[type=range]{flex:1;min-width:6em}
output{width:2.5em}table{border-collapse:collapse}td,th{padding:.1em .8em;text-align:right}
#says{min-height:1.5em}</style>
<h1>Pipeline schedules</h1><form id="form">FORM</form>
<p id="says" aria-live="polite"></p><div id="picture"></div><div id="figures"></div>
<script>
const form = document.getElementById("form"), time = form.elements.time;
let busy = false, again = false;
async function show() {
  if (busy) { again = true; return; }
  busy = true;
  for (const o of form.querySelectorAll("output")) o.value = form.elements[o.dataset.of].value;
  const asked = new URLSearchParams(new FormData(form));
  try {
    const seen = await (await fetch("view?" + asked)).json();
    for (const id of ["picture", "figures"]) document.getElementById(id).innerHTML = seen[id];
    document.getElementById("says").textContent = seen.sentence;
    time.max = seen.makespan;
  } catch { document.getElementById("says").textContent = "the explorer has stopped"; }
  busy = false;
  if (again) { again = false; show(); }
}
form.addEventListener("input", event => { if (event.target !== time) time.value = -1; show(); });
form.addEventListener("submit", event => event.preventDefault());
show();
</script></html>"""


def page():
    """The page: a control for each field of a choice."""

    def options(chosen, *more):
        return "".join(
            f'<option value="{escape(value)}"{" selected" * (value == chosen)}>{escape(name)}'
            "</option>"
            for name, value in (*more, *((n, n) for n in FAMILY))
        )

    start = Choice()
    parts = [
        f'<label>schedule <select name="schedule">{options(start.schedule)}</select></label>',
        f'<label>beside <select name="other">{options("", ("nothing", ""))}</select></label>',
    ]
    for field in fields(Choice):
        if field.name in LIMITS:
            least, most = LIMITS[field.name]
            step = 1 if field.name in ("p", "m", "v", "cap") else 0.25
            parts.append(_slider(NAMES[field.name], field.name, least, most, step, field.default))
    parts.append(_slider("cursor", "time", -1, 100, 0.25, -1))
    return PAGE.replace("FORM", "".join(parts))


def _slider(title, name, least, most, step, value):
    return (
        f'<label>{escape(title)} <input type="range" name="{name}" min="{least}" max="{most}" '
        f'step="{step}" value="{value}"><output data-of="{name}"></output></label>'
    )


def seen(query):
    """What the page shows for the query of a form, as plain data."""
    try:
        found = view(Choice.from_texts(dict(parse_qsl(query, keep_blank_values=True))))
    except ValueError as error:
        return {"picture": "", "figures": "", "sentence": str(error), "makespan": 0}
    return {
        "picture": found.picture,
        "figures": found.figures,
        "sentence": found.sentence,
        "makespan": float(found.trace.makespan) if found.trace else 0,
    }


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        where = urlsplit(self.path)
        if where.path == "/view":
            self._answer("application/json", json.dumps(seen(where.query)))
        elif where.path == "/":
            self._answer("text/html; charset=utf-8", page())
        else:
            self.send_error(404)

    def _answer(self, kind, text):
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """Nothing for each request."""


def main(arguments=None):
    """Serve the page until it is interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m pp_lab.explore", description="Serve the explorer on this machine."
    )
    parser.add_argument("--port", type=int, default=8765, help="default 8765; 0: any that is free")
    options = parser.parse_args(arguments)
    try:
        server = ThreadingHTTPServer(("127.0.0.1", options.port), _Handler)
    except OSError as error:
        sys.exit(f"pp_lab.explore: port {options.port} cannot be used ({error}): give another one "
                 "with --port")  # fmt: skip
    print(f"http://127.0.0.1:{server.server_port}/  (Ctrl-C ends it)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()
    finally:
        server.server_close()
