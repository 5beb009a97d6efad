// Draws the report from the data in the page: rooflines of one thread and of all, and each row
// beside its target.
"use strict";

const {machine, rows} = data;

const number = (x) =>
  (x === null                            ? "–"
     : x >= 1000 || (x < 0.001 && x > 0) ? x.toPrecision(3)
                                         : String(Number(x.toPrecision(3))));
const size = (bytes) =>
  (bytes < 2 ** 20 ? `${bytes / 2 ** 10} KiB` : `${number(bytes / 2 ** 20)} MiB`);
const ratio = (x) => (x < 0.1 ? number(x) : x.toFixed(2));
const nameOf = (row) => row.name.replace("@all", "");
const onAll = (row) => row.name.endsWith("@all");
const threads = (all) => (all && machine.threads > 1 ? `${machine.threads} threads` : "one thread");

function explain(row) {
  const parts = [
    `${number(row.value)} ${row.unit}`,
    row.limit === null ? "" : `${row.limit_is}: ${number(row.limit)} ${row.unit}`,
    row.target ? `target: ${row.target.is} ${number(row.target.at)}${
                   row.target.of === "value" ? " " + row.unit : ""}`
               : "",
    row.flops_per_byte ? `${number(row.gflops)} GFLOP/s at ${number(row.flops_per_byte)} FLOP/byte`
                       : "",
    row.note,
    row.times_measured > 1 ? `measured ${row.times_measured} times` : "",
    row.disturbed ? `disturbed: ${row.disturbed}` : "",
  ];
  return parts.filter(Boolean).join("; ");
}

// The read-out follows the pointer and, for elements without a text, the keyboard focus.
function explains(element, row) {
  const show = () => tell(element, make("strong", {class: "mono"}, row.name), " ", explain(row));
  const hide = () => tell(null);
  for (const [event, action] of [
         ["pointerenter", show], ["focus", show], ["pointerleave", hide], ["blur", hide]]) {
    element.addEventListener(event, action);
  }
}

// Roofline.

// If several rows share a place, such as one query and its decoding, the first one is named.
function placesOf(all) {
  const seen = new Set();
  return rows.filter((row) => {
    const place = `${row.flops_per_byte} ${row.gflops}`;
    if (onAll(row) !== all || !row.gflops || !row.flops_per_byte || seen.has(place)) return false;
    seen.add(place);
    return true;
  });
}

