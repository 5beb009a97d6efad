// Kernel text: rows of one element converted to another.
// SPDX-License-Identifier: Apache-2.0

/// to = from rounded to odd, so that narrow() gives the result of rounding the double once: see
/// detail::round_to_odd(). Branchless, so that compilers vectorise it.
inline void round_to_odd(index_t n, const double* from, float* to) {
  for (index_t j = 0; j < n; ++j) {
    const float nearest = static_cast<float>(from[j]);
    const double back = static_cast<double>(nearest);
    const auto bits = std::bit_cast<std::uint32_t>(nearest);
    const bool is_farther = std::abs(back) > std::abs(from[j]);
    const bool is_exact = !(back < from[j]) && !(back > from[j]);  // so is NaN
    to[j] = std::bit_cast<float>(is_exact ? bits : (bits - std::uint32_t{is_farther}) | 1u);
  }
}

/// n contiguous elements.
template <class From, class To>
inline void convert_row(index_t n, const From* from, To* to) {
  constexpr bool kFromDouble = std::same_as<From, double>, kToDouble = std::same_as<To, double>;
  if constexpr (!kFromDouble && !kToDouble) {
    each_vector<float>(n,
                       [&](index_t j, auto lanes) { store(load(from + j, lanes), to + j, lanes); });
  } else if constexpr (sizeof(From) + sizeof(To) == sizeof(float) + sizeof(double)) {
    for (index_t j = 0; j < n; ++j) to[j] = static_cast<To>(from[j]);
  } else {
    constexpr index_t kChunk = 256;
    float floats[kChunk];
    for (index_t j = 0; j < n; j += kChunk) {
      const index_t count = std::min(n - j, kChunk);
      if constexpr (kToDouble) {
        convert_row(count, from + j, floats);
        convert_row(count, floats, to + j);
      } else {
        round_to_odd(count, from + j, floats);
        convert_row(count, floats, to + j);
      }
    }
  }
}

template <class From, class To>
inline void convert_elements(const detail::ConversionProblem<From, To>& problem,
                             const Executor& executor, Workspace&) {
  constexpr index_t kPiece = 4096;
  const TensorView2<const From>& from = problem.from;
  const TensorView2<To>& to = problem.to;
  const index_t n = from.extent(1), pieces = (n + kPiece - 1) / kPiece;
  const index_t from_step = from.stride(1), to_step = to.stride(1);
  detail::for_rows(executor, from.extent(0) * pieces, std::min(n, kPiece), [&](index_t task) {
    const index_t row = task / pieces, first = task % pieces * kPiece;
    const index_t count = std::min(n - first, kPiece);
    const From* x = &from(row, first);
    To* y = &to(row, first);
    if (from_step == 1 && to_step == 1) return convert_row(count, x, y);
    for (index_t j = 0; j < count; ++j) {
      y[j * to_step] = static_cast<To>(x[j * from_step]);
    }
  });
}

template <class From, class To>
struct TargetTable<detail::Backend<family::Conversions, From, To>> {
  static constexpr detail::Backend<family::Conversions, From, To> kTable{
      .convert = detail::kKernel<convert_elements<From, To>>};
};
