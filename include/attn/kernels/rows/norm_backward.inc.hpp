// Kernel text: gradients of normalised rows, those of the weights first.
// SPDX-License-Identifier: Apache-2.0

/// A row, or its shrunk copy, with its mean; (x - mean) scale is the normalised row, and slope is
/// 1 / sqrt(variance + eps) of the row itself.
template <class T>
struct RowMoments {
  const T* x;
  T mean, scale, slope;
};

template <class T>
inline RowMoments<T> moments_of(index_t n, const T* x, T eps, bool centers) {
  const auto [mean, variance] = mean_and_variance(n, x, centers);
  const T scale = T{1} / std::sqrt(variance + eps);
  return {.x = x, .mean = mean, .scale = scale, .slope = scale};
}

template <class T>
inline bool needs_shrinking(const RowMoments<T>& row) {
  return detail::needs_shrinking(row.mean, row.scale);
}

/// Puts shrunk copies of the rows that need it into `copies`.
template <class T>
ATTN_COLD void shrink_rows(const detail::NormBackwardProblem<T>& problem, RowMoments<T>* moments,
                           T* copies) {
  const index_t rows = problem.x.extent(0), n = problem.x.extent(1);
  for (index_t i = 0; i < rows; ++i) {
    if (!needs_shrinking(moments[i])) continue;
    const T s = detail::shrink_row(n, moments[i].x, copies, problem.centers);
    if (!(s > T{0})) continue;
    const T* const copy = copies;
    const auto [mean, variance] = mean_and_variance(n, copy, problem.centers);
    const detail::ShrunkScale<T> scale(variance, problem.eps, s);
    moments[i] = {.x = copy, .mean = mean, .scale = scale.of_shrunk, .slope = scale.of_row};
    copies += n;
  }
}

template <class T>
inline void norm_backward_rows(const detail::NormBackwardProblem<T>& problem,
                               const Executor& executor, Workspace& workspace) {
  using V = Vec<T>;
  const index_t rows = problem.x.extent(0), n = problem.x.extent(1);
  Scratch<RowMoments<T>> memory(workspace, rows);
  RowMoments<T>* moments = memory.data();
  const T *d_out = problem.d_out.data(), *x = problem.x.data(), *weight = problem.weight;
  const index_t d_stride = problem.d_out.stride(0), x_stride = problem.x.stride(0);
  detail::for_rows(executor, rows, n, [&](index_t i) {
    moments[i] = moments_of(n, x + i * x_stride, problem.eps, problem.centers);
  });
  const index_t shrunk = std::count_if(moments, moments + rows, needs_shrinking<T>);
  Scratch<T> copies(workspace, shrunk * n);
  if (shrunk > 0) shrink_rows(problem, moments, copies.data());
  if (problem.d_weight != nullptr || problem.d_bias != nullptr) {
    detail::for_column_ranges(executor, rows, n, [&](index_t begin, index_t end) {
      if (problem.d_weight != nullptr) {
        sum_over_rows(rows, begin, end, problem.d_weight, [&](index_t i, index_t c, auto lanes) {
          return load(d_out + i * d_stride + c, lanes) * V::all(moments[i].scale) *
                 (load(moments[i].x + c, lanes) - V::all(moments[i].mean));
        });
      }
      if (problem.d_bias != nullptr) {
        sum_over_rows(rows, begin, end, problem.d_bias, [&](index_t i, index_t c, auto lanes) {
          return load(d_out + i * d_stride + c, lanes);
        });
      }
    });
  }
  detail::for_rows(executor, rows, n, [&](index_t i) {
    const T *dy = d_out + i * d_stride, *from = moments[i].x;
    T* to = problem.d_x.data() + i * problem.d_x.stride(0);
    const V mean = V::all(moments[i].mean);
    const auto g_of = [&](index_t k, auto lanes) __attribute__((always_inline)) {
      const V d = load(dy + k, lanes);
      return weight == nullptr ? d : d * load(weight + k, lanes);
    };
    V sum_g = V::all(T{0}), sum_gx = V::all(T{0});
    each_vector<T>(n, [&](index_t k, auto lanes) {
      const V g = g_of(k, lanes);  // 0 in the lanes past the row's end
      sum_g = sum_g + g;
      sum_gx = fma(g, load(from + k, lanes) - mean, sum_gx);
    });
    const T size = static_cast<T>(n);
    const V mean_g = V::all(problem.centers ? sum(sum_g) / size : T{0});
    const V along = V::all(sum(sum_gx) / size * moments[i].scale * moments[i].scale);
    const V slope = V::all(moments[i].slope);
    each_vector<T>(n, [&](index_t k, auto lanes) {
      V d = (g_of(k, lanes) - mean_g - (load(from + k, lanes) - mean) * along) * slope;
      if (problem.residual) {
        d = d + load(problem.residual.data() + i * problem.residual.stride(0) + k, lanes);
      }
      store(d, to + k, lanes);
    });
  });
}

template <class T>
struct TargetTable<detail::Backend<family::NormsBackward, T, T>> {
  static constexpr detail::Backend<family::NormsBackward, T, T> kTable{
      .norm = detail::kKernel<norm_backward_rows<T>>};
};
