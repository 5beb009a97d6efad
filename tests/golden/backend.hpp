// Backends: the parts of a Transformer by the library and by the references, with the same names,
// so that one definition of a module runs as both.
#pragma once

#include <algorithm>
#include <map>
#include <string>

#include "attn/attn.hpp"

#include "golden/case.hpp"
#include "support/draws/library_options.hpp"
#include "support/isas.hpp"
#include "support/references/reference_layers.hpp"
#include "support/tolerance.hpp"

namespace attn_test {

/// Weights are (out, in); an empty bias means none. A backend computes in `Scalar`.
template <class Scalar>
struct FeedForwardWeights {
  Array<Scalar> w1, b1, w2, b2;
  attn::Activation activation = attn::Activation::relu;
};

/// Nested loops in T, with sums taken in one order.
template <class Scalar>
struct ReferenceBackend {
  using T = Scalar;
  Order order = Order::forward;
  /// Rounds every tensor of a call and every stored parameter; null: no rounding.
  T (*store)(T) = nullptr;

  ReferenceResult<T> attention(const ReferenceHeads<T>& heads, const Array<T>& q, const Array<T>& k,
                               const Array<T>& v, const ReferenceOptions& options,
                               const Array<T>& residual = {}) const {
    auto result = reference_multi_head_attention(heads, q, k, v, options, order);
    if (residual) result.y = reference_add(result.y, residual);
    return result;
  }
  Array<T> linear(const Array<T>& x, const Array<T>& weight, const Array<T>& bias = {}) const {
    return reference_linear(x, weight, bias, order);
  }
  Array<T> feed_forward(const FeedForwardWeights<T>& w, const Array<T>& x,
                        const Array<T>& residual) const {
    const auto inner = reference_map(reference_linear(x, w.w1, w.b1, order), [&](T value) {
      return reference_activation(w.activation, value);
    });
    const auto y = reference_linear(inner, w.w2, w.b2, order);
    return residual ? reference_add(y, residual) : y;
  }
  Array<T> layer_norm(const Array<T>& x, const Array<T>& weight, const Array<T>& bias,
                      double eps) const {
    return reference_layer_norm(x, weight, bias, eps, order);
  }
  Array<T> embedding(const Array<T>& table, const Array<std::int64_t>& ids) const {
    const Index dim = table.extent(1);
    auto shape = ids.shape;
    shape.push_back(dim);
    Array<T> y(shape);
    for (Index i = 0; i < ids.size(); ++i) {
      for (Index x = 0; x < dim; ++x) {
        y.data.at(static_cast<std::size_t>(i * dim + x)) =
            table(ids.data.at(static_cast<std::size_t>(i)), x);
      }
    }
    return y;
  }
};

/// The library on tensors and modules of E, on one instruction set.
template <class E>
struct ElementBackend {
  attn::Isa isa;

  attn::Execution execution() const { return {.isa = isa}; }
};

/// The library in float. Activations have rank 3: (batch, seq, features).
struct LibraryBackend : ElementBackend<float> {
  using T = float;

  ReferenceResult<T> attention(const ReferenceHeads<T>& heads, const Array<T>& q, const Array<T>& k,
                               const Array<T>& v, const ReferenceOptions& options,
                               const Array<T>& residual = {}) const;

  Array<T> linear(const Array<T>& x, const Array<T>& weight, const Array<T>& bias = {}) const {
    return to_array(attn::linear(x.view<3>(), weight.view<2>(), vector(bias),
                                 attn::Activation::none, execution()));
  }

  /// Copies an array; an empty one is a parameter that the module does not have.
  template <int Rank>
  static void assign(attn::TensorView<T, Rank> to, const Array<T>& from) {
    if (from) attn::copy(from.view<Rank>(), to);
  }

