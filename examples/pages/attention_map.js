// Draws the attention map from the data in the page: the grid of heads, the chosen one large, the text.
"use strict";

const { tokens, layers, heads } = data;
const n = tokens.length;
const weights = unpack(data.weights);

const grid = document.getElementById("grid");
const words = document.getElementById("words");
let chosen = fromAddress();
let cursor = null; // {query, key} in the large map, or a query alone
let map; // the large map's parts, see drawMap()
let colours = []; // of 1024 steps of the square root of a weight

// Three base-64 digits to a number in [0, 1].
function unpack(text) {
  const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const value = new Uint8Array(128);
  for (let i = 0; i < digits.length; ++i) value[digits.charCodeAt(i)] = i;
  const result = new Float32Array(text.length / 3);
  for (let i = 0; i < result.length; ++i) {
    const [a, b, c] = [0, 1, 2].map((at) => value[text.charCodeAt(3 * i + at)]);
    result[i] = ((a << 12) | (b << 6) | c) / (2 ** 18 - 1);
  }
  return result;
}

// The weights [query * n + key] of one head.
function weightsOf({ layer, head }) {
  const first = (layer * heads + head) * n * n;
  return weights.subarray(first, first + n * n);
}

function fromAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const number = (name, count) => Math.min(count - 1, Math.max(0, Math.trunc(Number(asked.get(name)) || 0)));
  return { layer: number("layer", layers), head: number("head", heads) };
}

// Colours.

