// Drawings of attention weights as SVG: small maps, a large map, and lines between the pieces.
// A weight w has the opacity √w, so that small weights are visible.
"use strict";

const SMALLEST_LINE = 0.005; // smaller weights get no line
const VALUE_WIDTH = 50; // pixels for a weight of four decimals

function svg(name, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// The cells of a map, with one path for each of `shades` levels of opacity.
function cells(weight, rows, columns, size, shades) {
  const paths = Array.from({ length: shades + 1 }, () => []);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const shade = Math.round(Math.sqrt(weight(row, column)) * shades);
      paths[shade].push(`M${column * size} ${row * size}h${size}v${size}h${-size}z`);
    }
  }
  const group = svg("g", { class: "cells" });
  for (let shade = 1; shade <= shades; shade++) {
    if (!paths[shade].length) continue;
    group.append(svg("path", { d: paths[shade].join(""), "fill-opacity": shade / shades }));
  }
  return group;
}

function thumbnail(weight, rows, columns) {
  const box = { viewBox: `0 0 ${columns} ${rows}`, "aria-hidden": "true" };
  return svg("svg", box, cells(weight, rows, columns, 1, 16));
}

function legend() {
  const items = [0.01, 0.1, 0.25, 0.5, 1].map((weight) => {
    const item = html("li", {});
    item.append(
      svg("svg", { viewBox: "0 0 1 1", "aria-hidden": "true" }, cells(() => weight, 1, 1, 1, 64)),
      String(weight),
    );
    return item;
  });
  return html("ul", { class: "legend", "aria-label": "Weights of the shades" }, ...items);
}

function textWidth(texts, element) {
  const context = document.createElement("canvas").getContext("2d");
  context.font = `600 13px ${getComputedStyle(element).fontFamily}`;
  return Math.ceil(Math.max(...texts.map((text) => context.measureText(text).width)));
}

function pair(view, row, column) {
  return [
    html("b", {}, view.kind.rows[row]), " ← ", html("b", {}, view.kind.columns[column]), " ",
    html("span", { class: "weight" }, view.weight(row, column).toFixed(4)),
  ];
}

// The large map: rows are queries, columns are keys.
class WeightMap {
  constructor(view) {
    const { rows, columns } = view.kind;
    const [rowWidth, columnWidth] = [textWidth(rows, view.stage), textWidth(columns, view.stage)];
    this.view = view;
    this.hint = "Point at a cell, or move with the arrow keys.";
    this.left = rowWidth + 10;
    this.top = Math.ceil(columnWidth * 0.87) + 16;
    const overhang = Math.ceil(columnWidth * 0.5) + 8;
    const room = view.stage.clientWidth - 8 - this.left - overhang;
    this.size = Math.floor(Math.max(18, Math.min(34, room / columns.length, 720 / rows.length)));
    const [width, height] = [this.size * columns.length, this.size * rows.length];
    this.svg = svg("svg", {
      width: this.left + width + overhang, height: this.top + height + 2, tabindex: 0,
      role: "application", "aria-label": `Weights of layer ${view.layer}, ${view.headName(view.head)}: ` +
        "a map with a row for each query; the arrow keys move between cells",
    });
    const weight = (row, column) => view.weight(row, column);
    this.cursor = svg("rect", { class: "cursor", width: this.size, height: this.size, visibility: "hidden" });
    this.rowLabels = rows.map((piece, row) => this.label(piece, {
      x: -8, y: (row + 0.5) * this.size, "text-anchor": "end",
    }));
    this.columnLabels = columns.map((piece, column) => this.label(piece, {
      transform: `translate(${(column + 0.5) * this.size} -8) rotate(-60)`,
    }));
    const frame = svg("rect", { class: "frame", x: -0.5, y: -0.5, width: width + 1, height: height + 1 });
    this.svg.append(svg(
      "g", { transform: `translate(${this.left} ${this.top})` }, ...this.rowLabels, ...this.columnLabels,
      frame, cells(weight, rows.length, columns.length, this.size, 100), this.cursor,
    ));
  }

  label(piece, attributes) {
    return svg("text", { class: "label", "dominant-baseline": "central", ...attributes }, piece);
  }

  pointAt(event) {
    const box = this.svg.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top - this.top) / this.size);
    const column = Math.floor((event.clientX - box.left - this.left) / this.size);
    const { rows, columns } = this.view.kind;
    return row in rows && column in columns ? [row, column] : null;
  }

  moved(point, [down, right]) {
    const { rows, columns } = this.view.kind;
    return point ? [within(point[0] + down, rows.length), within(point[1] + right, columns.length)] : [0, 0];
  }

  mark(point) {
    const [row, column] = point || [-1, -1];
    this.cursor.setAttribute("visibility", point ? "visible" : "hidden");
    this.cursor.setAttribute("x", column * this.size);
    this.cursor.setAttribute("y", row * this.size);
    this.rowLabels.forEach((label, i) => label.classList.toggle("chosen", i === row));
    this.columnLabels.forEach((label, i) => label.classList.toggle("chosen", i === column));
  }

  reading([row, column]) {
    return pair(this.view, row, column);
  }
}

