// FunctorDraw: random functors for an attention call, for the reference and the library.
#pragma once

#include "attn/attention/sdpa.hpp"

#include "support/random.hpp"
#include "support/references/reference.hpp"

namespace attn_test {

/// Scales a score by 0.5, 0.75 or 1, depending on its place.
struct ScaleByPlace {
  template <class T>
  T operator()(T s, int, int h, int i, int j) const {
    return s * (T(0.5) + T(0.25) * static_cast<T>((i + 2 * j + h) % 3));
  }
};

/// Scales a weight by 0, 0.5, 1 or 1.5, depending on its place.
struct WeighByPlace {
  template <class T>
  T operator()(T p, int, int, int i, int j) const {
    return p * T(0.5) * static_cast<T>((i + j) % 4);
  }
};

/// Masks out every period-th pair.
struct MaskSome {
  int period;
  bool operator()(int b, int h, int i, int j) const {
    return (3 * i + 5 * j + h + b) % period != 0;
  }
};

/// Keeps for each query the keys of its square of `size`, and all later ones; classifies blocks.
struct LaterSquares {
  int size;
  bool operator()(int, int, int i, int j) const { return i / size <= j / size; }
  attn::Visibility classify(attn::index_t, attn::index_t, attn::IndexRange queries,
                            attn::IndexRange keys) const {
    if (queries.begin / size > (keys.end - 1) / size) return attn::Visibility::empty;
    return (queries.end - 1) / size <= keys.begin / size ? attn::Visibility::full
                                                         : attn::Visibility::partial;
  }
};

struct FunctorDraw {
  bool score = false, prob = false;
  int period = 0, size = 0;  ///< of MaskSome and LaterSquares; 0: not drawn

  FunctorDraw() = default;
  explicit FunctorDraw(Random& random) {
    score = random.chance(0.4);
    prob = random.chance(0.3);
    if (random.chance(0.3))
      period = static_cast<int>(random.integer(2, 9));
    else if (random.chance(0.3))
      size = static_cast<int>(random.integer(1, 100));
  }

  std::string text() const {
    std::string text;
    if (score) text += ", score_mod";
    if (period > 0) text += ", mask_mod of period " + std::to_string(period);
    if (size > 0) text += ", mask_mod of squares of " + std::to_string(size);
    if (prob) text += ", prob_mod";
    return text;
  }

  void tell(ReferenceOptions& options) const {
    if (score) options.score_mod = ScaleByPlace{};
    if (prob) options.prob_mod = WeighByPlace{};
    if (period > 0) options.mask_mod = MaskSome{period};
    if (size > 0) options.mask_mod = LaterSquares{size};
  }

  /// Calls f(functors...) with the drawn functors.
  template <class F>
  void apply(F f) const {
    const auto with_prob = [&](const auto&... functors) {
      prob ? f(functors..., attn::prob_mod(WeighByPlace{})) : f(functors...);
    };
    const auto with_mask = [&](const auto&... functors) {
      if (period > 0) return with_prob(functors..., attn::mask_mod(MaskSome{period}));
      if (size > 0) return with_prob(functors..., attn::mask_mod(LaterSquares{size}));
      with_prob(functors...);
    };
    score ? with_mask(attn::score_mod(ScaleByPlace{})) : with_mask();
  }
};

}  // namespace attn_test