 private:
  static attn::TensorView1<const T> vector(const Array<T>& x) {
    return x ? x.view<1>() : attn::TensorView1<const T>();
  }
};

inline ReferenceResult<float> LibraryBackend::attention(const ReferenceHeads<T>& heads,
                                                        const Array<T>& q, const Array<T>& k,
                                                        const Array<T>& v,
                                                        const ReferenceOptions& options,
                                                        const Array<T>& residual) const {
  attn::MultiHeadAttention<T> module({.embed_dim = heads.wq.extent(1),
                                      .num_heads = heads.num_heads,
                                      .bias = static_cast<bool>(heads.bq),
                                      .kdim = heads.wk.extent(1),
                                      .vdim = heads.wv.extent(1),
                                      .head_dim = heads.wq.extent(0) / heads.num_heads,
                                      .head_dim_v = heads.wv.extent(0) / heads.num_heads,
                                      .output_projection = static_cast<bool>(heads.wo)});
  assign(module.q_weight(), heads.wq);
  assign(module.k_weight(), heads.wk);
  assign(module.v_weight(), heads.wv);
  assign(module.q_bias(), heads.bq);
  assign(module.k_bias(), heads.bk);
  assign(module.v_bias(), heads.bv);
  assign(module.out_proj().weight.view(), heads.wo);
  assign(module.out_proj().bias.view(), heads.bo);

  const LibraryOptions<T> library(options);
  ReferenceResult<T> result;
  result.y = Array<T>({q.extent(0), q.extent(1), module.out_dim()});
  result.weights = Array<T>({q.extent(0), heads.num_heads, q.extent(1), k.extent(1)});
  attn::AttentionOptions<T> call = library.get();
  call.weights = result.weights.view<4>();
  call.execution = execution();
  attn::MultiHeadAttentionCall<T> module_call;
  if (residual) module_call.residual = residual.view<3>();
  // The library shares work if query, key and value are the same tensor; here they are copies.
  if (q.data == k.data && q.data == v.data) {
    module.forward(q.view<3>(), q.view<3>(), q.view<3>(), result.y.view<3>(), call, module_call);
  } else {
    module.forward(q.view<3>(), k.view<3>(), v.view<3>(), result.y.view<3>(), call, module_call);
  }
  return result;
}

/// Results of a module, by the names of the golden tensors.
template <class T>
using Outputs = std::map<std::string, Array<T>>;

/// The elements in the shape of `like`, which may differ in axes of extent 1 only.
template <class T>
Array<T> squeezed_like(const Array<T>& x, const std::vector<Index>& like) {
  const auto without_ones = [](std::vector<Index> shape) {
    std::erase(shape, 1);
    return shape;
  };
  return without_ones(x.shape) == without_ones(like) ? x.reshaped(like) : x;
}

/// Tolerance for PyTorch's float32 results, which have errors of their own.
struct StoredWithin {
  double relative = 1e-5;  ///< of the tensor's largest magnitude, at least 1
  bool as_exact =
      false;  ///< stored results are only rounded: the derived tolerance holds for them too
};

/// Runs compose(backend) in double, in float by the naive formula, and in the library on every
/// instruction set. Compares the library with the first, within twice the error of the second, and
/// with the stored results of the case.
template <class Compose>
void check_outputs(Case& c, Compose compose, StoredWithin stored_within = {}) {
  const Outputs<double> exact = compose(ReferenceBackend<double>{});
  std::map<Order, Outputs<float>> naive;
  for (Order order : kOrders) naive[order] = compose(ReferenceBackend<float>{order});
  for (attn::Isa isa : available_isas()) {
    const Outputs<float> got = compose(LibraryBackend{{isa}});
    for (const auto& output : got) {
      const std::string& name = output.first;
      const Array<float>& value = output.second;
      if (!c.has(name)) continue;
      const Array<float> stored = c.load<float>(name);
      const Array<double>& e = exact.at(name);
      const double derived = twice_naive([&](Order order) { return naive[order].at(name); }, e);
      c.expect(difference(value, e, derived, isa, name + " (double)"));
      const double size = std::max(1.0, max_abs(stored));
      const double bound = stored_within.as_exact ? derived + epsilon<float> / 2 * max_abs(stored)
                                                  : stored_within.relative * size;
      c.expect(
          difference(squeezed_like(value, stored.shape), stored, bound, isa, name + " (stored)"));
    }
  }
}

template <class E>
float rounded_to(float x) {
  return E(x);
}

/// The comparison for 16-bit tensors and modules of E: within twice the error of the naive formula
/// in float that rounds inputs and stored tensors to E. `pairs`: by name, the rounding error of
/// weights on instruction sets that multiply pairs.
template <class E, class Compose>
void check_small_outputs(Case& c, Compose compose,
                         const std::map<std::string, double>& pairs = {}) {
  const Outputs<double> exact = compose(ReferenceBackend<double>{});
  std::map<Order, Outputs<float>> naive;
  for (Order order : kOrders) {
    naive[order] = compose(ReferenceBackend<float>{order, rounded_to<E>});
  }
  for (attn::Isa isa : extended_isas()) {
    for (const auto& output : compose(ElementBackend<E>{isa})) {
      const std::string& name = output.first;
      const Array<float>& value = output.second;
      const Array<double>& e = exact.at(name);
      const double bound =
          twice_naive([&](Order order) { return naive[order].at(name); }, e) +
          (attn::multiplies_pairs(isa) && pairs.contains(name) ? pairs.at(name) : 0);
      const std::string what = name + " in " + std::string(attn::name(attn::dtype_of<E>()));
      c.expect(difference(value, e, bound, isa, what));
      if (!c.has(name)) continue;
      const Array<float> stored = c.load<float>(name);
      c.expect(difference(squeezed_like(value, stored.shape), stored,
                          bound + 1e-5 * std::max(1.0, max_abs(stored)), isa, what + " (stored)"));
    }
  }
}

}  // namespace attn_test