function readColours() {
  const stops = getComputedStyle(document.documentElement).getPropertyValue("--scale").split(",").map((stop) => {
    const value = parseInt(stop.trim().slice(1), 16);
    return [value >> 16, (value >> 8) & 255, value & 255];
  });
  colours = Array.from({ length: 1024 }, (_, i) => {
    const at = (i / 1023) * (stops.length - 1);
    const below = Math.min(Math.floor(at), stops.length - 2);
    return stops[below].map((channel, c) => Math.round(channel + (at - below) * (stops[below + 1][c] - channel)));
  });
}
const colourOf = (weight) => colours[Math.round(Math.sqrt(weight) * 1023)];
const css = ([r, g, b]) => `rgb(${r},${g},${b})`;
// Relative luminance, by WCAG 2.
const luminanceOf = (colour) => {
  const [r, g, b] = colour.map((channel) => (channel <= 10 ? channel / 3294.6 : ((channel / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
// Black or white, whichever stands out: (L + 0.05) / 0.0566 or 1.05 / (L + 0.05).
const inkOn = (colour) => (luminanceOf(colour) > 0.194 ? "#101318" : "#ffffff");
const digits = (weight) => (weight < 0.00005 ? "< 0.0001" : weight.toFixed(4));

// What a head does.

const kinds = ["[CLS]", "[SEP]", "itself", "the token before", "the token after", "elsewhere"];

// The mean weight that goes to each kind of key; [CLS] and [SEP] come first.
function profileOf(head) {
  const w = weightsOf(head);
  const sums = new Array(kinds.length).fill(0);
  for (let q = 0; q < n; ++q) {
    for (let k = 0; k < n; ++k) {
      const kind = k === 0 ? 0 : k === n - 1 ? 1 : k === q ? 2 : k === q - 1 ? 3 : k === q + 1 ? 4 : 5;
      sums[kind] += w[q * n + k] / n;
    }
  }
  return sums;
}

function drawProfile() {
  document.getElementById("profile-title").textContent = `Where layer ${chosen.layer}, head ${chosen.head} puts its weight`;
  const profile = profileOf(chosen);
  document.getElementById("profile").replaceChildren(...kinds.flatMap((kind, i) => [
    make("span", {}, kind),
    make("span", { class: "bar", style: `width: ${Math.max(0.4, 100 * profile[i])}%` }),
    make("span", { class: "value" }, profile[i].toFixed(2)),
  ]));
}

// The grid of heads.

function makeGrid() {
  grid.style.setProperty("--heads", heads);
  grid.append(make("span"));
  for (let head = 0; head < heads; ++head) grid.append(make("span", { class: "number" }, String(head)));
  for (let layer = 0; layer < layers; ++layer) {
    grid.append(make("span", { class: "number" }, String(layer)));
    for (let head = 0; head < heads; ++head) {
      const profile = profileOf({ layer, head });
      const most = profile.indexOf(Math.max(...profile));
      const label = `Layer ${layer}, head ${head}: ${profile[most].toFixed(2)} to ${kinds[most]}`;
      grid.append(make("button", {
        type: "button", role: "radio", "data-layer": layer, "data-head": head, "aria-label": label, title: label,
      }, make("canvas", {
        // Sharp cells where they are larger than a pixel; else a mean of cells, since leaving some out hides diagonals.
        width: n, height: n, style: `image-rendering: ${n > 40 ? "auto" : "pixelated"}`,
      })));
    }
  }
  grid.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) choose({ layer: Number(button.dataset.layer), head: Number(button.dataset.head) });
  });
  grid.addEventListener("keydown", (event) => {
    const to = moved(event.key, [chosen.layer, chosen.head], [layers, heads]);
    if (!to) return;
    event.preventDefault();
    choose({ layer: to[0], head: to[1] });
    buttonOf(chosen).focus();
  });
}

// Where a key leads in a table of so many rows and columns, or nothing.
function moved(key, [row, column], [rows, columns]) {
  const to = {
    ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
    Home: [row, 0], End: [row, columns - 1], PageUp: [0, column], PageDown: [rows - 1, column],
  }[key];
  return to && [Math.min(rows - 1, Math.max(0, to[0])), Math.min(columns - 1, Math.max(0, to[1]))];
}

const buttonOf = ({ layer, head }) => grid.querySelector(`[data-layer="${layer}"][data-head="${head}"]`);

function paintGrid() {
  for (const button of grid.querySelectorAll("button")) {
    const w = weightsOf({ layer: Number(button.dataset.layer), head: Number(button.dataset.head) });
    const context = button.firstChild.getContext("2d");
    const image = context.createImageData(n, n);
    for (let i = 0; i < w.length; ++i) image.data.set([...colourOf(w[i]), 255], 4 * i);
    context.putImageData(image, 0, 0);
  }
}

// The large map.

const shorten = (token) => (token.length > 14 ? token.slice(0, 13) + "…" : token);

function makeMap() {
  // As large as there is room, in steps that leave the type its size: first the type, then its labels, then the cells.
  const room = Math.max(300, document.getElementById("map-place").clientWidth);
  const font = Math.min(13, Math.max(8, (0.8 * room) / n));
  const labels = Math.max(...tokens.map((token) => shorten(token).length)) * font * 0.62 + 8;
  const cell = Math.min(46, Math.max(2, (room - labels - 22) / n));
  const every = Math.ceil((font * 0.9) / cell); // labels that fit
  const [left, top] = [labels + 20, labels + 20];
  const [width, height] = [left + n * cell + 2, top + n * cell + 2];
  const svg = make("svg", {
    id: "map", viewBox: `0 0 ${width} ${height}`, width, height, tabindex: 0, role: "application", "aria-labelledby": "map-title", style: `font-size: ${font}px`,
  });
  const middle = (n * cell) / 2;
  svg.append(
    make("text", { class: "quiet", x: left + middle, y: 11, "text-anchor": "middle" }, "key"),
    make("text", { class: "quiet", x: 11, y: top + middle, "text-anchor": "middle", transform: `rotate(-90 11 ${top + middle})` }, "query"));
  const rows = [], columns = [], cells = [];
  tokens.forEach((token, i) => {
    const at = (i + 0.5) * cell;
    const hidden = i % every === 0 ? {} : { visibility: "hidden" };
    rows.push(make("text", { x: left - 6, y: top + at, "text-anchor": "end", "dominant-baseline": "central", ...hidden }, shorten(token)));
    columns.push(make("text", {
      x: 0, y: 0, "dominant-baseline": "central", transform: `translate(${left + at} ${top - 6}) rotate(-90)`, ...hidden,
    }, shorten(token)));
  });
  const gap = cell > 14 ? 1 : 0;
  const body = make("g", { "shape-rendering": "crispEdges" });
  for (let i = 0; i < n * n; ++i) {
    cells.push(make("rect", {
      class: "cell", x: left + (i % n) * cell, y: top + Math.floor(i / n) * cell, width: cell - gap, height: cell - gap, "data-cell": i,
    }));
  }
  body.append(...cells);
  const row = make("rect", { class: "band", x: left, width: n * cell - gap, height: cell - gap, visibility: "hidden" });
  const column = make("rect", { class: "band", y: top, width: cell - gap, height: n * cell - gap, visibility: "hidden" });
  const mark = make("rect", { class: "cursor", width: cell - gap, height: cell - gap, visibility: "hidden" });
  svg.append(...rows, ...columns, body, row, column, mark);
  document.getElementById("map-place").append(svg);
  map = { svg, rows, columns, cells, row, column, mark, left, top, cell, every };

  svg.addEventListener("pointermove", (event) => {
    // By place and not by element, since cells have gaps between them.
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const [query, key] = [Math.floor((at.y - top) / cell), Math.floor((at.x - left) / cell)];
    point(Math.min(query, key) < 0 || Math.max(query, key) >= n ? null : { query, key });
  });
  svg.addEventListener("pointerleave", () => point(null));
  svg.addEventListener("blur", () => point(null));
  svg.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return point(null);
    const at = cursor && cursor.key !== undefined ? [cursor.query, cursor.key] : null;
    const to = at ? moved(event.key, at, [n, n]) : moved(event.key, [0, 0], [n, n]) && [0, 0];
    if (!to) return;
    event.preventDefault();
    point({ query: to[0], key: to[1] });
  });
}

function paintMap() {
  const w = weightsOf(chosen);
  map.cells.forEach((cell, i) => cell.setAttribute("fill", css(colourOf(w[i]))));
  document.getElementById("map-title").textContent = `Layer ${chosen.layer}, head ${chosen.head}`;
}

