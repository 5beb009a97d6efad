// LibraryOptions: the AttentionOptions of a ReferenceOptions, and the memory that they refer to.
#pragma once

#include <deque>

#include "attn/attention/options.hpp"

#include "support/references/reference.hpp"

namespace attn_test {

/// Not copyable or movable: the options refer to members.
template <class T>
class LibraryOptions {
 public:
  explicit LibraryOptions(const ReferenceOptions& from) {
    using Offset = ReferenceOptions::Offset;
    options_.softcap = from.softcap;
    options_.dropout = {from.dropout, from.seed};
    if (from.causal) options_.mask = attn::causal();
    if (from.left >= 0 || from.right >= 0) {
      options_.mask = options_.mask & attn::sliding_window(from.left, from.right);
    }
    for (const auto& mask : from.masks) options_.mask = options_.mask & dense(mask);
    const auto lengths = [&](const std::vector<Index>& entries, auto mask) {
      if (!entries.empty()) options_.mask = options_.mask & mask(hold_indices(entries));
    };
    using attn::Tensor1, attn::index_t;
    using Indices = Tensor1<index_t>;
    lengths(from.key_lengths, [](const Indices& x) { return attn::key_lengths(x); });
    lengths(from.query_lengths, [](const Indices& x) { return attn::query_lengths(x); });
    lengths(from.left_padding, [](const Indices& x) { return attn::left_padding(x); });
    lengths(from.prefix_lengths, [](const Indices& x) { return attn::prefix_lm(x); });
    if (from.chunk > 0) options_.mask = options_.mask & attn::chunked(from.chunk);
    if (from.documents) {
      const Indices& ids = hold_indices(from.documents.data);
      options_.mask = options_.mask & attn::documents(attn::TensorView2<const index_t>(
                                          ids.data(), from.documents.library_shape<2>()));
    }
    if (from.relative_bias) {
      fill(relative_bias_, from.relative_bias.data);
      options_.relative_bias = {relative_bias_.data(), from.relative_bias.library_shape<2>()};
    }
    options_.scale = from.scale;
    options_.offset = from.offset == Offset::bottom_right ? attn::bottom_right
                      : from.offset == Offset::top_left   ? attn::top_left
                      : from.offset == Offset::per_row
                          ? attn::query_offsets(hold_indices(from.offsets))
                          : attn::query_offset(from.fixed_offset);
    if (!from.alibi_slopes.empty()) {
      fill(slopes_, from.alibi_slopes);
      options_.alibi_slopes = slopes_;
    }
    options_.first_key = from.first_key;
    if (from.batch_alibi_slopes) {
      fill(batch_slopes_, from.batch_alibi_slopes.data);
      options_.batch_alibi_slopes = {batch_slopes_.data(),
                                     from.batch_alibi_slopes.library_shape<2>()};
    }
    if (from.qv) {
      fill(qv_, from.qv.data);
      options_.qv = {qv_.data(), from.qv.library_shape<4>()};
    }
    if (!from.sinks.empty()) {
      fill(sinks_, from.sinks);
      options_.sinks = sinks_;
    }
    if (from.mean_of_masked_row) options_.masked_row = attn::MaskedRow::mean;
  }
  LibraryOptions(const LibraryOptions&) = delete;
  LibraryOptions& operator=(const LibraryOptions&) = delete;

  const attn::AttentionOptions<T>& get() const { return options_; }

 private:
  using Kind = ReferenceOptions::Mask::Kind;

  attn::Mask dense(const ReferenceOptions::Mask& mask) {
    const auto& shape = mask.values.shape;
    if (mask.kind == Kind::add) return attn::additive_mask(hold(bias_, mask.values));
    const auto& bits = hold(bits_, mask.values);
    if (shape.at(1) == 1) {
      // A mask per batch row as users pass it: (batch, q_len, kv_len), unsqueezed.
      const attn::TensorView3<const bool> per_row(bits.data(), {shape[0], shape[2], shape[3]});
      return bits_mask(mask.kind, per_row.unsqueeze(1));
    }
    return bits_mask(mask.kind, bits);
  }

  template <class X>
  static attn::Mask bits_mask(Kind kind, const X& bits) {
    return kind == Kind::keep ? attn::keep_mask(bits) : attn::drop_mask(bits);
  }

  template <class U>
  static const attn::Tensor4<U>& hold(std::deque<attn::Tensor4<U>>& held,
                                      const Array<double>& values) {
    attn::Tensor4<U>& tensor = held.emplace_back(values.library_shape<4>());
    std::transform(values.data.begin(), values.data.end(), tensor.data(),
                   [](double x) { return static_cast<U>(x); });
    return tensor;
  }

  const attn::Tensor1<attn::index_t>& hold_indices(const std::vector<Index>& entries) {
    fill(indices_.emplace_back(), entries);
    return indices_.back();
  }

  template <class U, class V>
  static void fill(attn::Tensor1<U>& to, const std::vector<V>& from) {
    to = attn::Tensor1<U>({static_cast<attn::index_t>(from.size())});
    std::transform(from.begin(), from.end(), to.data(), [](V x) { return static_cast<U>(x); });
  }

  attn::AttentionOptions<T> options_;
  std::deque<attn::Tensor4<bool>> bits_;
  std::deque<attn::Tensor4<T>> bias_;
  std::deque<attn::Tensor1<attn::index_t>> indices_;
  attn::Tensor1<T> slopes_, batch_slopes_, sinks_, relative_bias_, qv_;
};

}  // namespace attn_test
