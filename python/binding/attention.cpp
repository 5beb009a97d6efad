// scaled_dot_product_attention and its gradient for Python.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include "attn/attention/sdpa_backward.hpp"

#include "attention_call.hpp"
#include "bindings.hpp"
#include "folding.hpp"
#include "threads.hpp"

namespace attn_python {

namespace {

constexpr std::string_view kForward = "scaled_dot_product_attention";
constexpr std::string_view kBackward = "scaled_dot_product_attention_backward";

/// The strides of the leading axes of a new array (.., heads, seq, dim), or of lse without dim.
Extents leading_of(const Extents& shape, int count) {
  return contiguous_strides(shape).first(count);
}

/// A new array (.., heads, seq, dim): its part of one round.
template <class T>
attn::TensorView4<T> view4(T* from, index_t batch, index_t batch_stride,
                           const attn::Shape<3>& shape) {
  return {from,
          {batch, shape[0], shape[1], shape[2]},
          {batch_stride, shape[1] * shape[2], shape[2], 1}};
}

template <class T, class KV>
void run_forward(const AttentionCall& call, T* out, attn::Accumulator<T>* lse,
                 const attn::Execution& execution) {
  using Score = attn::Accumulator<T>;
  enum { kQ, kK, kV, kOut, kLse, kMask, kCount };
  const int axes = call.leading.size();
  const std::array<Extents, kCount> strides{
      call.q.leading,
      call.k.leading,
      call.v.leading,
      leading_of(call.out_shape(), axes),
      leading_of(call.lse_shape(), axes),
      call.mask ? call.mask->leading : contiguous_strides({}),
  };
  const Folding folding(call.leading, std::span(strides).first(call.mask ? kCount : kMask));
  const index_t batch = folding.batch();
  const auto part = [&](const auto& x, const auto* data, std::size_t which, index_t round) {
    return x.view(data + folding.offset(which, round), batch, folding.batch_stride(which));
  };
  for (index_t round = 0; round < folding.rounds(); ++round) {
    auto options = call.options<Score>(round, batch, call.mask ? folding.offset(kMask, round) : 0,
                                       call.mask ? folding.batch_stride(kMask) : 0);
    options.execution = execution;
    if (lse != nullptr) {
      options.lse = attn::TensorView3<Score>(lse + folding.offset(kLse, round),
                                             {batch, call.q.shape[0], call.q.shape[1]},
                                             {folding.batch_stride(kLse), call.q.shape[1], 1});
    }
    attn::scaled_dot_product_attention(
        part(call.q, call.q.array.elements<T>(), kQ, round),
        part(call.k, call.k.array.elements<KV>(), kK, round),
        part(call.v, call.v.array.elements<KV>(), kV, round),
        view4(out + folding.offset(kOut, round), batch, folding.batch_stride(kOut),
              {call.q.shape[0], call.q.shape[1], call.v.shape[2]}),
        options);
  }
}

nb::object forward(nb::handle query, nb::handle key, nb::handle value, nb::object attn_mask,
                   double dropout_p, bool is_causal, std::optional<double> scale, bool enable_gqa,
                   std::optional<std::pair<index_t, index_t>> window, std::optional<double> softcap,
                   nb::object sinks, nb::object alibi, nb::object key_lengths, bool return_lse,
                   std::variant<std::string, index_t> offset,
                   std::optional<std::uint64_t> dropout_seed, std::optional<int> threads) {
  const AttentionCall call(
      query, key, value,
      {std::move(attn_mask), dropout_p, is_causal, scale, enable_gqa, window, softcap,
       std::move(sinks), std::move(alibi), std::move(key_lengths), std::move(offset), dropout_seed},
      kForward);
  const Threads team(threads);
  const Framework framework = call.q.array.framework;
  const Result out = make(framework, call.q.array.dtype, call.out_shape());
  Result lse;
  if (return_lse) lse = make(framework, call.score_type(), call.lse_shape());
  with_floats(call.q.array, kForward, "query", [&]<class T>(T) {
    using Score = attn::Accumulator<T>;
    const nb::gil_scoped_release released;
    const auto run = [&]<class KV>(KV) {
      run_forward<T, KV>(call, out.elements<T>(), lse.elements<Score>(), team.execution());
    };
    if constexpr (std::same_as<T, float>) {
      if (call.k.array.dtype == DType::BF16) return run(attn::bfloat16{});
      if (call.k.array.dtype == DType::F16) return run(attn::float16{});
    }
    run(T{});
  });
  if (!return_lse) return out.object;
  return nb::make_tuple(out.object, lse.object);
}

void check_extents(const Array& x, const Extents& expected, std::string_view name) {
  bool is_same = x.rank() == expected.size();
  for (int axis = 0; is_same && axis < x.rank(); ++axis) {
    is_same = x.shape[axis] == expected[axis];
  }
  if (is_same) return;
  throw attn::ShapeError(attn::message(
      kBackward, name, attn::detail::join({"have shape ", expected.text()}), x.shape.text()));
}

/// The arrays that backward makes; those that are not wanted are empty.
struct Gradients {
  Result q, k, v, mask, sinks, alibi;
};

template <class T>
void run_backward(const AttentionCall& call, const Operand& d_out, const Operand& out,
                  const Array& lse, const Gradients& made, const attn::Execution& execution) {
  using Score = attn::Accumulator<T>;
  enum { kQ, kK, kV, kOut, kDOut, kLse, kDQ, kDK, kDV, kMask, kDMask, kCount };
  const int axes = call.leading.size();
  const bool has_mask = call.mask.has_value();
  const auto made_like = [&](const Operand& x) {
    const Extents& shape = x.array.shape;
    return leading_strides(call.leading, shape, contiguous_strides(shape));
  };
  std::vector<Extents> strides{
      call.q.leading,    call.k.leading,    call.v.leading,
      out.leading,       d_out.leading,     leading_of(call.lse_shape(), axes),
      made_like(call.q), made_like(call.k), made_like(call.v)};
  if (has_mask) {
    strides.push_back(call.mask->leading);
    strides.push_back(made_like(*call.mask));
  }
  const Folding folding(call.leading, strides);
  const index_t batch = folding.batch();
  const auto part = [&](const Operand& x, std::size_t which, index_t round) {
    return x.view(x.array.elements<T>() + folding.offset(which, round), batch,
                  folding.batch_stride(which));
  };
  const auto gradient = [&](const Result& x, const Operand& of, std::size_t which, index_t round) {
    return view4(x.elements<T>() + folding.offset(which, round), batch, folding.batch_stride(which),
                 of.shape);
  };
  for (index_t round = 0; round < folding.rounds(); ++round) {
    auto options = call.options<Score>(round, batch, has_mask ? folding.offset(kMask, round) : 0,
                                       has_mask ? folding.batch_stride(kMask) : 0);
    options.execution = execution;
    attn::AttentionBackwardCall<Score> wanted;
    if (made.mask.data != nullptr) {
      const attn::Shape<3>& shape = call.mask->shape;
      const index_t rows = folding.batch_stride(kMask) == 0 ? 1 : batch;
      wanted.d_bias[0] = view4(made.mask.elements<Score>() + folding.offset(kDMask, round), rows,
                               folding.batch_stride(kDMask), shape);
    }
    if (made.sinks.data != nullptr) {
      wanted.d_sinks = {made.sinks.elements<Score>(), {call.num_heads()}};
    }
    if (made.alibi.data != nullptr && options.alibi_slopes) {
      wanted.d_alibi_slopes = {made.alibi.elements<Score>(), {call.num_heads()}};
    } else if (made.alibi.data != nullptr) {
      wanted.d_batch_alibi_slopes = {
          made.alibi.elements<Score>() + round * batch * call.num_heads(),
          {batch, call.num_heads()}};
    }
    const attn::TensorView3<const Score> lse_part(
        lse.elements<Score>() + folding.offset(kLse, round),
        {batch, call.q.shape[0], call.q.shape[1]},
        {folding.batch_stride(kLse), call.q.shape[1], 1});
    attn::scaled_dot_product_attention_backward(
        part(d_out, kDOut, round), part(call.q, kQ, round), part(call.k, kK, round),
        part(call.v, kV, round), part(out, kOut, round), lse_part,
        gradient(made.q, call.q, kDQ, round), gradient(made.k, call.k, kDK, round),
        gradient(made.v, call.v, kDV, round), options, wanted);
  }
}

nb::object backward(nb::handle d_out, nb::handle query, nb::handle key, nb::handle value,
                    nb::handle out, nb::handle lse, nb::object attn_mask, double dropout_p,
                    bool is_causal, std::optional<double> scale, bool enable_gqa,
                    std::optional<std::pair<index_t, index_t>> window,
                    std::optional<double> softcap, nb::object sinks, nb::object alibi,
                    nb::object key_lengths, std::variant<std::string, index_t> offset,
                    std::optional<std::uint64_t> dropout_seed, bool mask_gradient,
                    bool sinks_gradient, bool alibi_gradient, std::optional<int> threads) {
  AttentionCall call(
      query, key, value,
      {std::move(attn_mask), dropout_p, is_causal, scale, enable_gqa, window, softcap,
       std::move(sinks), std::move(alibi), std::move(key_lengths), std::move(offset), dropout_seed},
      kBackward);
  call.prepare_gradients();
  const Threads team(threads);
  const Framework framework = call.q.array.framework;
  check_same_elements(call.k.array, call.q.array, kBackward, "key", "query");
  const auto read_result = [&](nb::handle x, std::string_view name) {
    Operand result = operand_of(with_unit_stride(read(x, kBackward, name)));
    check_same_elements(result.array, call.q.array, kBackward, name, "query");
    check_extents(result.array, call.out_shape(), name);
    result.leading = leading_strides(call.leading, result.array.shape, result.array.strides);
    return result;
  };
  const Operand d_result = read_result(d_out, "d_out"), result = read_result(out, "out");
  const Array sums = contiguous(read(lse, kBackward, "lse"));
  check_extents(sums, call.lse_shape(), "lse");
  if (sums.dtype != call.score_type()) {
    throw_type(kBackward, "lse", attn::detail::join({"hold ", python_name(call.score_type())}),
               python_name(sums.dtype));
  }

  Gradients made;
  const DType dtype = call.q.array.dtype;
  made.q = make(framework, dtype, call.q.array.shape);
  made.k = make(framework, dtype, call.k.array.shape);
  made.v = make(framework, dtype, call.v.array.shape);
  const auto zeros = [&](bool wanted, const auto& of) {
    if (!wanted || !of) return Result();
    Result x = make(framework, call.score_type(), of->shape);
    const auto bytes =
        static_cast<std::size_t>(of->shape.product()) * attn::element_size(call.score_type());
    std::fill_n(x.elements<std::byte>(), bytes, std::byte{0});
    return x;
  };
  const bool has_bias = call.mask && call.mask->array.dtype != DType::BOOL;
  made.mask =
      zeros(mask_gradient && has_bias, call.mask ? std::optional(call.mask->array) : std::nullopt);
  made.sinks = zeros(sinks_gradient, call.sinks());
  made.alibi = zeros(alibi_gradient, call.alibi());
  with_floats(call.q.array, kBackward, "query", [&]<class T>(T) {
    const nb::gil_scoped_release released;
    run_backward<T>(call, d_result, result, sums, made, team.execution());
  });
  const auto object = [](const Result& x) { return x.object ? x.object : nb::none(); };
  return nb::make_tuple(made.q.object, made.k.object, made.v.object, object(made.mask),
                        object(made.sinks), object(made.alibi));
}

#define ATTN_PYTHON_KEYWORDS                                                              \
  "attn_mask: ArrayLike | None = None, dropout_p: float = 0.0, is_causal: bool = False, " \
  "scale: float | None = None, enable_gqa: bool = False, *, "                             \
  "window: tuple[int, int] | None = None, softcap: float | None = None, "                 \
  "sinks: ArrayLike | None = None, alibi: ArrayLike | None = None, "                      \
  "key_lengths: ArrayLike | Sequence[int] | None = None, "

constexpr const char* kDocumentation =
    R"(softmax(scale query key^T + masks) value, head by head.

Shapes are PyTorch's: query (.., num_heads, q_len, head_dim), key (.., num_kv_heads, kv_len,
head_dim), value (.., num_kv_heads, kv_len, head_dim_v); 2 axes are one head. Leading axes
broadcast. Nothing is copied where the last stride is 1. Returns (.., num_heads, q_len, head_dim_v)
of the caller's framework; fully masked rows are 0.

attn_mask     bool (True keeps) or float (added), broadcasts to (.., num_heads, q_len, kv_len)
dropout_p     probability of dropping a weight; dropout_seed makes it reproducible
is_causal     a query sees the keys up to its own position
scale         default 1 / sqrt(head_dim)
enable_gqa    num_heads may be a multiple of num_kv_heads
window        (left, right): a query sees that many keys on each side of its position; -1: all
softcap       score = softcap tanh(score / softcap)
sinks         (num_heads): a logit per head that has no value
alibi         (num_heads) or (batch, num_heads): score -= slope |position - key|
key_lengths   (batch): keys from there on are masked out and not read
return_lse    also return the logarithm of the sum of exponentials, (.., num_heads, q_len)
offset        position of the first query: 'top_left' is 0, as PyTorch's is_causal; 'bottom_right'
              aligns the last query with the last key, as decoding needs; or an integer
threads       default get_num_threads()

Raises ValueError for shapes and values, TypeError for element types.)";

}  // namespace

