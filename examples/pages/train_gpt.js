// The page of train_gpt: the curve of its losses, and samples of the training run.
"use strict";

document.getElementById("facts").textContent =
  `${data.held.toFixed(3)} nats a character on the held-out tenth after ${Math.round(data.seconds)} s of training.`;

const box = { left: 46, right: 626, top: 14, bottom: 362 };
const curve = document.getElementById("curve");
const points = data.curve;
const lastStep = points.length ? points[points.length - 1].step : 1;
const losses = points.flatMap((p) => (p.held === undefined ? [p.loss] : [p.loss, p.held]));
const least = Math.floor(2 * Math.min(...losses, data.held)) / 2, most = Math.ceil(2 * Math.max(...losses, data.held)) / 2;
const x = (step) => box.left + ((box.right - box.left) * step) / lastStep;
const y = (loss) => box.bottom - ((box.bottom - box.top) * (loss - least)) / (most - least || 1);

for (let loss = least; loss <= most; loss += 0.5) {
  curve.append(make("line", { class: "axis", x1: box.left, x2: box.right, y1: y(loss), y2: y(loss) }));
  curve.append(make("text", { class: "quiet", x: box.left - 8, y: y(loss) + 4, "text-anchor": "end" }, loss.toFixed(1)));
}
for (let n = 0; n <= 4; ++n) {
  const step = Math.round((lastStep * n) / 4);
  curve.append(make("text", { class: "quiet", x: x(step), y: box.bottom + 20, "text-anchor": "middle" }, String(step)));
}
if (points.length) {
  const path = points.map((p, n) => `${n ? "L" : "M"}${x(p.step).toFixed(1)} ${y(p.loss).toFixed(1)}`).join("");
  curve.append(make("path", { class: "loss", d: path }));
}
for (const p of points.filter((p) => p.held !== undefined)) {
  const point = make("circle", { class: "held", cx: x(p.step), cy: y(p.held), r: 4, tabindex: 0 });
  const words = `step ${p.step}: ${p.held.toFixed(3)} on held-out text`;
  point.addEventListener("pointerenter", () => tell(point, words));
  point.addEventListener("pointerleave", () => tell());
  point.addEventListener("focus", () => tell(point, words));
  point.addEventListener("blur", () => tell());
  curve.append(point);
}
for (const sample of data.samples.slice().reverse()) {
  document.getElementById("samples").append(
    make("p", { class: "quiet" }, `after ${sample.step} steps`), make("pre", {}, sample.text));
}
