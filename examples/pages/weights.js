// The weights of the page's heads: unpacked from the data, and what each head does with them.
"use strict";

const { layers, heads, decodes } = data;
// A decoder's tokens are pieces of the text: white space around their letters is not shown, nor is it all that is.
const tokens = !decodes ? data.tokens : data.tokens.map((token) => token.trim() || (token.includes("\n") ? "\u21b5" : "\u2423"));
const n = tokens.length;
// Those in which heads rest are no words: [CLS] and [SEP], the first token of a decoder. The words are [first, last).
const inner = [1, decodes ? n : n - 1];
const weights = unpack(data.weights, layers * heads * n * n);

// Hundred-thousandths, in base-64 digits of which small numbers take one; attention_map.cpp has the other half.
function unpack(text, count) {
  const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const value = new Uint8Array(128);
  for (let i = 0; i < digits.length; ++i) value[digits.charCodeAt(i)] = i;
  let at = 0;
  const next = () => value[text.charCodeAt(at++)];
  const result = new Float32Array(count);
  for (let i = 0; i < count; ++i) {
    const first = next();
    let number;
    if (first < 32) number = first;
    else if (first < 60) number = 32 + (first - 32) * 64 + next();
    else if (first < 63) number = 1824 + ((first - 60) * 64 + next()) * 64 + next();
    else number = 14112 + (next() * 64 + next()) * 64 + next();
    result[i] = number / 1e5;
  }
  return result;
}

// The weights [query * n + key] of one head.
function weightsOf({ layer, head }) {
  const first = (layer * heads + head) * n * n;
  return weights.subarray(first, first + n * n);
}

const kinds = decodes ? ["the first token", "itself", "the token before", "elsewhere"]
  : ["[CLS]", "[SEP]", "itself", "the token before", "the token after", "elsewhere"];

function kindOf(q, k) {
  const itself = decodes ? 1 : 2;
  if (k === 0) return 0;
  if (!decodes && k === n - 1) return 1;
  if (k === q) return itself;
  if (k === q - 1) return itself + 1;
  return !decodes && k === q + 1 ? 4 : kinds.length - 1;
}

// The mean weight that goes to each kind of key; those where heads rest come first.
function profileOf(head) {
  const w = weightsOf(head);
  const sums = new Array(kinds.length).fill(0);
  for (let q = 0; q < n; ++q) {
    for (let k = 0; k < n; ++k) sums[kindOf(q, k)] += w[q * n + k];
  }
  return sums.map((sum) => sum / n);
}

// How much of its weight a head gives to few words other than the one that looks: the share of a query that goes to the
// other words, less as much of it as its entropy has of the largest possible.
function structureOf(head) {
  const w = weightsOf(head);
  const [first, last] = inner;
  const others = last - first - 1;
  if (others < 2) return 0;
  let structure = 0;
  for (let q = first; q < last; ++q) {
    let share = 0;
    let entropy = 0; // of the weights as they are: share * (entropy of the parts) = entropy + share log(share)
    for (let k = first; k < last; ++k) {
      const weight = k === q ? 0 : w[q * n + k];
      share += weight;
      if (weight > 0) entropy -= weight * Math.log(weight);
    }
    if (share > 0) structure += share - (entropy + share * Math.log(share)) / Math.log(others);
  }
  return structure;
}

// The head to begin with.
function mostStructured() {
  const all = Array.from({ length: layers * heads }, (_, i) => ({ layer: Math.floor(i / heads), head: i % heads }));
  const values = all.map(structureOf);
  return all[values.indexOf(Math.max(...values))];
}
