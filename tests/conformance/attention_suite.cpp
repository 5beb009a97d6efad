// Conformance suite Attention, opsets 23 to 25.
//
// 3-D inputs pass through split_heads, a past is prepended to the keys, and lengths of an external
// cache are key lengths. The scores that the operator can return are computed from the library's
// weights and lse.
#include "attn/attention/sdpa.hpp"
#include "attn/layers/attention/heads.hpp"

#include "conformance/cases.hpp"
#include "golden/sdpa_options.hpp"
#include "support/draws/library_options.hpp"

namespace attn_test {
namespace {

/// Content of the output qk_matmul_output.
enum QkOutput { scaled_product, after_softcap, after_masks, softmax_weights };

/// (batch, heads, seq, dim), with its memory.
template <class T>
struct Heads {
  Array<T> given;
  attn::Tensor4<T> joined;
  attn::TensorView4<const T> view;
};

template <class T>
attn::TensorView4<T> as_heads(attn::TensorView3<T> x, const Case& c, std::string_view count) {
  return attn::split_heads(x, c.required<Index>(count));
}

/// An input of rank 3 or 4, after the past of this name if the case has one.
template <class T>
Heads<T> heads(const Case& c, std::string_view name, std::string_view count,
               std::string_view past_name = "") {
  Heads<T> x;
  x.given = c.load<T>(in(name));
  const Array<T>& given = x.given;
  x.view = given.shape.size() == 3 ? as_heads<const T>(given.template view<3>(), c, count)
                                   : given.template view<4>();
  if (past_name.empty() || !c.has(in(past_name))) return x;
  const auto past = c.load<T>(in(past_name));
  attn::Shape<4> shape = x.view.shape();
  const Index before = past.extent(2);
  shape[2] += before;
  x.joined = attn::Tensor4<T>(shape);
  attn::copy(past.template view<4>(), x.joined.view().slice(2, 0, before));
  attn::copy(x.view, x.joined.view().slice(2, before, shape[2]));
  x.view = x.joined.view();
  return x;
}

/// Keys after the end of a shorter mask are masked out.
ReferenceOptions::Mask dense_mask(const Case& c, Index kv_len) {
  using Kind = ReferenceOptions::Mask::Kind;
  const bool keep = c.is_bool(in("attn_mask"));
  const Array<double> given = to_rank4(c.load<double>(in("attn_mask")));
  const Index n = given.extent(3);
  if (n == 1 || n == kv_len) return {keep ? Kind::keep : Kind::add, given};
  Array<double> padded({given.extent(0), given.extent(1), given.extent(2), kv_len});
  for (Index i = 0; i < padded.size(); ++i) {
    const Index row = i / kv_len, j = i % kv_len;
    padded.data.at(static_cast<std::size_t>(i)) =
        j < n  ? given.data.at(static_cast<std::size_t>(row * n + j))
        : keep ? 0
               : -std::numeric_limits<double>::infinity();
  }
  return {keep ? Kind::keep : Kind::add, padded};
}

ReferenceOptions options_of(const Case& c, Index kv_len) {
  using Offset = ReferenceOptions::Offset;
  ReferenceOptions options;
  options.scale = c.attribute<double>("scale");
  options.softcap = c.attribute<double>("softcap").value_or(0);
  options.causal = c.attribute<int>("is_causal").value_or(0) != 0;
  options.left = c.attribute<Index>("left_window_size").value_or(-1);
  options.right = c.attribute<Index>("right_window_size").value_or(-1);
  if (c.has(in("attn_mask"))) options.masks.push_back(dense_mask(c, kv_len));
  options.offset = Offset::top_left;
  if (c.has(in("past_key"))) {
    options.offset = Offset::fixed;
    options.fixed_offset = c.load<float>(in("past_key")).extent(2);
  }
  if (c.has(in("nonpad_kv_seqlen"))) {
    options.key_lengths = c.load<std::int64_t>(in("nonpad_kv_seqlen")).data;
    options.offset = Offset::bottom_right;  // relative to each row's own keys
  }
  return options;
}

template <class T>
void check_attention_on(Case& c, attn::Isa isa) {
  const auto q = heads<T>(c, "Q", "q_num_heads");
  const auto k = heads<T>(c, "K", "kv_num_heads", "past_key");
  const auto v = heads<T>(c, "V", "kv_num_heads", "past_value");
  const Index batch = q.view.extent(0), num_heads = q.view.extent(1), q_len = q.view.extent(2),
              kv_len = k.view.extent(2), dv = v.view.extent(3);
  Array<T> result({batch, num_heads, q_len, dv}), matrix({batch, num_heads, q_len, kv_len});
  attn::TensorView4<T> y = result.template view<4>();
  if (q.given.shape.size() == 3) {
    result.shape = {batch, q_len, num_heads * dv};
    y = as_heads<T>(result.template view<3>(), c, "q_num_heads");
  }
  const LibraryOptions<T> library(options_of(c, kv_len));
  attn::AttentionOptions<T> options = library.get();
  options.execution.isa = isa;
  const int mode = c.attribute<int>("qk_matmul_output_mode").value_or(scaled_product);
  if (mode == softmax_weights) {
    options.weights = matrix.template view<4>();
  } else {
    options.scores = matrix.template view<4>();
    options.score_stage =
        mode == scaled_product  ? attn::ScoreStage::scaled
        : mode == after_softcap ? attn::ScoreStage::softcapped
        : mode == after_masks
            ? attn::ScoreStage::masked
            : throw Unsupported("qk_matmul_output_mode = " + std::to_string(mode));
  }
  attn::scaled_dot_product_attention(q.view, k.view, v.view, y, options);
  expect_output(c, "Y", result, isa);
  if (c.has(out("present_key"))) expect_output(c, "present_key", to_array(k.view), isa);
  if (c.has(out("present_value"))) expect_output(c, "present_value", to_array(v.view), isa);
  if (c.has(out("qk_matmul_output"))) expect_output(c, "qk_matmul_output", matrix, isa);
}

void check_attention(Case& c) {
  on_each_isa(c, [&]<class T>(T, attn::Isa isa) { check_attention_on<T>(c, isa); });
}

}  // namespace

// softmax_precision is a minimum: float, or double for double inputs, passes the tolerance for all
// of them.
const Suite attention_suite{
    {"scale", "softcap", "is_causal", "left_window_size", "right_window_size", "q_num_heads",
     "kv_num_heads", "qk_matmul_output_mode", "softmax_precision"},
    check_attention};

}  // namespace attn_test
