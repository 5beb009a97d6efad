// Placed: a tensor with given strides in guarded memory, with poison between its rows.
#pragma once

#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "support/array.hpp"
#include "support/guarded.hpp"
#include "support/random.hpp"

namespace attn_test {

/// The axes from slowest to fastest, and the number of unused elements after each run of the
/// fastest.
template <int Rank>
struct Layout {
  std::array<int, std::size_t{Rank}> order{};
  Index gap = 0;

  /// The axes in order, without gaps.
  static Layout contiguous() {
    Layout layout;
    for (int a = 0; a < Rank; ++a) layout.order[static_cast<std::size_t>(a)] = a;
    return layout;
  }

  /// Any order of the axes, or any that keeps the last one fastest; gaps half of the time.
  static Layout any(Random& random, bool keep_last = true) {
    Layout layout = contiguous();
    for (int a = Rank - (keep_last ? 2 : 1); a > 0; --a) {
      std::swap(layout.order[static_cast<std::size_t>(a)],
                layout.order[static_cast<std::size_t>(random.integer(0, a))]);
    }
    if (random.chance(0.5)) layout.gap = random.integer(1, 9);
    return layout;
  }

  attn::Shape<Rank> strides(const attn::Shape<Rank>& shape) const {
    attn::Shape<Rank> result{};
    attn::index_t stride = 1;
    for (std::size_t n = order.size(); n-- > 0;) {
      const auto axis = static_cast<std::size_t>(order[n]);
      result[axis] = stride;
      stride *= std::max(shape[axis], attn::index_t{1});
      if (n + 1 == order.size()) stride += gap;
    }
    return result;
  }
};

/// The memory ends with the last element, before an inaccessible page. Unused places hold `poison`,
/// and so do the elements of an output before it is written.
template <class T, int Rank>
class Placed {
 public:
  static constexpr T kPoison = std::numeric_limits<T>::quiet_NaN();

  Placed(const Array<T>& values, const Layout<Rank>& layout)
      : Placed(values.template library_shape<Rank>(), layout) {
    copy_in(values);
  }
  /// An output.
  Placed(const attn::Shape<Rank>& shape, const Layout<Rank>& layout)
      : shape_(shape), strides_(layout.strides(shape)), memory_(size(shape, strides_)) {
    std::fill_n(memory_.data(), memory_.size(), kPoison);
  }

  attn::TensorView<T, Rank> view() const { return {memory_.data(), shape_, strides_}; }
  attn::TensorView<const T, Rank> read() const { return view(); }
  Array<T> values() const { return to_array(view()); }

  void copy_in(const Array<T>& values) { attn::copy(values.template view<Rank>(), view()); }

  /// True if the bytes between the rows are unchanged.
  bool gaps_untouched() const {
    Array<T> now({memory_.size()});
    std::copy_n(memory_.data(), memory_.size(), now.data.begin());
    const attn::TensorView<T, Rank> elements(now.data.data(), shape_, strides_);
    attn::copy(poison(shape_).template view<Rank>(), elements);
    const Array<T> before = poison({memory_.size()});
    return same_bytes(now.data.data(), before.data.data(), now.data.size());
  }
  /// True if nothing was written.
  bool untouched() const {
    const Array<T> before = poison({memory_.size()});
    return same_bytes(memory_.data(), before.data.data(), before.data.size());
  }

 private:
  /// memcmp that allows null pointers if there are no elements.
  static bool same_bytes(const T* a, const T* b, std::size_t n) {
    return n == 0 || std::memcmp(a, b, n * sizeof(T)) == 0;
  }

  template <std::size_t N>
  static Array<T> poison(const std::array<attn::index_t, N>& shape) {
    return poison(std::vector<Index>(shape.begin(), shape.end()));
  }
  static Array<T> poison(std::vector<Index> shape) {
    Array<T> x(std::move(shape));
    std::fill(x.data.begin(), x.data.end(), kPoison);
    return x;
  }

  static Index size(const attn::Shape<Rank>& shape, const attn::Shape<Rank>& strides) {
    Index last = 0;
    for (std::size_t a = 0; a < shape.size(); ++a) {
      if (shape[a] == 0) return 0;
      last += (shape[a] - 1) * strides[a];
    }
    return last + 1;
  }

  attn::Shape<Rank> shape_, strides_;
  PageGuarded<T> memory_;
};

/// True if both hold the same bits: NaN equals itself, 0 does not equal -0.
template <class T>
bool same_bits(const Array<T>& a, const Array<T>& b) {
  return a.shape == b.shape && (a.data.empty() || std::memcmp(a.data.data(), b.data.data(),
                                                              a.data.size() * sizeof(T)) == 0);
}

}  // namespace attn_test
