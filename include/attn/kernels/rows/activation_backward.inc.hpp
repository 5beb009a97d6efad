// Kernel text: derivatives of activations.
// SPDX-License-Identifier: Apache-2.0

/// Calls use(f), where f(v, value, derivative) sets the activation of vector v and its derivative.
template <class T, class Use>
inline void with_derivative(Activation activation, Use use) {
  using V = Vec<T>;
  const auto all = [](double value) { return V::all(static_cast<T>(value)); };
  switch (activation) {
    case Activation::none:
      return use([&](V v, V& value, V& derivative) {
        value = v;
        derivative = all(1);
      });
    case Activation::relu:
      return use([&](V v, V& value, V& derivative) {
        value = max(all(0), v);
        derivative = select(less(all(0), v), all(1), all(0));
      });
    case Activation::relu_squared:
      return use([&](V v, V& value, V& derivative) {
        const V positive = max(all(0), v);
        value = positive * positive;
        derivative = positive + positive;
      });
    case Activation::silu:
      // With s = 1 / (1 + e^-v): (v s)' = s (1 + v (1 - s))
      return use([&](V v, V& value, V& derivative) {
        const V s = all(1) / (all(1) + exp(all(0) - v));
        value = v * s;
        derivative = s * fma(v, all(1) - s, all(1));
      });
    case Activation::quick_gelu:
      return use([&](V v, V& value, V& derivative) {
        const V scaled = all(1.702) * v;
        const V s = all(1) / (all(1) + exp(all(0) - scaled));
        value = v * s;
        derivative = s * fma(scaled, all(1) - s, all(1));
      });
    case Activation::gelu_tanh:
      // (1 + tanh u) / 2 = s(2u) = 1 / (1 + e^-2u): the derivative is s + v s (1 - s) (2u)'
      return use([&](V v, V& value, V& derivative) {
        const V squared = v * v;
        const V u = all(1.5957691216057307) * fma(all(0.044715) * v, squared, v);
        const V s = all(1) / (all(1) + exp(all(0) - u));
        const V du = all(1.5957691216057307) * fma(all(3 * 0.044715), squared, all(1));
        value = v * s;
        // Far from 0, s (1 - s) is 0, and u may be infinite.
        const V factor = s * (all(1) - s);
        derivative = fma(v * factor, select(less(all(0), factor), du, all(0)), s);
      });
    case Activation::gelu:
      // With the normal distribution's P and density p: (v P(v))' = P + v p
      return use([&](V v, V& value, V& derivative) {
        const V whole = normal_cdf(v);
        const V bounded = min(max(v, all(-40)), all(40));  // where the density is 0 anyway
        const V density = all(0.39894228040143267794) * exp(all(-0.5) * bounded * bounded);
        value = v * whole;
        derivative = fma(bounded, density, whole);
      });
  }
}

template <class T>
inline void activation_backward_rows(const detail::ActivationBackwardProblem<T>& problem,
                                     const Executor& executor, Workspace&) {
  using V = Vec<T>;
  const index_t n = problem.x.extent(1);
  const auto row_of = [](const auto& view, index_t row) {
    return view.data() + row * view.stride(0);
  };
  const ClampedUnit<T> clamped(problem.unit);
  with_derivative<T>(problem.unit.activation, [&](auto f) {
    detail::for_rows(executor, problem.x.extent(0), n, [&](index_t row) {
      const T *dy = row_of(problem.d_out, row), *x = row_of(problem.x, row);
      T* dx = row_of(problem.d_x, row);
      if (!problem.b) {
        each_vector<T>(n, [&](index_t k, auto lanes) {
          V value, derivative;
          f(load(x + k, lanes), value, derivative);
          store(load(dy + k, lanes) * derivative, dx + k, lanes);
        });
        return;
      }
      const T* b = row_of(problem.b, row);
      T* db = row_of(problem.d_b, row);
      each_vector<T>(n, [&](index_t k, auto lanes) {
        V value, derivative;
        const V gate = load(x + k, lanes), up = load(b + k, lanes), d = load(dy + k, lanes);
        f(clamped.above(gate), value, derivative);
        const V zero = V::all(0);
        const V other = clamped.both_sides(up) + clamped.offset;
        store(select(less(clamped.limit, gate), zero, d * other * derivative), dx + k, lanes);
        const auto is_bounded = [&](V v) { return less(clamped.limit, max(v, zero - v)); };
        store(select(is_bounded(up), zero, d * value), db + k, lanes);
      });
    });
  });
}

template <class T>
struct TargetTable<detail::Backend<family::ElementwiseBackward, T, T>> {
  static constexpr detail::Backend<family::ElementwiseBackward, T, T> kTable{
      .activate = detail::kKernel<activation_backward_rows<T>>};
};
