// Golden suite `sdpa`: scaled_dot_product_attention with every option, against attention in double.
#include "golden/backend.hpp"

namespace attn_test {
namespace {

/// A mask of any rank up to 4 with its axes at the right.
Array<double> to_rank4(Array<double> mask) {
  if (mask.shape.size() > 4)
    throw Unsupported("a mask of rank " + std::to_string(mask.shape.size()));
  while (mask.shape.size() < 4) mask.shape.insert(mask.shape.begin(), 1);
  return mask;
}

ReferenceOptions read_options(const Case& c) {
  using Kind = ReferenceOptions::Mask::Kind;
  using Offset = ReferenceOptions::Offset;
  ReferenceOptions options;
  if (c.attribute<double>("softcap").value_or(0) != 0) throw Unsupported("softcap");
  options.scale = c.attribute<double>("scale");
  if (const auto causal = c.attribute<std::string>("causal")) {
    options.causal = true;
    if (*causal == "top_left") {
      options.offset = Offset::top_left;
    } else if (*causal != "bottom_right") {
      throw Unsupported("causal '" + *causal + "'");
    }
  }
  if (const auto window = c.attribute<std::vector<Index>>("window")) {
    options.left = window->at(0);
    options.right = window->at(1);
  }
  if (c.has("mask")) {
    options.masks.push_back(
        {c.is_bool("mask") ? Kind::keep : Kind::add, to_rank4(c.load<double>("mask"))});
  }
  if (c.has("kv_len")) options.key_lengths = c.load<std::int64_t>("kv_len").data;
  options.alibi_slopes = c.load_if<double>("alibi_slopes").data;
  options.sinks = c.load_if<double>("sinks").data;
  return options;
}

template <class T>
ReferenceResult<T> attend(const ReferenceBackend<T>&, const Case& c,
                          const ReferenceOptions& options) {
  return reference_attention(c.load<T>("q"), c.load<T>("k"), c.load<T>("v"), options);
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

void check(Case& c) {
  check_extents(c);
  const ReferenceOptions options = read_options(c);
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
                       check};

}  // namespace attn_test