// Lines from the keys (left) to the queries (right). Side 0 is the left one.
class WeightLines {
  constructor(view) {
    const sides = (this.sides = [view.kind.columns, view.kind.rows]);
    const names = [view.kind.column_side, view.kind.row_side];
    const widths = sides.map((pieces, side) => textWidth([...pieces, names[side]], view.stage));
    const room = view.stage.clientWidth - 8 - 2 * VALUE_WIDTH - widths[0] - widths[1] - 20;
    const gap = Math.max(100, Math.min(380, room));
    this.view = view;
    this.hint = "Point at a piece, or move with the arrow keys.";
    this.ends = [VALUE_WIDTH + widths[0], VALUE_WIDTH + widths[0] + gap + 20];
    this.size = 24;
    const width = this.ends[1] + widths[1] + VALUE_WIDTH;
    this.svg = svg("svg", {
      width, height: this.size * (Math.max(...sides.map((pieces) => pieces.length)) + 1) + 4,
      tabindex: 0, role: "application", "aria-label": `Weights of layer ${view.layer}, ` +
        `${view.headName(view.head)}: lines between keys (left) and queries (right); the arrow keys move ` +
        "between pieces",
    });
    this.lines = this.lineElements();
    this.svg.append(...this.lines.map((line) => line.element));
    this.labels = sides.map((pieces, side) => pieces.map((piece, i) => this.text(side, i, piece, "label", 0)));
    this.values = sides.map((pieces, side) => pieces.map((_, i) => this.text(side, i, "", "value", widths[side] + 8)));
    names.forEach((name, side) => this.svg.append(this.text(side, -1, name, "axis", 0)));
    this.svg.append(...this.labels.flat(), ...this.values.flat());
  }

  text(side, index, content, kind, distance) {
    return svg("text", {
      class: kind, x: this.ends[side] + (side ? distance : -distance), y: this.height(index),
      "text-anchor": side ? "start" : "end", "dominant-baseline": "central",
    }, content);
  }

  height(index) {
    return (index + 1.5) * this.size;
  }

  lineElements() {
    const [keys, queries] = this.sides;
    const [x1, x2] = [this.ends[0] + 8, this.ends[1] - 8];
    const middle = (x1 + x2) / 2;
    return queries.flatMap((_, row) => keys.flatMap((_, column) => {
      const weight = this.view.weight(row, column);
      if (weight < SMALLEST_LINE) return [];
      const [y1, y2] = [this.height(column), this.height(row)];
      const element = svg("path", {
        class: "link", d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`,
        "stroke-width": 0.75 + 3 * weight, "stroke-opacity": Math.sqrt(weight),
      });
      return [{ element, ends: [column, row] }];
    }));
  }

  pointAt(event) {
    const box = this.svg.getBoundingClientRect();
    const side = event.clientX - box.left < (this.ends[0] + this.ends[1]) / 2 ? 0 : 1;
    const index = Math.floor((event.clientY - box.top) / this.size) - 1;
    return index in this.sides[side] ? [side, index] : null;
  }

  moved(point, [down, right]) {
    if (!point) return [1, 0];
    const side = within(point[0] + right, 2);
    return [side, within(point[1] + down, this.sides[side].length)];
  }

  // The weight between a chosen piece and piece number `i` of the other side.
  weightTo([side, index], i) {
    return side ? this.view.weight(index, i) : this.view.weight(i, index);
  }

  mark(point) {
    const [side, index] = point || [-1, -1];
    for (const { element, ends } of this.lines) {
      element.classList.toggle("other", point !== null && ends[side] !== index);
    }
    this.labels.forEach((labels, s) => labels.forEach((label, i) => {
      label.classList.toggle("chosen", s === side && i === index);
    }));
    this.values.forEach((values, s) => values.forEach((value, i) => {
      value.textContent = point && s !== side ? this.weightTo(point, i).toFixed(4) : "";
    }));
  }

  reading([side, index]) {
    const others = this.sides[1 - side].map((_, i) => i);
    const best = others.sort((a, b) => this.weightTo([side, index], b) - this.weightTo([side, index], a))[0];
    return ["Largest: ", ...(side ? pair(this.view, index, best) : pair(this.view, best, index))];
  }
}
