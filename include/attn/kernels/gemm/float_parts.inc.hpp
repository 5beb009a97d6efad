// Kernel text: floats as sums of one or two bfloat16.
// SPDX-License-Identifier: Apache-2.0
//
// The head of a float is the nearest finite bfloat16, its tail the bfloat16 nearest to the rest.
// The largest floats, which would round to infinity, become the largest sum of the parts. An
// infinity has the head 1 and the tail infinity, with its sign: products with both parts of a
// number other than 0 then do not make a NaN.

template <index_t kParts>
struct FloatParts {
  using V = Vec<float>;
  static constexpr float kMaxHead = 0x1.fep127f, kMaxSum = 0x1.fffep127f;

  /// NaN stays NaN.
  static ATTN_INLINE V clamp(V v, float limit) {
    return min(V::all(limit), max(V::all(-limit), v));
  }

  /// Stores a part of each lane to `to`, the second part `part_stride` elements after the first.
  static ATTN_INLINE void store(V v, bfloat16* to, index_t part_stride) {
    const auto is_infinite = less(V::all(std::numeric_limits<float>::max()), max(v, V::all(0) - v));
    narrow(select(is_infinite, kParts == 1 ? v : clamp(v, 1), clamp(v, kMaxHead)), to);
    if constexpr (kParts == 2) {
      narrow(select(is_infinite, v, clamp(v, kMaxSum) - widen(to)), to + part_stride);
    }
  }

  /// Splits `count` floats, `step` apart, and pads with 0 to `size` elements, which are whole
  /// vectors.
  static void fetch(const float* from, index_t step, index_t count, index_t size, bfloat16* to,
                    index_t part_stride) {
    for (index_t x = 0; x < size; x += V::kLanes) {
      const index_t end = std::min(count, x + V::kLanes);
      if (step == 1 && end == x + V::kLanes) {
        store(V::load(from + x), to + x, part_stride);
        continue;
      }
      float lanes[V::kLanes] = {};
      for (index_t i = x; i < end; ++i) lanes[i - x] = from[i * step];
      store(V::load(lanes), to + x, part_stride);
    }
  }
};
