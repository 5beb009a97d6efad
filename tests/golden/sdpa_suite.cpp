// Golden suite `sdpa`: scaled_dot_product_attention with every option, against attention in double.
#include "golden/backend.hpp"
#include "golden/gradients.hpp"
#include "golden/sdpa_options.hpp"

namespace attn_test {
namespace {

template <class T>
ReferenceResult<T> attend(const ReferenceBackend<T>& backend, const Case& c,
                          const ReferenceOptions& options) {
  return reference_attention(c.load<T>("q"), c.load<T>("k"), c.load<T>("v"), options,
                             backend.order);
}

ReferenceResult<float> attend(const LibraryBackend& backend, const Case& c,
                              const ReferenceOptions& reference_options) {
  const auto q = c.load<float>("q"), k = c.load<float>("k"), v = c.load<float>("v");
  const Index batch = q.extent(0), heads = q.extent(1), q_len = q.extent(2), kv_len = k.extent(2);
  ReferenceResult<float> result{Array<float>({batch, heads, q_len, v.extent(3)}),
                                Array<float>({batch, heads, q_len, kv_len}),
                                Array<float>({batch, heads, q_len})};
  const LibraryOptions<float> library(reference_options);
  attn::AttentionOptions<float> options = library.get();
  options.weights = result.weights.view<4>();
  options.lse = result.lse.view<3>();
  options.execution = backend.execution();
  attn::scaled_dot_product_attention(q.view<4>(), k.view<4>(), v.view<4>(), result.y.view<4>(),
                                     options);
  return result;
}

/// The manifest says in words what the tensors' shapes say.
void check_extents(const Case& c) {
  const std::tuple<const char*, const char*, std::size_t> extents[] = {
      {"batch", "q", 0}, {"num_heads", "q", 1}, {"num_kv_heads", "k", 1}, {"seq_q", "q", 2},
      {"seq_k", "k", 2}, {"head_dim", "q", 3},  {"head_dim_v", "v", 3}};
  for (const auto& [attribute, tensor, axis] : extents) {
    const Index found = c.load<float>(tensor).extent(axis);
    if (c.attribute<Index>(attribute).value_or(found) == found) continue;
    throw std::runtime_error(std::string("attribute '") + attribute + "' is not extent " +
                             std::to_string(axis) + " of " + tensor);
  }
}

/// d_q, d_k and d_v, stored as what double gives, rounded to float.
template <class T>
void check_sdpa_gradients(Case& c, const ReferenceOptions& reference_options, attn::Isa isa) {
  const auto q = c.load<T>("q"), k = c.load<T>("k"), v = c.load<T>("v"), d_y = c.load<T>("grad_y");
  Array<T> y(d_y.shape), lse({q.extent(0), q.extent(1), q.extent(2)}), d_q(q.shape), d_k(k.shape),
      d_v(v.shape);
  const LibraryOptions<T> library(reference_options);
  attn::AttentionOptions<T> options = library.get();
  options.lse = lse.template view<3>();
  options.execution.isa = isa;
  const auto qv = q.template view<4>(), kv = k.template view<4>(), vv = v.template view<4>();
  attn::scaled_dot_product_attention(qv, kv, vv, y.template view<4>(), options);
  attn::scaled_dot_product_attention_backward(
      d_y.template view<4>(), qv, kv, vv, y.template view<4>(), lse.template view<3>(),
      d_q.template view<4>(), d_k.template view<4>(), d_v.template view<4>(), options);
  // The stored numbers are rounded to float; float itself adds the rounding of its sums.
  const double within = sizeof(T) == 8 ? 1e-7 : 1e-5;
  expect_stored_gradient<T>(c, isa, "grad_q", d_q, within);
  expect_stored_gradient<T>(c, isa, "grad_k", d_k, within);
  expect_stored_gradient<T>(c, isa, "grad_v", d_v, within);
}

void check_sdpa(Case& c) {
  check_extents(c);
  const ReferenceOptions options = sdpa_options(c);
  const auto compose = [&](const auto& backend) {
    const auto result = attend(backend, c, options);
    return Outputs<typename std::decay_t<decltype(backend)>::T>{
        {"y", result.y}, {"weights", result.weights}, {"lse", result.lse}};
  };
  check_outputs(c, compose, {.as_exact = true});
  if (!c.has("grad_y")) return;
  check_gradients_in_both(
      [&](auto t, attn::Isa isa) { check_sdpa_gradients<decltype(t)>(c, options, isa); });
}

}  // namespace

const Suite sdpa_suite{{"batch", "num_heads", "num_kv_heads", "seq_q", "seq_k", "head_dim",
                        "head_dim_v", "scale", "causal", "window", "softcap"},
                       check_sdpa};

}  // namespace attn_test