function roofline(all) {
  const places = placesOf(all);
  const which = all ? "all" : "one";
  const peaks = Object.entries(machine.peak_gflops ?? {})
                  .map(([isa, peak]) => ({isa, at: peak[which]}))
                  .filter(({at}) => at > 0);
  // The largest buffer is the likeliest to lie in memory and not in a cache.
  const read = (machine.read_gbytes ?? [])
                 .filter((each) => each[which] > 0)
                 .sort((a, b) => b.bytes - a.bytes)[0];
  if (places.length === 0 || peaks.length === 0) return null;
  const highest = Math.max(...peaks.map((peak) => peak.at));

  const [width, height, left, right, top, bottom] = [640, 420, 52, 14, 16, 44];
  const intensities = places.map((row) => row.flops_per_byte);
  const speeds = [...places.map((row) => row.gflops), ...peaks.map((peak) => peak.at)];
  const xs =
    [Math.min(0.25, ...intensities) / 1.3, Math.max(1024, ...intensities) * 1.3].map(Math.log2);
  const ys = [Math.min(...speeds) / 1.5, Math.max(...speeds) * 1.6].map(Math.log2);
  const x = (value) =>
    left + ((Math.log2(value) - xs[0]) / (xs[1] - xs[0])) * (width - left - right);
  const y = (value) =>
    height - bottom - ((Math.log2(value) - ys[0]) / (ys[1] - ys[0])) * (height - top - bottom);
  const powers = ([from, to], step) => {
    const result = [];
    for (let power = Math.ceil(from); power <= to; ++power)
      if (power % step === 0) result.push(2 ** power);
    return result;
  };

  const svg = make("svg", {
    viewBox: `0 0 ${width} ${height}`,
    width: "100%",
    role: "group",
    "aria-label": `Roofline, ${threads(all)}`
  });
  for (const tick of powers(xs, 2)) {
    svg.append(
      make("line", {class: "axis", x1: x(tick), x2: x(tick), y1: top, y2: height - bottom}),
      make(
        "text", {class: "quiet", x: x(tick), y: height - bottom + 16, "text-anchor": "middle"},
        tick < 1 ? `1/${1 / tick}` : String(tick)));
  }
  for (const tick of powers(ys, ys[1] - ys[0] > 6 ? 2 : 1)) {
    svg.append(
      make("line", {class: "axis", x1: left, x2: width - right, y1: y(tick), y2: y(tick)}),
      make(
        "text", {class: "quiet", x: left - 7, y: y(tick) + 4, "text-anchor": "end"}, number(tick)));
  }
  svg.append(
    make(
      "text",
      {class: "quiet", x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle"},
      "FLOP per byte"),
    make(
      "text", {
        class: "quiet",
        x: 0,
        y: 0,
        transform: `translate(13 ${(top + height - bottom) / 2}) rotate(-90)`,
        "text-anchor": "middle"
      },
      "GFLOP/s"));

  // Boxes that a name must not cover; each name takes the first place around its dot that is free.
  const taken = [];
  const free = (box) => box.x >= left && box.x + box.w <= width - 2 && box.y >= 2 &&
    box.y + box.h <= height - bottom &&
    !taken.some(
      (other) => box.x < other.x + other.w && other.x < box.x + box.w &&
        box.y < other.y + other.h && other.y < box.y + box.h);

  // Draws only the limiting part of a line: the slope up to the ridge, a peak from there on.
  if (read) {
    const at = read[which];
    const from = Math.max(2 ** xs[0], 2 ** ys[0] / at);
    svg.append(make(
      "path", {class: "roof", d: `M${x(from)} ${y(from * at)}L${x(highest / at)} ${y(highest)}`}));
    const angle = Math.atan2(y(2 * at) - y(at), x(2) - x(1));
    const [footX, footY] = [x(from * 1.25), y(from * 1.25 * at)];
    const text = `${number(at)} GB/s over ${size(read.bytes)}`;
    svg.append(make(
      "text", {
        class: "name",
        transform: `translate(${footX} ${footY}) rotate(${(angle * 180) / Math.PI})`,
        x: 0,
        y: -7
      },
      text));
    for (let along = 0; along < 6.5 * text.length; along += 8) {
      taken.push({
        x: footX + along * Math.cos(angle) - 14,
        y: footY + along * Math.sin(angle) - 14,
        w: 18,
        h: 18
      });
    }
  }
  for (const {isa, at} of peaks) {
    const from = read ? at / read[which] : 2 ** xs[0];
    svg.append(
      make("path", {class: "roof", d: `M${x(from)} ${y(at)}H${width - right}`}),
      make(
        "text", {class: "name", x: width - right, y: y(at) - 6, "text-anchor": "end"},
        `${isa} peak, ${number(at)} GFLOP/s`));
    taken.push({x: width - right - 190, y: y(at) - 19, w: 190, h: 24});
  }

  const queries = places.filter(
    (row) => row.name.startsWith("sdpa_queries_") || row.name.startsWith("sdpa_decode@") ||
      row.name === "sdpa_decode");
  svg.append(make("path", {
    class: "walk",
    d: queries.map((row, i) => `${i ? "L" : "M"}${x(row.flops_per_byte)} ${y(row.gflops)}`).join("")
  }));
  for (const row of places)
    taken.push({x: x(row.flops_per_byte) - 5, y: y(row.gflops) - 5, w: 10, h: 10});
  const dots = places.map((row) => {
    const [px, py] = [x(row.flops_per_byte), y(row.gflops)];
    const name = nameOf(row);
    const w = name.length * 6.5 + 2;
    const around = [
      [9, 4], [-9 - w, 4], [-w / 2, -9], [-w / 2, 17], [9, -7], [9, 15], [-9 - w, -7], [-9 - w, 15],
      [9, -20], [9, 28], [-9 - w, 28], [-w / 2, 32]
    ];
    const place = around.find(([dx, dy]) => free({x: px + dx, y: py + dy - 11, w, h: 13}));
    if (place) {
      taken.push({x: px + place[0], y: py + place[1] - 11, w, h: 13});
      svg.append(make("text", {class: "name", x: px + place[0], y: py + place[1]}, name));
    }
    const dot = make("circle", {class: "dot", cx: px, cy: py, r: 5, role: "img"});
    dot.setAttribute("tabindex", 0);
    dot.setAttribute("aria-label", `${row.name}: ${explain(row)}`);
    explains(dot, row);
    return dot;
  });
  svg.append(...dots);
  return make("div", {}, make("h2", {class: "quiet"}, threads(all)), svg);
}

// Bars. `shown` of a row is the length of its bar, in the unit of its target.

const judged =
  rows.filter((row) => row.target && row.value !== null && row.ratio !== null).map((row) => {
    const shown = row.target.of === "value" ? row.value : row.ratio;
    return {
      row,
      met: row.target.is === "at least" ? shown >= row.target.at : shown <= row.target.at
    };
  });
const isShare = (row) => /peak|bandwidth/.test(row.limit_is) && row.unit !== "us";

function bar(row, scale) {
  if (!row || row.value === null) {
    const absent =
      make("div", row ? {class: "value quiet", "data-row": row.name} : {}, row ? "absent" : "");
    if (row) explains(absent, row);
    return absent;
  }
  const ofValue = row.target ? row.target.of === "value" : row.ratio === null || row.unit === "us";
  const shown = ofValue ? row.value : row.ratio;
  const end = scale(row);
  const percent = (value) => `${Math.min(100, (100 * value) / end)}%`;
  const missed = judged.some((each) => each.row === row && !each.met);
  const track = make("div", {class: "track"}, make("i", {style: `width: ${percent(shown)}`}));
  if (row.target) track.append(make("b", {style: `left: ${percent(row.target.at)}`}));
  const value = make(
    "div", {class: "value"},
    make("strong", {}, ofValue ? `${number(shown)} ${row.unit}` : ratio(shown)));
  if (row.disturbed)
    value.append(make("span", {}, " disturbed"));
  else if (row.target)
    value.append(make(
      "span", {},
      ` ${missed ? "misses" : "meets"} ${ofValue ? number(row.target.at) : ratio(row.target.at)}`));
  const element = make(
    "div", {
      class: ["row", missed && "missed", row.disturbed && "disturbed"].filter(Boolean).join(" "),
      "data-row": row.name
    },
    track, value);
  explains(element, row);
  return element;
}

function bars(place, kept, scale) {
  const element = document.getElementById(place);
  element.append(
    make("span"), make("span", {class: "head"}, threads(false)),
    make("span", {class: "head"}, threads(true)));
  for (const name of new Set(kept.map(nameOf))) {
    const of = (all) => kept.find((row) => nameOf(row) === name && onAll(row) === all);
    element.append(
      make("span", {class: "mono"}, name), bar(of(false), scale), bar(of(true), scale));
  }
}

document.getElementById("machine").textContent = [
  machine.name,
  machine.isa,
  (machine.caches ?? []).map((cache) => `L${cache.level} ${size(cache.bytes)}`).join(", "),
  threads(true),
  machine.compiler && `compiler ${machine.compiler}`,
].filter(Boolean).join(" · ");
const roofs = [false, true].map(roofline).filter(Boolean);
document.getElementById("roofs").append(
  ...(roofs.length ? roofs : [make("p", {}, "The report tells neither peak nor intensity.")]));
bars("shares", rows.filter(isShare), () => 1);
// The scale ends at twice the target of the row or of its counterpart; longer bars are cut there.
bars("costs", rows.filter((row) => !isShare(row)), (row) => {
  const target =
    row.target ?? rows.find((other) => nameOf(other) === nameOf(row) && other.target)?.target;
  return target ? 2 * target.at : 2;
});
const met = judged.filter((each) => each.met).length;
document.getElementById("targets").textContent =
  `${met} of ${judged.length} targets met on this machine; they are meant for machines with ` +
  "AVX-512 that nobody else uses.";
