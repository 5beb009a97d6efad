// Checks of a context parallel call: what ranks refuse, and which fields must be equal on all.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "attn/attention/call/stored_view.hpp"
#include "attn/attention/options.hpp"
#include "attn/attention/tasks/tiling.hpp"
#include "attn/distributed/agreement.hpp"
#include "attn/distributed/context_layout.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline void check_ranks(std::string_view function, const Communicator& communicator,
                        const ContextLayout& layout) {
  if (layout.ranks() == communicator.size()) return;
  throw ValueError(
      message(function, "the layout",
              "have as many ranks as the communicator, " + std::to_string(communicator.size()),
              std::to_string(layout.ranks())));
}

template <class T>
void refuse_on_ranks(std::string_view function, const AttentionOptions<T>& options) {
  const auto refuse = [&](std::string_view name, bool given) {
    if (!given) return;
    throw ValueError(message(function, name, "not be given to attention on several ranks", "one"));
  };
  refuse("weights", static_cast<bool>(options.weights));
  refuse("average_weights", static_cast<bool>(options.average_weights));
  refuse("column_sums", static_cast<bool>(options.column_sums));
  refuse("scores", static_cast<bool>(options.scores));
  refuse("max_logits", static_cast<bool>(options.max_logits));
  refuse("qv", static_cast<bool>(options.qv));
  refuse("block_table", static_cast<bool>(options.block_table));
  refuse("gather", static_cast<bool>(options.gather));
  refuse("first_key", options.first_key != 0);
  refuse("MaskedRow::mean", options.masked_row == MaskedRow::mean);
}

/// Everything that must be equal on all ranks: the shapes without the number of tokens, and every
/// option. Of dense masks only kinds and shapes are compared.
template <class T, class... Functors>
AgreedFields context_fields(const ContextLayout& layout, const StoredView<const void>& q,
                            const StoredView<const void>& k, const StoredView<const void>& v,
                            const AttentionOptions<T>& options) {
  AgreedFields fields;
  fields.add("the version", index_t{ATTN_VERSION});
  fields.add("the number of tokens", layout.seq());
  fields.add("the kind of the layout", static_cast<index_t>(layout.kind()));
  fields.add("the element type of q", static_cast<index_t>(q.element()));
  fields.add("the element type of k and v", static_cast<index_t>(k.element()));
  fields.add("batch", q.extent(0));
  fields.add("num_heads", q.extent(1));
  fields.add("head_dim", q.extent(3));
  fields.add("num_kv_heads", k.extent(1));
  fields.add("head_dim_v", v.extent(3));
  fields.add("cu_seqlens_q", options.cu_seqlens_q);
  fields.add("cu_seqlens_k", options.cu_seqlens_k);
  const Mask& mask = options.mask;
  fields.add("causal", index_t{mask.causal});
  fields.add("the left window", mask.left);
  fields.add("the right window", mask.right);
  fields.add("chunked", mask.chunk);
  fields.add("key_lengths", mask.key_lengths);
  fields.add("query_lengths", mask.query_lengths);
  fields.add("left_padding", mask.left_padding);
  fields.add("prefix_lm", mask.prefix_lengths);
  fields.add("documents", mask.documents);
  fields.add("the number of dense masks", index_t{mask.num_dense});
  for (std::size_t n = 0; n < std::size_t{Mask::kMaxDense}; ++n) {
    fields.add("the kind of a dense mask", static_cast<index_t>(mask.dense[n].kind));
    fields.add("the shape of a dense mask",
               TensorView1<const index_t>(mask.dense[n].shape.data(), {4}));
  }
  fields.add("scale", options.scale.value_or(0));
  fields.add("softcap", options.softcap);
  fields.add("the kind of offset", static_cast<index_t>(options.offset.kind));
  fields.add("offset", options.offset.value);
  fields.add("query_offsets", options.offset.values);
  fields.add("alibi_slopes", options.alibi_slopes);
  fields.add("batch_alibi_slopes", options.batch_alibi_slopes);
  fields.add("relative_bias", options.relative_bias);
  fields.add("sinks", options.sinks);
  fields.add("dropout.p", options.dropout.p);
  fields.add("dropout.seed", static_cast<index_t>(options.dropout.seed));
  fields.add("int8 precision", index_t{options.precision.is_int8()});
  const std::vector<index_t> functors{static_cast<index_t>(typeid(Functors).hash_code())...};
  fields.add("the types of functors", TensorView1<const index_t>(functors));
  fields.add("the instruction set", static_cast<index_t>(options.execution.instruction_set()));
  fields.add("matmul_precision", index_t{options.execution.matmul_precision_used().parts()});
  fields.add("the size of the second-level cache", index_t{has_large_second_level_cache()});
  return fields;
}

}  // namespace detail

ATTN_NAMESPACE_END