void bind_attention(nb::module_& m) {
  m.def("scaled_dot_product_attention", &forward, nb::arg("query"), nb::arg("key"),
        nb::arg("value"), nb::arg("attn_mask") = nb::none(), nb::arg("dropout_p") = 0.0,
        nb::arg("is_causal") = false, nb::arg("scale") = nb::none(), nb::arg("enable_gqa") = false,
        nb::kw_only(), nb::arg("window") = nb::none(), nb::arg("softcap") = nb::none(),
        nb::arg("sinks") = nb::none(), nb::arg("alibi") = nb::none(),
        nb::arg("key_lengths") = nb::none(), nb::arg("return_lse") = false,
        nb::arg("offset") = "top_left", nb::arg("dropout_seed") = nb::none(),
        nb::arg("threads") = nb::none(), kDocumentation,
        nb::sig("def scaled_dot_product_attention(query: Array, key: Array, value: "
                "Array, " ATTN_PYTHON_KEYWORDS "return_lse: bool = False, "
                "offset: int | Literal['top_left', 'bottom_right'] = 'top_left', "
                "dropout_seed: int | None = None, threads: int | None = None) -> Array"));
  m.def("scaled_dot_product_attention_backward", &backward, nb::arg("d_out"), nb::arg("query"),
        nb::arg("key"), nb::arg("value"), nb::arg("out"), nb::arg("lse"),
        nb::arg("attn_mask") = nb::none(), nb::arg("dropout_p") = 0.0, nb::arg("is_causal") = false,
        nb::arg("scale") = nb::none(), nb::arg("enable_gqa") = false, nb::kw_only(),
        nb::arg("window") = nb::none(), nb::arg("softcap") = nb::none(),
        nb::arg("sinks") = nb::none(), nb::arg("alibi") = nb::none(),
        nb::arg("key_lengths") = nb::none(), nb::arg("offset") = "top_left",
        nb::arg("dropout_seed") = nb::none(), nb::arg("mask_gradient") = false,
        nb::arg("sinks_gradient") = false, nb::arg("alibi_gradient") = false,
        nb::arg("threads") = nb::none(),
        "Gradients (query, key, value, attn_mask, sinks, alibi) of scaled_dot_product_attention, "
        "from that of its result, the result and its lse. Those of attn_mask, sinks and alibi are "
        "None unless wanted. With dropout, dropout_seed must be that of the call.",
        nb::sig("def scaled_dot_product_attention_backward(d_out: Array, query: Array, "
                "key: Array, value: Array, out: Array, lse: Array, " ATTN_PYTHON_KEYWORDS
                "offset: int | Literal['top_left', 'bottom_right'] = 'top_left', "
                "dropout_seed: int | None = None, mask_gradient: bool = False, "
                "sinks_gradient: bool = False, alibi_gradient: bool = False, "
                "threads: int | None = None) "
                "-> tuple[Array, Array, Array, Array | None, Array | None, Array | None]"));
}

}  // namespace attn_python
