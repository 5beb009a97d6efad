// HeadExchange: exchanges some tokens of all heads for all tokens of some heads, and back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "attn/core/buffer.hpp"
#include "attn/distributed/communicator.hpp"
#include "attn/distributed/context_layout.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// A tensor (batch, heads, tokens, dim) by tokens and by heads. A tensor of const E is sent from
/// tokens to heads, any other from heads to tokens.
template <class E>
struct HeadStream {
  using T = std::remove_const_t<E>;
  TensorView4<E> by_tokens;  ///< the tokens of this rank
  index_t heads_per_kv_head;
  Buffer<T> by_heads = {};  ///< (heads of this rank, seq, dim)
};

/// Gives each rank the key/value heads [begin, end) of all batch rows, numbered b * num_kv_heads +
/// kv_head. Source: Jacobs et al., "DeepSpeed Ulysses" (2023).
class HeadExchange {
 public:
  HeadExchange(Communicator& communicator, const ContextLayout& layout, index_t kv_heads)
      : communicator_(communicator), layout_(layout), kv_heads_(kv_heads) {}

  KeyRange heads_of(int rank) const {
    const index_t ranks = communicator_.size();
    return {kv_heads_ * rank / ranks, kv_heads_ * (rank + 1) / ranks};
  }
  KeyRange own_heads() const { return heads_of(communicator_.rank()); }

  /// Allocates by_heads and returns it as a view of all heads. Only the heads of this rank may be
  /// read.
  template <class E>
  TensorView4<std::remove_const_t<E>> take(HeadStream<E>& stream) const {
    using T = std::remove_const_t<E>;
    const index_t dim = stream.by_tokens.extent(3), size = layout_.seq() * dim;
    const index_t heads = stream.by_tokens.extent(1), first = first_head(stream);
    stream.by_heads = Buffer<T>((own_heads().end * stream.heads_per_kv_head - first) * size);
    // Integers, because head 0 may have no valid address on this rank.
    const auto address = reinterpret_cast<std::uintptr_t>(stream.by_heads.data()) -
                         static_cast<std::uintptr_t>(first * size) * sizeof(T);
    return {reinterpret_cast<T*>(address),
            {stream.by_tokens.extent(0), heads, layout_.seq(), dim},
            {heads * size, size, dim, 1}};
  }

  /// Copies all streams between the ranks.
  template <class E>
  void run(const std::vector<HeadStream<E>*>& streams) {
    using T = std::remove_const_t<E>;
    constexpr bool to_heads = std::is_const_v<E>;
    std::vector<Buffer<T>> sent, received;
    Requests requests;
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      // What a message holds: heads of one rank at the tokens of the other.
      const Part out = part_of(rank, to_heads), in = part_of(rank, !to_heads);
      T* to = sent.emplace_back(size_of_part(streams, out)).data();
      for_rows(streams, out, [&](HeadStream<E>& stream, index_t head, index_t at, index_t token) {
        to = std::copy_n(to_heads ? token_row(stream, head, at) : head_row(stream, head, token),
                         stream.by_tokens.extent(3), to);
      });
      received.emplace_back(size_of_part(streams, in));
      requests.push_back(communicator_.receive(rank, bytes_of(received.back())));
      requests.push_back(communicator_.send(rank, bytes_of(sent.back())));
    }
    wait_for(requests);
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      const T* from = received[static_cast<std::size_t>(rank)].data();
      for_rows(streams, part_of(rank, !to_heads),
               [&](HeadStream<E>& stream, index_t head, index_t at, index_t token) {
                 const index_t dim = stream.by_tokens.extent(3);
                 if constexpr (to_heads) {
                   std::copy_n(from, dim, head_row(stream, head, token));
                 } else {
                   std::copy_n(from, dim, token_row(stream, head, at));
                 }
                 from += dim;
               });
    }
  }

 private:
  struct Part {
    KeyRange kv_heads;
    int rank;  ///< the rank whose tokens they are
  };
  /// The heads of `rank` at this rank's tokens, or this rank's heads at the tokens of `rank`.
  Part part_of(int rank, bool has_own_tokens) const {
    return has_own_tokens ? Part{heads_of(rank), communicator_.rank()} : Part{own_heads(), rank};
  }

  template <class E>
  index_t size_of_part(const std::vector<HeadStream<E>*>& streams, const Part& part) const {
    index_t size = 0;
    for (const auto* stream : streams) {
      size += stream->heads_per_kv_head * stream->by_tokens.extent(3);
    }
    return size * (part.kv_heads.end - part.kv_heads.begin) * layout_.size(part.rank);
  }

  /// Calls f(stream, head, index among the tokens of the rank, token).
  template <class E, class F>
  void for_rows(const std::vector<HeadStream<E>*>& streams, const Part& part, const F& f) const {
    for (HeadStream<E>* stream : streams) {
      const index_t per_kv_head = stream->heads_per_kv_head;
      for (index_t head = part.kv_heads.begin * per_kv_head; head < part.kv_heads.end * per_kv_head;
           ++head) {
        index_t at = 0;
        for (const IndexRange& range : layout_.ranges(part.rank)) {
          for (index_t token = range.begin; token < range.end; ++token) {
            f(*stream, head, at++, token);
          }
        }
      }
    }
  }

  template <class E>
  index_t first_head(const HeadStream<E>& stream) const {
    return own_heads().begin * stream.heads_per_kv_head;
  }
  template <class E>
  static E* token_row(const HeadStream<E>& stream, index_t head, index_t at) {
    const index_t heads = stream.by_tokens.extent(1);
    return stream.by_tokens.at_index({head / heads, head % heads, at, 0});
  }
  template <class E>
  std::remove_const_t<E>* head_row(HeadStream<E>& stream, index_t head, index_t token) const {
    return stream.by_heads.data() +
           ((head - first_head(stream)) * layout_.seq() + token) * stream.by_tokens.extent(3);
  }

  Communicator& communicator_;
  const ContextLayout& layout_;
  index_t kv_heads_;
};

}  // namespace detail

ATTN_NAMESPACE_END
