// AttentionCall: see attention_call.hpp.
// SPDX-License-Identifier: Apache-2.0
#include "attention_call.hpp"

#include <algorithm>
#include <random>

namespace attn_python {

namespace {

/// Extends `leading` by the axes of `shape` before the last three.
void broadcast_leading(Extents& leading, const Array& x, std::string_view function,
                       std::string_view name) {
  for (int axis = 0; axis < leading.size(); ++axis) {
    const index_t extent = x.shape[axis];
    if (leading[axis] == 1) leading[axis] = extent;
    if (extent == 1 || extent == leading[axis]) continue;
    throw attn::ShapeError(
        attn::message(function, name,
                      attn::detail::join({"have leading axes that broadcast with those before it, ",
                                          leading.text()}),
                      x.shape.text()));
  }
}

}  // namespace

Operand operand_of(Array array) {
  Operand result;
  const int rank = array.rank();
  for (int axis = 0; axis < 3; ++axis) {
    const auto to = static_cast<std::size_t>(axis);
    const int from = rank - 3 + axis;
    result.shape[to] = from < 0 ? 1 : array.shape[from];
    result.strides[to] = from < 0 ? 0 : array.strides[from];
  }
  result.array = std::move(array);
  return result;
}

Extents leading_strides(const Extents& leading, const Extents& shape, const Extents& strides) {
  Extents result = leading;
  const int missing = leading.size() + 3 - shape.size();
  for (int axis = 0; axis < leading.size(); ++axis) {
    const int from = axis - missing;
    result[axis] = from < 0 || shape[from] == 1 ? 0 : strides[from];
  }
  return result;
}

AttentionCall::AttentionCall(nb::handle query, nb::handle key, nb::handle value,
                             const AttentionKeywords& keywords, std::string_view name)
    : function(name),
      q(operand_of(with_unit_stride(read(query, name, "query")))),
      k(operand_of(with_unit_stride(read(key, name, "key")))),
      v(operand_of(with_unit_stride(read(value, name, "value")))),
      rank(q.array.rank()),
      causal_(keywords.is_causal),
      scale_(keywords.scale),
      window_(keywords.window),
      softcap_(keywords.softcap.value_or(0)) {
  if (rank < 2) {
    throw attn::ShapeError(attn::message(
        function, "query", "have at least 2 axes (.., heads, seq, dim)", q.array.shape.text()));
  }
  for (const auto& [x, argument] : {std::pair{&k, "key"}, std::pair{&v, "value"}}) {
    if (x->array.rank() == rank) continue;
    throw attn::ShapeError(
        attn::message(function, argument,
                      attn::detail::join({"have as many axes as query, ", q.array.shape.text()}),
                      x->array.shape.text()));
  }
  with_floats(q.array, function, "query", [](auto) {});
  const bool widens =
      q.array.dtype == DType::F32 && (k.array.dtype == DType::BF16 || k.array.dtype == DType::F16);
  if (!widens) check_same_elements(k.array, q.array, function, "key", "query");
  check_same_elements(v.array, k.array, function, "value", "key");

  for (int axis = 0; axis < rank - 3; ++axis) leading.push_back(1);
  broadcast_leading(leading, q.array, function, "query");
  broadcast_leading(leading, k.array, function, "key");
  broadcast_leading(leading, v.array, function, "value");
  for (Operand* x : {&q, &k, &v}) {
    x->leading = leading_strides(leading, x->array.shape, x->array.strides);
  }

  const auto repeat_head = [](Operand& x, index_t heads) {
    if (x.shape[0] != 1 || heads == 1) return;
    x.shape[0] = heads;
    x.strides[0] = 0;
  };
  repeat_head(k, v.shape[0]);
  repeat_head(v, k.shape[0]);
  if (!keywords.enable_gqa) {
    repeat_head(q, k.shape[0]);
    if (k.shape[0] != q.shape[0] && k.shape[0] != 1) {
      throw attn::ShapeError(
          attn::message(function, "key",
                        attn::detail::join({"have as many heads as query, ",
                                            attn::to_string(std::ptrdiff_t{q.shape[0]}),
                                            " (enable_gqa=True shares them)"}),
                        attn::to_string(std::ptrdiff_t{k.shape[0]})));
    }
  }
  if (!keywords.attn_mask.is_none()) read_mask(keywords.attn_mask);
  read_vectors(keywords);

  if (const auto* offset = std::get_if<index_t>(&keywords.offset)) {
    offset_ = attn::query_offset(*offset);
  } else {
    const std::string& corner = std::get<std::string>(keywords.offset);
    if (corner != "top_left" && corner != "bottom_right") {
      throw_value(function, "offset", "be 'top_left', 'bottom_right' or an integer",
                  "'" + corner + "'");
    }
    offset_ = corner == "top_left" ? attn::top_left : attn::bottom_right;
  }
  dropout_.p = keywords.dropout_p;
  if (keywords.dropout_seed) {
    dropout_.seed = *keywords.dropout_seed;
  } else if (dropout_.p > 0) {
    std::random_device device;
    dropout_.seed = std::uint64_t{device()} << 32 | device();
  }
}

void AttentionCall::read_mask(nb::handle given) {
  Array array = read(given, function, "attn_mask");
  if (array.rank() > (std::max)(rank, 2) || array.rank() < 1) {
    throw attn::ShapeError(
        attn::message(function, "attn_mask",
                      attn::detail::join({"have 1 to ", attn::to_string(std::ptrdiff_t{rank}),
                                          " axes, (.., heads, q_len, kv_len)"}),
                      array.shape.text()));
  }
  if (array.dtype != DType::BOOL) {
    array = score_type() == DType::F64 ? converted<double>(array, function, "attn_mask")
                                       : converted<float>(array, function, "attn_mask");
  }
  const int missing = leading.size() + 3 - array.rank();
  for (int axis = (std::max)(missing, 0); axis < leading.size(); ++axis) {
    const index_t extent = array.shape[axis - missing];
    if (extent == 1 || extent == leading[axis]) continue;
    throw attn::ShapeError(
        attn::message(function, "attn_mask",
                      attn::detail::join({"broadcast to the leading axes ", leading.text()}),
                      array.shape.text()));
  }
  const Extents strides = leading_strides(leading, array.shape, array.strides);
  mask = operand_of(std::move(array));
  mask->leading = strides;
}

void AttentionCall::read_vectors(const AttentionKeywords& keywords) {
  const auto read_scores = [&](nb::handle given, std::string_view name) {
    const Array array = read(given, function, name);
    return with_unit_stride(score_type() == DType::F64 ? converted<double>(array, function, name)
                                                       : converted<float>(array, function, name));
  };
  const auto check = [&](bool good, std::string_view name, std::string_view expected,
                         const Extents& found) {
    if (!good) throw attn::ShapeError(attn::message(function, name, expected, found.text()));
  };
  if (!keywords.sinks.is_none()) {
    sinks_ = read_scores(keywords.sinks, "sinks");
    check(sinks_->rank() == 1, "sinks", "have shape (num_heads)", sinks_->shape);
  }
  const index_t rows = leading.product();
  if (!keywords.alibi.is_none()) {
    slopes_ = read_scores(keywords.alibi, "alibi");
    const bool per_row = slopes_->rank() == 2 && slopes_->shape[0] == rows;
    check(slopes_->rank() == 1 || per_row, "alibi", "have shape (num_heads) or (batch, num_heads)",
          slopes_->shape);
  }
  if (!keywords.key_lengths.is_none()) {
    key_lengths_ = read_integers(keywords.key_lengths, function, "key_lengths");
    const auto found = static_cast<index_t>(key_lengths_->size());
    check(found == rows, "key_lengths", "have one length per batch row", Extents{found});
  }
}

void AttentionCall::prepare_gradients() {
  for (const auto& [x, name] : {std::pair{&q, "query"}, {&k, "key"}, {&v, "value"}}) {
    bool is_whole = rank == 2 || x->array.shape.back(2) == x->shape[0];
    for (int axis = 0; axis < leading.size(); ++axis) {
      is_whole = is_whole && x->array.shape[axis] == leading[axis];
    }
    if (is_whole) continue;
    throw attn::ShapeError(attn::message(
        function, name,
        attn::detail::join({"not broadcast along the axes ", leading.text(), " and the heads"}),
        x->array.shape.text()));
  }
  if (!mask) return;
  Operand plain = operand_of(contiguous(mask->array));
  plain.leading = leading_strides(leading, plain.array.shape, plain.array.strides);
  mask = std::move(plain);
}

Extents AttentionCall::out_shape() const {
  Extents shape = leading;
  if (rank > 2) shape.push_back(q.shape[0]);
  shape.push_back(q.shape[1]);
  shape.push_back(v.shape[2]);
  return shape;
}

Extents AttentionCall::lse_shape() const {
  const Extents out = out_shape();
  return out.first(out.size() - 1);
}

}  // namespace attn_python
