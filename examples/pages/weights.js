// The weights of the page's heads: decodes them and describes each head.
"use strict";

const { layers, heads, decodes } = data;
// A decoder's tokens are pieces of the text: shown without surrounding white space, unless they are only white space.
const tokens = !decodes ? data.tokens : data.tokens.map((token) => token.trim() || (token.includes("\n") ? "\u21b5" : "\u2423"));
const n = tokens.length;
// The range of words, [first, last), without the tokens in which heads rest: [CLS] and [SEP], or a decoder's first
// token.
const inner = [1, decodes ? n : n - 1];
const weights = unpack(data.weights, layers * heads * n * n);

// Decodes multiples of 1e-5 in base-64 digits; attention_map.cpp encodes them.
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

// The mean weight of each kind of key; the keys in which heads rest come first.
function profileOf(head) {
  const w = weightsOf(head);
  const sums = new Array(kinds.length).fill(0);
  for (let q = 0; q < n; ++q) {
    for (let k = 0; k < n; ++k) sums[kindOf(q, k)] += w[q * n + k];
  }
  return sums.map((sum) => sum / n);
}

// How much a head concentrates on few other words: the share of its weights that goes to other words, less the same
// share times their entropy relative to the largest possible entropy.
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

// The head shown first.
function mostStructured() {
  const all = Array.from({ length: layers * heads }, (_, i) => ({ layer: Math.floor(i / heads), head: i % heads }));
  const values = all.map(structureOf);
  return all[values.indexOf(Math.max(...values))];
}
