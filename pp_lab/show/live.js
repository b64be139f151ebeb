// Swaps a timeline's picture for a live SVG. It draws the boxes, texts and lines that it is
// given, in pixels of the scene, and says what it is told about a box that is pointed at.
// If anything fails, the picture stays.
(() => {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  // Tones come from JupyterLab's theme, or VS Code's; elsewhere from the data.
  const THEME = {
    paper: ["--jp-layout-color0", "--vscode-editor-background"],
    ink: ["--jp-content-font-color1", "--vscode-editor-foreground"],
    faint: ["--jp-content-font-color2", "--vscode-descriptionForeground"],
    rule: ["--jp-border-color1", "--vscode-editorWidget-border"],
    idle: ["--jp-layout-color2", "--vscode-editorWidget-background"],
    "idle hatch": ["--jp-border-color1", "--vscode-editorWidget-border"],
  };
  const HATCHES = {
    rising: "M-1,7 L7,-1 M-1,1 L1,-1 M5,7 L7,5",
    falling: "M-1,-1 L7,7 M5,-1 L7,1 M-1,5 L1,7",
    dotted: "M1,1.5 h1 M4,4.5 h1",
    idle: "M-1,13 L13,-1",
  };

  function make(parent, tag, attributes, text) {
    const node = document.createElementNS(SVG, tag);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text) node.textContent = text;
    return parent ? parent.appendChild(node) : node;
  }

  function draw(data) {
    const tone = (name) =>
      THEME[name].reduceRight((rest, own) => `var(${own}, ${rest})`, data.tones[name]);
    const svg = make(null, "svg", {
      viewBox: `0 0 ${data.width} ${data.height}`, role: "grid", "aria-label": data.name,
      style: `display:block;width:100%;max-width:${data.width}px;background:${tone("paper")}`,
      "font-family": "'DejaVu Sans', Verdana, sans-serif",
    });

    // A pattern's name must be unique in the page, or a hidden timeline would blank a shown one.
    const defs = make(svg, "defs");
    const patterns = {};
    function hatch(name, colour) {
      const key = name + colour;
      if (!patterns[key]) {
        const size = name === "idle" ? 12 : 6;
        const id = "pp-lab-" + (window.ppLabPatterns = (window.ppLabPatterns || 0) + 1);
        const pattern = make(defs, "pattern", {
          id, width: size, height: size, patternUnits: "userSpaceOnUse",
        });
        make(pattern, "path", { d: HATCHES[name], style: `stroke:${colour}`, "stroke-width": 0.7 });
        patterns[key] = `url(#${id})`;
      }
      return patterns[key];
    }
    function rect(parent, x, y, width, height, style) {
      return make(parent, "rect", { x, y, width, height, style });
    }
    function filled(parent, x, y, w, h, [fill, edge, pattern]) {
      rect(parent, x, y, w, h, `fill:${fill};stroke:${edge};stroke-width:.9`);
      if (HATCHES[pattern] && w >= 3) rect(parent, x, y, w, h, `fill:${hatch(pattern, edge)}`);
    }
    function empty(parent, x, y, w, h) {
      rect(parent, x, y, w, h, `fill:${tone("idle")}`);
      rect(parent, x, y, w, h, `fill:${hatch("idle", tone("idle hatch"))}`);
    }
    function write(parent, x, y, text, size, anchor, colour, bold) {
      make(parent, "text", {
        x, y: y + 0.36 * size, "font-size": size, "text-anchor": anchor,
        "font-weight": bold ? "bold" : "normal", style: `fill:${colour};pointer-events:none`,
      }, text);
    }

    for (const [x1, y1, x2, y2, name] of data.lines) {
      make(svg, "line", { x1, y1, x2, y2, style: `stroke:${tone(name)}` });
    }
    const [fill, edge] = data.memory;
    for (const points of data.areas) {
      make(svg, "polygon", { points, style: `fill:${fill};stroke:${edge};stroke-width:.5` });
    }
    for (const [x, y, w, h, kind] of data.swatches) {
      if (kind === "idle") empty(svg, x, y, w, h);
      else if (kind === "memory") filled(svg, x, y, w, h, data.memory);
      else if (kind === "mark") rect(svg, x, y, w, h, `fill:none;stroke:${data.mark};stroke-width:3`);
      else filled(svg, x, y, w, h, data.kinds[kind]);
    }
    for (const [x, y, text, size, anchor, name, bold] of data.texts) {
      write(svg, x, y, text, size, anchor, tone(name), bold);
    }

    // Rows of boxes; each box is a cell that can be pointed at and focused.
    const cells = [];
    const byId = new Map();
    data.rows.forEach((row, r) => {
      const group = make(svg, "g", { role: "row", "aria-label": row.name });
      empty(group, row.x, row.y, row.w, row.h);
      row.boxes.forEach((box, k) => {
        const node = make(group, "g", {
          role: "gridcell", tabindex: -1, "aria-label": box.says, style: "outline:none",
        });
        const parts = box.parts || [];
        const h = row.h / (parts.length || 1);
        if (!parts.length) rect(node, box.x, row.y, box.w, row.h, "fill:transparent");
        parts.forEach(([look, label, size], i) => {
          filled(node, box.x, row.y + i * h, box.w, h, data.looks[look]);
          if (label) {
            write(node, box.x + box.w / 2, row.y + (i + 0.5) * h, label, size, "middle", data.label);
          }
        });
        if (box.mark) {
          rect(node, box.x, row.y, box.w, row.h, `fill:none;stroke:${data.mark};stroke-width:3`);
        }
        const cell = { ...box, node, r, k, y: row.y, h: row.h, serves: [] };
        cells.push(cell);
        if (parts.length) byId.set(box.id, cell);
        node.pp = cell;
      });
    });
    for (const cell of cells.filter((cell) => cell.parts)) {
      for (const id of cell.needs) byId.get(id).serves.push(cell);
    }

    // Pointing at a box: outline it, link it to what it needed (solid) and to what needed it
    // (dashed), and let everything else step back.
    const links = make(svg, "g", { style: "pointer-events:none" });
    const says = document.createElement("p");
    says.setAttribute("aria-hidden", "true"); // the focused cell has the same text as its label
    says.style.cssText = `margin:0;padding:2px 10px 8px;min-height:3em;color:${tone("ink")};` +
      "font:13px/1.5 var(--jp-ui-font-family, system-ui, sans-serif)";
    let focused = null;

    const stroke = (width, dashed) => `fill:none;stroke:${tone("ink")};stroke-width:${width};` +
      `stroke-dasharray:${dashed ? "4 2.5" : "none"}`;
    function outline({ x, y, w, h }, width, dashed) {
      rect(links, x, y, w, h, stroke(width, dashed));
    }
    // An arrow from the end of one box to the start of another; within a row it passes below.
    function link(from, to, dashed) {
      const down = to.y > from.y ? 1 : to.y < from.y ? -1 : 0;
      const x1 = from.x + from.w - 3;
      const x2 = to.parts ? to.x + 3 : to.x + to.w - 3;
      const y1 = down < 0 ? from.y : from.y + from.h;
      const y2 = down > 0 ? to.y : to.y + to.h;
      const bend = down ? (down * Math.max(Math.abs(y2 - y1), 8)) / 2 : 22;
      const tip = down > 0 ? -7 : 7;
      make(links, "path", {
        d: `M${x1},${y1} C${x1},${y1 + bend} ${x2},${y2 + (down ? -bend : bend)} ${x2},${y2 + tip}`,
        style: stroke(1.6, dashed),
      });
      make(links, "path", {
        d: `M${x2},${y2} l-4,${tip} h8 z`, style: `fill:${tone("ink")}`,
      });
    }
    function show(cell) {
      links.replaceChildren();
      says.textContent = cell ? cell.says : data.hint;
      const needed = cell ? (cell.needs || []).map((id) => byId.get(id)) : [];
      const bright = cell && new Set([cell, ...needed, ...cell.serves]);
      for (const other of cells) {
        if (other.parts) other.node.style.opacity = !cell || bright.has(other) ? 1 : 0.45;
      }
      if (!cell) return;
      for (const other of needed) {
        outline(other, 2, false);
        link(other, cell, false);
      }
      for (const other of cell.serves) {
        outline(other, 2, true);
        link(cell, other, true);
      }
      outline(cell, 3, false);
    }
    function focus(cell) {
      cells.forEach(({ node }) => node.setAttribute("tabindex", -1));
      cell.node.setAttribute("tabindex", 0); // Tab comes back to where it left
      cell.node.focus();
    }
    const cellOf = (target) => {
      const node = target.closest && target.closest("[role=gridcell]");
      return node && node.pp;
    };

    // Left and right stay in a row; up and down keep the time.
    function next(cell, key) {
      const row = (r) => cells.filter((other) => other.r === r);
      const own = row(cell.r);
      if (key === "ArrowRight") return own[cell.k + 1];
      if (key === "ArrowLeft") return own[cell.k - 1];
      if (key === "Home") return own[0];
      if (key === "End") return own[own.length - 1];
      const step = { ArrowUp: -1, ArrowDown: 1 }[key];
      if (!step) return null;
      const middle = cell.x + cell.w / 2;
      let there = [];
      for (let r = cell.r + step; !there.length && r >= 0 && r < data.rows.length; r += step) {
        there = row(r);
      }
      return there.find((other) => middle < other.x + other.w) || there[there.length - 1];
    }
    // The listeners are not on the SVG itself, which would make it a tab stop of its own.
    const live = document.createElement("div");
    live.addEventListener("keydown", (event) => {
      const cell = cellOf(event.target);
      if (!cell || !/^(Arrow|Home$|End$)/.test(event.key)) return;
      event.preventDefault(); // or the page scrolls and JupyterLab goes to the next cell
      event.stopPropagation();
      const to = next(cell, event.key);
      if (to) focus(to);
    });
    live.addEventListener("focusin", (event) => show((focused = cellOf(event.target))));
    live.addEventListener("focusout", () => show((focused = null)));
    live.addEventListener("pointerover", (event) => show(cellOf(event.target) || focused));
    live.addEventListener("pointerleave", () => show(focused));
    live.addEventListener("click", (event) => {
      const cell = cellOf(event.target);
      if (cell) focus(cell);
    });

    show(null);
    if (cells.length) cells[0].node.setAttribute("tabindex", 0);
    live.style.cssText = `background:${tone("paper")};max-width:${data.width}px`;
    live.append(svg, says);
    return live;
  }

  // Some hosts run the script away from its place: then look for every picture still waiting.
  const script = document.currentScript;
  const own = script && script.closest(".pp-lab-timeline");
  for (const root of own ? [own] : document.querySelectorAll(".pp-lab-timeline")) {
    const image = root.querySelector(":scope > img");
    const data = root.querySelector(":scope > script[type='application/json']");
    if (image && data) image.replaceWith(draw(JSON.parse(data.textContent)));
  }
})();
