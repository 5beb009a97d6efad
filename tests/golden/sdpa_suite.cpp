// Golden suite `sdpa`: scaled_dot_product_attention with every option, against attention in double.
#include "golden/backend.hpp"
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

void check_sdpa(Case& c) {
  check_extents(c);
  const ReferenceOptions options = sdpa_options(c);
  const auto compose = [&](const auto& backend) {
    const auto result = attend(backend, c, options);
    return Outputs<typename std::decay_t<decltype(backend)>::T>{
        {"y", result.y}, {"weights", result.weights}, {"lse", result.lse}};
  };
  check_outputs(c, compose, {.as_exact = true});
}

}  // namespace

const Suite sdpa_suite{{"batch", "num_heads", "num_kv_heads", "seq_q", "seq_k", "head_dim",
                        "head_dim_v", "scale", "causal", "window", "softcap"},
                       check_sdpa};

}  // namespace attn_test
