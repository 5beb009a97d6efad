// The large map of the chosen head: cells on a canvas, however many there are, and above it tokens and cursor.
"use strict";

class LargeMap {
  // Calls `point` with {query, key} where the pointer or an arrow key leads, and with null when they leave.
  constructor(place, point) {
    this.place = place;
    this.point = point;
    this.cursor = null;
  }

  // Draws the frame of the tokens [first, last) as large as there is room: the type keeps its size, cells shrink.
  layOut(first, last) {
    const hadFocus = this.element?.contains(document.activeElement);
    this.first = first;
    this.count = last - first;
    const count = this.count;
    const room = Math.max(280, this.place.clientWidth);
    const font = 12;
    const most = room < 420 ? 9 : 14;
    const shown = tokens.slice(first, last).map((token) => shorten(token, most));
    const labels = Math.ceil(Math.max(3, ...shown.map((token) => [...token].length)) * font * 0.62 + 8);
    const height = Math.max(0.88 * innerHeight, 560);
    let cell = Math.min(46, (Math.min(room, height) - labels - 22) / count);
    if (cell >= 4) cell = Math.floor(cell);
    this.cell = cell;
    this.every = Math.ceil((font * 1.2) / cell); // labels that do not touch
    this.left = this.top = labels + 20;
    const size = count * cell;

    const svg = make("svg", { width: this.left + size + 1, height: this.top + size + 1 });
    const middle = size / 2;
    svg.append(
      make("text", { class: "quiet", x: this.left + middle, y: 11, "text-anchor": "middle" }, "key"),
      make("text", {
        class: "quiet", x: 0, y: 0, "text-anchor": "middle", transform: `translate(11 ${this.top + middle}) rotate(-90)`,
      }, "query"));
    const label = (i, attributes) => make("text", {
      class: "label", "dominant-baseline": "central", ...(i % this.every ? { visibility: "hidden" } : {}), ...attributes,
    }, shown[i]);
    const middles = shown.map((_, i) => (i + 0.5) * cell);
    this.rows = middles.map((at, i) => label(i, { x: this.left - 6, y: this.top + at, "text-anchor": "end" }));
    this.columns = middles.map((at, i) => label(i, {
      x: 0, y: 0, transform: `translate(${this.left + at} ${this.top - 6}) rotate(-90)`,
    }));
    this.row = make("rect", { class: "band", x: this.left, width: size, height: cell, visibility: "hidden" });
    this.column = make("rect", { class: "band", y: this.top, width: cell, height: size, visibility: "hidden" });
    this.mark = make("rect", { class: "cursor", width: cell, height: cell, visibility: "hidden" });
    svg.append(...this.rows, ...this.columns);
    if (cell > 14) {
      const lines = Array.from({ length: count - 1 }, (_, i) => (i + 1) * cell);
      const d = lines.map((at) => `M${this.left} ${this.top + at}h${size}M${this.left + at} ${this.top}v${size}`).join("");
      svg.append(make("path", { class: "gaps", d }));
    }
    svg.append(this.row, this.column, this.mark);
    // Cells larger than a pixel are drawn one by one; smaller ones as means of cells, since leaving some out hides
    // diagonals.
    this.canvas = make("canvas", {
      width: count, height: count,
      style: `left: ${this.left}px; top: ${this.top}px; width: ${size}px; height: ${size}px; image-rendering: ${cell < 1 ? "auto" : "pixelated"}`,
    });
    this.element?.remove();
    this.element = make("div", { id: "map", tabindex: 0, role: "application", "aria-labelledby": "map-title" }, this.canvas, svg);
    this.listen();
    this.place.append(this.element);
    if (hadFocus) this.element.focus();
  }

  listen() {
    const element = this.element;
    const last = this.first + this.count;
    element.addEventListener("pointermove", (event) => {
      const box = this.canvas.getBoundingClientRect();
      const at = (offset, size) => this.first + Math.floor((offset / size) * this.count);
      const [query, key] = [at(event.clientY - box.top, box.height), at(event.clientX - box.left, box.width)];
      const outside = Math.min(query, key) < this.first || Math.max(query, key) >= last;
      this.point(outside ? null : { query, key });
    });
    element.addEventListener("pointerleave", () => this.point(null));
    element.addEventListener("blur", () => this.point(null));
    element.addEventListener("keydown", (event) => {
      if (event.key === "Escape") return this.point(null);
      const at = this.cursor?.key === undefined ? null : [this.cursor.query - this.first, this.cursor.key - this.first];
      const to = moved(event.key, at ?? [0, 0], [this.count, this.count]);
      if (!to) return;
      event.preventDefault();
      const [query, key] = at ? to : [0, 0];
      this.point({ query: this.first + query, key: this.first + key });
    });
  }

  // `shadeOf` gives a weight's index in `palette`.
  paint(w, palette, shadeOf) {
    paintCells(this.canvas, w, this.first, palette, shadeOf);
  }

  // Shows the cursor on a cell, on a query alone, or nowhere.
  show(cursor) {
    this.cursor = cursor;
    const isIn = (token) => token !== undefined && token >= this.first && token < this.first + this.count;
    const [query, key] = [cursor?.query, cursor?.key].map((token) => (isIn(token) ? token - this.first : undefined));
    const light = (labels, on) => labels.forEach((label, i) => {
      label.classList.toggle("on", i === on);
      // If not every label fits, the cursor's label hides its neighbours.
      if (this.every > 1) {
        const shown = i === on || (i % this.every === 0 && !(on !== undefined && Math.abs(i - on) < this.every));
        label.setAttribute("visibility", shown ? "visible" : "hidden");
      }
    });
    light(this.rows, query);
    light(this.columns, key);
    const put = (element, place, shown) => {
      element.setAttribute("visibility", shown ? "visible" : "hidden");
      if (shown) for (const [name, value] of Object.entries(place)) element.setAttribute(name, value);
    };
    const [x, y] = [this.left + key * this.cell, this.top + query * this.cell];
    put(this.row, { y }, query !== undefined);
    put(this.column, { x }, key !== undefined);
    put(this.mark, { x, y }, query !== undefined && key !== undefined);
  }
}

// Shortens a token, without cutting a character in two.
function shorten(token, most) {
  const letters = [...token];
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : token;
}

// The cell that a key moves to in a table of this many rows and columns, or null.
function moved(key, [row, column], [rows, columns]) {
  const to = {
    ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
    Home: [row, 0], End: [row, columns - 1], PageUp: [0, column], PageDown: [rows - 1, column],
  }[key];
  return to && [Math.min(rows - 1, Math.max(0, to[0])), Math.min(columns - 1, Math.max(0, to[1]))];
}

// Draws one pixel for each pair of tokens from `first` on, as many as the canvas is wide.
function paintCells(canvas, w, first, palette, shadeOf) {
  const count = canvas.width;
  const image = new ImageData(count, count);
  const pixels = new Uint32Array(image.data.buffer);
  for (let q = 0; q < count; ++q) {
    const row = (first + q) * n + first;
    for (let k = 0; k < count; ++k) pixels[q * count + k] = palette[shadeOf(w[row + k])];
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}