// The text, each token as dark as the weight it gets: from the query under the cursor, or from all on average.

function makeWords() {
  tokens.forEach((token, i) => {
    const special = i === 0 || i === n - 1;
    const inner = token.startsWith("##");
    if (!inner) words.append(" ");
    words.append(make("span", { class: inner ? "inner" : special ? "special" : "", "data-token": i }, inner ? token.slice(2) : token));
  });
  words.addEventListener("pointerover", (event) => {
    const token = event.target.dataset.token;
    if (token !== undefined) point({ query: Number(token) });
  });
  words.addEventListener("pointerleave", () => point(null));
}

function paintWords() {
  const w = weightsOf(chosen);
  const query = cursor?.query;
  [...words.children].forEach((word, key) => {
    let weight = 0;
    if (query !== undefined) weight = w[query * n + key];
    else for (let q = 0; q < n; ++q) weight += w[q * n + key] / n;
    const colour = colourOf(weight);
    word.style.background = css(colour);
    word.style.color = inkOn(colour);
    word.classList.toggle("query", key === query);
  });
  document.getElementById("words-title").textContent = query === undefined
    ? "Where all tokens look, on average" : `Where “${tokens[query]}” looks`;
}

// Moves the cursor: to a cell, to a query, or away.
function point(to) {
  cursor = to;
  const { rows, columns, row, column, mark, left, top, cell, every } = map;
  const light = (labels, on) => labels.forEach((label, i) => {
    label.classList.toggle("on", i === on);
    // Where not every label fits, the one that matters stands alone among its neighbours.
    if (every > 1) {
      const shown = i === on || (i % every === 0 && !(on !== undefined && Math.abs(i - on) < every));
      label.setAttribute("visibility", shown ? "visible" : "hidden");
    }
  });
  light(rows, to?.query);
  light(columns, to?.key);
  const place = (element, attributes, shown) => {
    element.setAttribute("visibility", shown ? "visible" : "hidden");
    for (const [key, value] of Object.entries(attributes)) if (shown) element.setAttribute(key, value);
  };
  const [x, y] = [left + to?.key * cell, top + to?.query * cell];
  place(row, { y }, to !== null);
  place(column, { x }, to?.key !== undefined);
  place(mark, { x, y }, to?.key !== undefined);
  paintWords();
  paintTip();
}

function paintTip() {
  if (cursor?.key === undefined) return tell(null);
  const { query, key } = cursor;
  tell(map.cells[query * n + key],
    make("span", { class: "mono" }, tokens[query]), " looks at ", make("span", { class: "mono" }, tokens[key]), ": ",
    make("strong", {}, digits(weightsOf(chosen)[query * n + key])));
}

// The scale, with the weights where their colours are.

function paintLegend() {
  const [width, inset] = [320, 54];
  const svg = make("svg", { viewBox: `0 0 ${width + inset + 8} 30`, width: width + inset + 8, height: 30, role: "img", "aria-label": "Colours of weights from 0 to 1" });
  const bars = 80;
  for (let i = 0; i < bars; ++i) {
    svg.append(make("rect", {
      x: inset + (i * width) / bars, y: 0, width: width / bars + 0.5, height: 12, fill: css(colours[Math.round((i / (bars - 1)) * 1023)]),
    }));
  }
  for (const weight of [0, 0.01, 0.05, 0.1, 0.25, 0.5, 1]) {
    const x = inset + width * Math.sqrt(weight);
    svg.append(
      make("line", { class: "axis", x1: x, x2: x, y1: 12, y2: 17 }),
      make("text", { class: "quiet", x, y: 28, "text-anchor": "middle" }, String(weight)));
  }
  svg.append(make("text", { class: "quiet", x: 0, y: 10 }, "weight"));
  document.getElementById("legend").replaceChildren(svg);
}

// Everything that shows which head is chosen.
function choose(head) {
  chosen = head;
  for (const button of grid.querySelectorAll("button")) {
    const on = button === buttonOf(head);
    button.setAttribute("aria-checked", on);
    button.tabIndex = on ? 0 : -1;
  }
  history.replaceState(null, "", `#layer=${head.layer}&head=${head.head}`);
  paintMap();
  paintWords();
  paintTip();
  drawProfile();
}

function paint() {
  readColours();
  paintGrid();
  paintLegend();
  choose(chosen);
}

document.title = `Attention map: ${data.text.slice(0, 60)}`;
document.getElementById("facts").textContent =
  `${n} tokens, ${layers} layers of ${heads} heads. A weight is the share of a token's attention that another one gets.`;
makeGrid();
makeMap();
makeWords();
paint();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
const mapPlace = document.getElementById("map-place");
let mapWidth = mapPlace.clientWidth;
new ResizeObserver(() => {
  if (mapPlace.clientWidth === mapWidth) return;
  mapWidth = mapPlace.clientWidth;
  const focused = document.activeElement === map.svg;
  map.svg.remove();
  cursor = null;
  makeMap();
  choose(chosen);
  if (focused) map.svg.focus();
}).observe(mapPlace);
addEventListener("hashchange", () => choose(fromAddress()));
