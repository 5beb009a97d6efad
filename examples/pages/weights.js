// The weights of the page's heads: unpacked from the data, and what each head does with them.
"use strict";

const { tokens, layers, heads } = data;
const n = tokens.length;
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

const kinds = ["[CLS]", "[SEP]", "itself", "the token before", "the token after", "elsewhere"];

// The mean weight that goes to each kind of key; [CLS] and [SEP] come first.
function profileOf(head) {
  const w = weightsOf(head);
  const sums = new Array(kinds.length).fill(0);
  for (let q = 0; q < n; ++q) {
    for (let k = 0; k < n; ++k) {
      const kind = k === 0 ? 0 : k === n - 1 ? 1 : k === q ? 2 : k === q - 1 ? 3 : k === q + 1 ? 4 : 5;
      sums[kind] += w[q * n + k];
    }
  }
  return sums.map((sum) => sum / n);
}

// How much of its weight a head gives to few words other than the one that looks: the share of a query that goes to the
// other words, less as much of it as its entropy has of the largest possible. [CLS] and [SEP], where heads rest, are no
// words.
function structureOf(head) {
  const w = weightsOf(head);
  const others = n - 3;
  if (others < 2) return 0;
  let structure = 0;
  for (let q = 1; q < n - 1; ++q) {
    let share = 0;
    let entropy = 0; // of the weights as they are: share * (entropy of the parts) = entropy + share log(share)
    for (let k = 1; k < n - 1; ++k) {
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
