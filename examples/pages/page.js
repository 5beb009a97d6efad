// Shared by all pages: the data, elements, and the read-out that follows pointer and focus.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const tip = document.getElementById("tip");
let told = null; // the element that the read-out describes

const svgNames = new Set(["svg", "g", "rect", "circle", "text", "line", "path"]);

function make(name, attributes = {}, ...children) {
  const element = svgNames.has(name) ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Shows the words below the element, within the window; hides them without an element.
function tell(element, ...words) {
  told = element;
  tip.replaceChildren(...words);
  if (!element) return;
  const box = element.getBoundingClientRect();
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = `${scrollX + Math.max(8, Math.min(room, box.left + box.width / 2))}px`;
  tip.style.top = `${scrollY + box.bottom + 10}px`;
}
addEventListener("resize", () => tell(told, ...tip.childNodes));
