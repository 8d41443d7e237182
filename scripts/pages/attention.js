// The attention view of a page: choices, an overview of all heads, and one map or lines.
// Its data is made by attention_data.py; the maps and lines are drawn by attention_maps.js.
"use strict";

class AttentionView {
  constructor(root, data) {
    this.root = root;
    this.kinds = data.kinds.map((kind) => ({ ...kind, weights: storedWeights(kind, data.levels) }));
    this.kind = this.kinds[this.kinds.length - 1];
    this.layer = this.kind.layers - 1;
    this.head = this.kind.heads; // the mean
    this.shown = "map";
    this.point = null; // [row, column] of the map, or [side, index] of the lines
    this.build(data);
    this.selectKind(this.kind);
    addEventListener("resize", () => this.drawMain());
  }

  build(data) {
    const kinds = this.kinds.map((kind) => [kind.label, () => this.selectKind(kind), kind === this.kind]);
    const views = [
      ["Map", () => this.selectView("map"), true],
      ["Lines", () => this.selectView("lines"), false],
    ];
    this.help = html("p", { class: "help" });
    this.overview = html("div", { class: "overview", role: "group" });
    this.title = html("h3", {});
    this.readout = html("output", { class: "readout", "aria-live": "polite" });
    this.stage = html("div", { class: "stage" });
    this.root.append(
      html("div", { class: "choices" }, choice("attention", kinds), choice("view", views)),
      this.help,
      html(
        "div",
        { class: "panels" },
        html("section", {}, html("h3", {}, "All layers and heads"), this.overview, legend()),
        html("section", {}, this.title, this.readout, this.stage),
      ),
      html("p", { class: "note" },
        `Weights are stored and shown as multiples of ${1 / data.levels} (nearest value). The opacity of a ` +
        "cell or line is the square root of its weight. Layers and heads are counted from 0. " +
        "Tab and the arrow keys reach every choice, head, cell and piece."),
    );
    this.overview.addEventListener("keydown", (event) => this.moveHead(event));
  }

  selectKind(kind) {
    this.kind = kind;
    this.layer = Math.min(this.layer, kind.layers - 1);
    this.head = Math.min(this.head, kind.heads);
    this.point = null;
    this.overview.setAttribute("aria-label", `Layers and heads: ${kind.label}`);
    this.drawOverview();
    this.drawMain();
  }

  selectView(view) {
    this.shown = view;
    this.point = null;
    this.drawMain();
  }

  selectHead(layer, head) {
    this.layer = layer;
    this.head = head;
    this.markHead();
    this.drawMain();
  }

  headName(head) {
    return head === this.kind.heads ? "mean of the heads" : `head ${head}`;
  }

  weight(row, column) {
    return this.kind.weights(this.layer, this.head, row, column);
  }

  drawOverview() {
    const { kind } = this;
    const short = (head) => (head === kind.heads ? "mean" : head);
    const cells = [html("span", { class: "name" }, "")];
    for (let head = 0; head <= kind.heads; head++) {
      cells.push(html("span", { class: "name", "aria-hidden": "true" }, short(head)));
    }
    this.buttons = [];
    for (let layer = 0; layer < kind.layers; layer++) {
      cells.push(html("span", { class: "name", "aria-hidden": "true" }, layer));
      for (let head = 0; head <= kind.heads; head++) {
        const button = html("button", {
          class: "head", type: "button", "aria-label": `layer ${layer}, ${this.headName(head)}`,
        });
        const weights = (row, column) => kind.weights(layer, head, row, column);
        button.append(thumbnail(weights, kind.rows.length, kind.columns.length));
        button.addEventListener("click", () => this.selectHead(layer, head));
        this.buttons.push(button);
        cells.push(button);
      }
    }
    this.overview.style.gridTemplateColumns = `1.2rem repeat(${kind.heads + 1}, minmax(0, 6rem))`;
    this.overview.replaceChildren(...cells);
    this.markHead();
  }

  markHead() {
    this.buttons.forEach((button, i) => {
      const chosen = i === this.layer * (this.kind.heads + 1) + this.head;
      button.setAttribute("aria-pressed", chosen);
      button.tabIndex = chosen ? 0 : -1;
    });
  }

  moveHead(event) {
    const step = ARROWS[event.key];
    if (!step) return;
    event.preventDefault(); // no scrolling
    const layer = within(this.layer + step[0], this.kind.layers);
    const head = within(this.head + step[1], this.kind.heads + 1);
    this.selectHead(layer, head);
    this.buttons[layer * (this.kind.heads + 1) + head].focus();
  }

  describe() {
    const { help, row_side: queries, column_side: keys } = this.kind;
    this.help.textContent = help + (this.shown === "map"
      ? ` Rows are queries (${queries}), columns are keys (${keys}).`
      : ` Keys (${keys}) are on the left, queries (${queries}) on the right.`);
  }

  drawMain() {
    this.describe();
    const focused = this.stage.contains(document.activeElement);
    this.title.textContent = `Layer ${this.layer}, ${this.headName(this.head)}`;
    this.drawing = new (this.shown === "map" ? WeightMap : WeightLines)(this);
    this.stage.replaceChildren(this.drawing.svg);
    this.drawing.svg.addEventListener("pointermove", (event) => this.setPoint(this.drawing.pointAt(event)));
    this.drawing.svg.addEventListener("pointerdown", (event) => this.setPoint(this.drawing.pointAt(event)));
    this.drawing.svg.addEventListener("keydown", (event) => this.movePoint(event));
    if (focused) this.drawing.svg.focus();
    this.setPoint(this.point);
  }

  movePoint(event) {
    const step = ARROWS[event.key];
    if (!step && event.key !== "Escape") return;
    event.preventDefault();
    this.setPoint(step ? this.drawing.moved(this.point, step) : null);
  }

  setPoint(point) {
    this.point = point;
    this.drawing.mark(point);
    this.readout.replaceChildren(...(point ? this.drawing.reading(point) : [this.drawing.hint]));
  }
}

const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

function within(index, size) {
  return Math.max(0, Math.min(size - 1, index));
}

// The stored weights of a kind as a function of layer, head, row and column; they are multiples of 1 / levels.
function storedWeights(kind, levels) {
  const bytes = atob(kind.weights);
  const [heads, rows, columns] = [kind.heads + 1, kind.rows.length, kind.columns.length];
  return (layer, head, row, column) => {
    const at = 2 * (((layer * heads + head) * rows + row) * columns + column);
    return (bytes.charCodeAt(at) + 256 * bytes.charCodeAt(at + 1)) / levels;
  };
}

// Radio buttons; options are [label, called when chosen, whether it is chosen at first].
function choice(name, options) {
  const group = html("fieldset", { "aria-label": name });
  const unique = `${name}-${document.querySelectorAll("fieldset").length}-${Math.random()}`;
  for (const [label, choose, checked] of options) {
    const input = html("input", { type: "radio", name: unique });
    input.checked = checked;
    input.addEventListener("change", choose);
    group.append(html("label", { class: "choice" }, input, html("span", {}, label)));
  }
  return group;
}

function html(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

for (const root of document.querySelectorAll(".attention")) {
  const data = JSON.parse(root.querySelector(".attention-data").textContent);
  new AttentionView(root, data);
}
