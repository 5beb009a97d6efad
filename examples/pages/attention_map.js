// The attention map's page: a large map of the chosen head, the text, and the grid of all heads.
"use strict";

const grid = document.getElementById("grid");
const words = document.getElementById("words");
const hideEnds = document.getElementById("hide-ends"); // [CLS] and [SEP], or the first token
const ownScale = document.getElementById("own-scale");
const kShades = 1024; // steps of the square root of a weight
let colours = []; // [r, g, b] of each
let palette; // the colours as pixels
let chosen = fromAddress() ?? mostStructured();
let cursor = null; // {query, key} in the large map, or a query alone
const map = new LargeMap(document.getElementById("map-place"), point);

// The head in the page's address, if any.
function fromAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  if (!asked.has("layer") && !asked.has("head")) return null;
  const number = (name, count) => Math.min(count - 1, Math.max(0, Math.trunc(Number(asked.get(name)) || 0)));
  return { layer: number("layer", layers), head: number("head", heads) };
}

// The range of shown tokens, [first, last).
const shownTokens = () => (hideEnds.checked ? inner : [0, n]);

// Colours.

function readColours() {
  const stops = getComputedStyle(document.documentElement).getPropertyValue("--scale").split(",").map((stop) => {
    const value = parseInt(stop.trim().slice(1), 16);
    return [value >> 16, (value >> 8) & 255, value & 255];
  });
  colours = Array.from({ length: kShades }, (_, i) => {
    const at = (i / (kShades - 1)) * (stops.length - 1);
    const below = Math.min(Math.floor(at), stops.length - 2);
    return stops[below].map((channel, c) => Math.round(channel + (at - below) * (stops[below + 1][c] - channel)));
  });
  palette = new Uint32Array(new Uint8Array(colours.flatMap((colour) => [...colour, 255])).buffer);
}
// The weight of the last colour: 1, or the head's largest shown weight.
function fullScaleOf(head) {
  if (!ownScale.checked) return 1;
  const w = weightsOf(head);
  const [first, last] = shownTokens();
  let most = 0;
  for (let q = first; q < last; ++q) for (let k = first; k < last; ++k) most = Math.max(most, w[q * n + k]);
  return most || 1;
}
const shadeFor = (full) => (weight) => Math.round(Math.sqrt(Math.min(1, weight / full)) * (kShades - 1));
const css = ([r, g, b]) => `rgb(${r},${g},${b})`;
// Relative luminance, by WCAG 2.
const luminanceOf = (colour) => {
  const [r, g, b] = colour.map((channel) => (channel <= 10 ? channel / 3294.6 : ((channel / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
// Black or white, whichever stands out: (L + 0.05) / 0.0566 or 1.05 / (L + 0.05).
const inkOn = (colour) => (luminanceOf(colour) > 0.194 ? "#101318" : "#ffffff");
const digits = (weight) => (weight < 0.00005 ? "< 0.0001" : weight.toFixed(4));
const nameOf = ({ layer, head }) => `Layer ${layer}, head ${head}`;

function paintProfile() {
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
      const label = `${nameOf({ layer, head })}: ${profile[most].toFixed(2)} to ${kinds[most]}`;
      grid.append(make("button", {
        type: "button", role: "radio", "data-layer": layer, "data-head": head, "aria-label": label, title: label,
      }, make("canvas")));
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

const buttonOf = ({ layer, head }) => grid.querySelector(`[data-layer="${layer}"][data-head="${head}"]`);

function paintGrid() {
  const [first, last] = shownTokens();
  for (const button of grid.querySelectorAll("button")) {
    const head = { layer: Number(button.dataset.layer), head: Number(button.dataset.head) };
    const canvas = button.firstChild;
    canvas.width = canvas.height = last - first;
    canvas.style.imageRendering = last - first > 40 ? "auto" : "pixelated";
    paintCells(canvas, weightsOf(head), first, palette, shadeFor(fullScaleOf(head)));
  }
}

// The text, each token as dark as the weight it gets: from the query under the cursor, or the mean over all queries.

function makeWords() {
  tokens.forEach((token, i) => {
    const special = !decodes && (i === 0 || i === n - 1);
    const goesOn = decodes ? !/^\s/.test(data.tokens[i]) : token.startsWith("##"); // a token that continues a word
    if (!goesOn) words.append(" ");
    const letters = goesOn && !decodes ? token.slice(2) : token;
    words.append(make("span", { class: goesOn ? "inner" : special ? "special" : "", "data-token": i }, letters));
  });
  words.addEventListener("pointerover", (event) => {
    const token = event.target.dataset.token;
    if (token !== undefined) point({ query: Number(token) });
  });
  words.addEventListener("pointerleave", () => point(null));
}

function paintWords() {
  const w = weightsOf(chosen);
  const shadeOf = shadeFor(fullScaleOf(chosen));
  const [first, last] = shownTokens();
  const query = cursor?.query;
  [...words.children].forEach((word, key) => {
    let weight = 0;
    if (query !== undefined) weight = w[query * n + key];
    else for (let q = first; q < last; ++q) weight += w[q * n + key] / (last - first);
    const colour = colours[shadeOf(weight)];
    word.hidden = key < first || key >= last;
    word.style.background = css(colour);
    word.style.color = inkOn(colour);
    word.classList.toggle("query", key === query);
  });
  document.getElementById("words-title").textContent = query === undefined
    ? "Where all tokens look, on average" : `Where “${tokens[query]}” looks`;
}

// Moves the cursor to a cell or a query, or removes it.
function point(to) {
  cursor = to;
  map.show(cursor);
  paintWords();
  paintTip();
}

function paintTip() {
  if (cursor?.key === undefined) return tell(null);
  const { query, key } = cursor;
  tell(map.mark,
    make("span", { class: "mono" }, tokens[query]), " looks at ", make("span", { class: "mono" }, tokens[key]), ": ",
    make("strong", {}, digits(weightsOf(chosen)[query * n + key])));
}

// The colour scale, with weights below their colours.

function paintLegend() {
  const full = fullScaleOf(chosen);
  const [width, inset] = [320, 54];
  const svg = make("svg", {
    viewBox: `0 0 ${width + inset + 20} 30`, width: width + inset + 20, height: 30, role: "img",
    "aria-label": `Colours of weights from 0 to ${Number(full.toPrecision(2))}`,
  });
  const bars = 80;
  for (let i = 0; i < bars; ++i) {
    svg.append(make("rect", {
      x: inset + (i * width) / bars, y: 0, width: width / bars + 0.5, height: 12,
      fill: css(colours[Math.round((i / (bars - 1)) * (kShades - 1))]),
    }));
  }
  // Fewer numbers if they are longer.
  for (const part of full === 1 ? [0, 0.01, 0.05, 0.1, 0.25, 0.5, 1] : [0, 0.05, 0.25, 0.5, 1]) {
    const x = inset + width * Math.sqrt(part);
    svg.append(
      make("line", { class: "axis", x1: x, x2: x, y1: 12, y2: 17 }),
      make("text", { class: "quiet", x, y: 28, "text-anchor": "middle" }, String(Number((part * full).toPrecision(2)))));
  }
  svg.append(make("text", { class: "quiet", x: 0, y: 10 }, "weight"));
  document.getElementById("legend").replaceChildren(svg);
}

// Updates everything that shows the chosen head.
function choose(head) {
  chosen = head;
  for (const button of grid.querySelectorAll("button")) {
    const on = button === buttonOf(head);
    button.setAttribute("aria-checked", on);
    button.tabIndex = on ? 0 : -1;
  }
  history.replaceState(null, "", `#layer=${head.layer}&head=${head.head}`);
  document.getElementById("map-title").textContent = nameOf(head);
  map.paint(weightsOf(head), palette, shadeFor(fullScaleOf(head)));
  paintLegend();
  paintWords();
  paintTip();
  paintProfile();
}

// Redraws everything with other colours or other tokens.
function paint() {
  readColours();
  point(null);
  map.layOut(...shownTokens());
  paintGrid();
  choose(chosen);
}

// The text with control and direction-changing characters as escapes, so that they cannot change the page's own text.
const typed = data.text.replace(
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
  (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
document.title = `${shorten(typed.replace(/\s+/g, " ").trim(), 60)} · Attention map`;
const typedPlace = document.getElementById("typed");
typedPlace.textContent = typed;
if (typedPlace.scrollHeight > typedPlace.clientHeight) typedPlace.tabIndex = 0; // lets keys scroll it
document.querySelector(".columns").classList.toggle("long", n > 100); // moves the map before the text
document.getElementById("facts").textContent =
  (data.numTokens > n ? `The text is cut: of its ${data.numTokens} tokens the model reads ${n}. ` : `${n} tokens. `) +
  `${layers} layers of ${heads} heads. A weight is the share of a token's attention that another one gets.`;
document.getElementById("title").textContent = `What ${data.model} attends to`;
document.querySelector("footer").prepend(data.fullName);
document.getElementById("first-layer").textContent = data.firstLayer;
hideEnds.after(decodes ? "Hide the first token" : "Hide [CLS] and [SEP]");
hideEnds.disabled = inner[1] <= inner[0];
map.layOut(...shownTokens());
makeGrid();
makeWords();
paint();
hideEnds.addEventListener("change", paint);
ownScale.addEventListener("change", paint);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
let mapWidth = map.place.clientWidth;
new ResizeObserver(() => {
  if (map.place.clientWidth === mapWidth) return;
  mapWidth = map.place.clientWidth;
  paint();
}).observe(map.place);
addEventListener("hashchange", () => choose(fromAddress() ?? chosen));
