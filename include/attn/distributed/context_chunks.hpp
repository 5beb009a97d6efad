// ContextAttention: a rank's rows of a context parallel call, over keys that arrive in chunks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "attn/attention/forward/parts.hpp"
#include "attn/attention/sdpa.hpp"
#include "attn/core/buffer.hpp"
#include "attn/distributed/context_plan.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Runs tasks on another executor, and polls requests between the tasks of the calling thread: MPI
/// transfers data only while it is called. Removes requests that are complete.
class PollingExecutor final : public Executor {
 public:
  PollingExecutor(const Executor& threads, std::initializer_list<Requests*> requests)
      : threads_(threads), requests_(requests) {}

  int concurrency() const override { return threads_.concurrency(); }
  void run(index_t count, TaskRef task) const override {
    const std::thread::id caller = std::this_thread::get_id();
    threads_.run(count, [&](index_t n, int worker) {
      task(n, worker);
      if (std::this_thread::get_id() != caller) return;
      for (Requests* requests : requests_) {
        // Unlike erase_if(), it leaves all requests valid if poll() throws.
        const auto done = std::partition(requests->begin(), requests->end(),
                                         [](const auto& request) { return !request->poll(); });
        requests->erase(done, requests->end());
      }
    });
  }

 private:
  const Executor& threads_;
  std::vector<Requests*> requests_;
};

/// Views x (batch, heads, tokens, dim), tokens of this rank, by their numbers in the whole
/// sequence: token `first` of the result is token `at` of x. Only the tokens of x may be read.
template <class T, int Rank>
TensorView<T, Rank> view_as_whole(const TensorView<T, Rank>& x, index_t seq, index_t first,
                                  index_t at) {
  Shape<Rank> shape = x.shape();
  shape[2] = seq;
  // Integers, because token 0 may have no valid address on this rank.
  const auto address = reinterpret_cast<std::uintptr_t>(x.data()) +
                       static_cast<std::uintptr_t>((at - first) * x.stride(2)) * sizeof(T);
  return {reinterpret_cast<T*>(address), shape, x.strides()};
}

/// A call of context_parallel_attention(). Keys arrive in chunks of whole blocks, in the order of
/// keys. A rank packs its own keys and values, and starts all its sends at the beginning of each
/// pass: the others take them when they need them. It stores two chunks: the one it computes with,
/// and the next one.
template <class In, class KeyElement, class T>
class ContextAttention {
 public:
  using Stage = typename AttentionPart<T>::Stage;

  ContextAttention(Communicator& communicator, const ContextLayout& layout,
                   const TensorView4<const KeyElement>& k, const TensorView4<const KeyElement>& v,
                   const AttentionOptions<T>& options)
      : communicator_(communicator), layout_(layout), k_(k), v_(v), options_(options) {}

  /// Adds the queries of one range; the first is token `at` of this rank.
  template <class... Functors>
  void add_range(const IndexRange& range, index_t at, const TensorView4<const In>& q,
                 const TensorView4<In>& out, const Functors&... functors) {
    Range& whole_call = *ranges_.emplace_back(std::make_unique<Range>());
    whole_call.options = options_;
    const auto whole = [&]<class X, int Rank>(const TensorView<X, Rank>& x) {
      return view_as_whole(x, layout_.seq(), range.begin, at);
    };
    if (options_.lse) whole_call.options.lse = whole(TensorView3<T>(options_.lse));
    whole_call.problem.emplace(make_problem_with<T>(whole(q), whole(k_), whole(v_), whole(out),
                                                    whole_call.options, functors...));
  }

  const AttentionProblem<T>& problem() const { return *ranges_.front()->problem; }

  /// Computes all sequences that are not on the decode path.
  void run() {
    plan_.emplace(problem(), layout_, communicator_.rank());
    if (plan_->is_empty()) return;
    for (ContextRows<T>& rows : plan_->rows()) {
      const index_t count = (rows.batch.end - rows.batch.begin) * problem().num_heads() *
                            (rows.queries.end - rows.queries.begin);
      rows.states.resize(static_cast<std::size_t>(count));
      rows.output_scales.resize(static_cast<std::size_t>(count));
      rows.sums = Buffer<T>(count * problem().head_dim_v());
      rows.non_finite.resize(static_cast<std::size_t>(count));
    }
    pack_own();
    for (Buffer<KeyElement>& buffer : buffers_) {
      buffer = Buffer<KeyElement>(plan_->longest_chunk() * token_size());
    }
    const bool has_prob = static_cast<bool>(problem().functors.prob);
    if (has_prob) pass(Stage::states, false);
    const Stage last = has_prob ? Stage::final_sums : Stage::sums;
    pass(last, false);
    if (problem().masks_keys() && any_non_finite()) pass(last, true);
  }

 private:
  /// The whole call, as seen from one range of this rank's tokens: only these may be read.
  struct Range {
    AttentionOptions<T> options;  ///< with lse as a view of the whole call
    std::optional<AttentionProblem<T>> problem;
  };

  /// The tokens of a chunk that lie in one range of the rank that holds them, the owner.
  struct Piece {
    int owner;
    IndexRange tokens;
    index_t at;  ///< of the first one among the owner's tokens
  };

  index_t k_size() const { return problem().num_kv_heads() * problem().head_dim(); }
  index_t v_size() const { return problem().num_kv_heads() * problem().head_dim_v(); }
  /// Elements of the keys and values of one token: k (batch, heads, dim), then v.
  index_t token_size() const { return k_.extent(0) * (k_size() + v_size()); }

  std::vector<Piece> pieces_of(const ContextChunk& chunk) const {
    std::vector<Piece> pieces;
    for (int rank = 0; rank < layout_.ranks(); ++rank) {
      for_parts(layout_, rank, chunk.tokens,
                [&](const IndexRange& tokens, index_t at, std::size_t) {
                  pieces.push_back({rank, tokens, at});
                });
    }
    return pieces;
  }

  void pack_own() {
    own_ = Buffer<KeyElement>(k_.extent(2) * token_size());
    KeyElement* to = own_.data();
    for (index_t i = 0; i < k_.extent(2); ++i) {
      for (const auto* x : {&k_, &v_}) {
        for (index_t b = 0; b < x->extent(0); ++b) {
          for (index_t h = 0; h < x->extent(1); ++h) {
            to = std::copy_n(x->at_index({b, h, i, 0}), x->extent(3), to);
          }
        }
      }
    }
  }
  std::span<const KeyElement> own_tokens(const Piece& piece) const {
    return {own_.data() + piece.at * token_size(), elements(piece)};
  }
  std::size_t elements(const Piece& piece) const {
    return static_cast<std::size_t>((piece.tokens.end - piece.tokens.begin) * token_size());
  }

  const ContextChunk& chunk_at(index_t n) const {
    return plan_->chunks()[static_cast<std::size_t>(n)];
  }
  KeyElement* stored(index_t n) { return buffers_[static_cast<std::size_t>(n % 2)].data(); }

  /// Starts to send this rank's tokens of all chunks.
  void send() {
    for (const ContextChunk& chunk : plan_->chunks()) {
      for (const Piece& piece : pieces_of(chunk)) {
        if (piece.owner != communicator_.rank()) continue;
        for (int to = 0; to < communicator_.size(); ++to) {
          if (to == communicator_.rank() || !chunk.needed_by[static_cast<std::size_t>(to)])
            continue;
          sends_.push_back(communicator_.send(to, std::as_bytes(own_tokens(piece))));
        }
      }
    }
  }

  /// Starts to receive chunk n.
  void receive(index_t n) {
    if (n >= std::ssize(plan_->chunks())) return;
    const ContextChunk& chunk = chunk_at(n);
    if (!chunk.needed_by[static_cast<std::size_t>(communicator_.rank())]) return;
    for (const Piece& piece : pieces_of(chunk)) {
      const std::span<KeyElement> to(
          stored(n) + (piece.tokens.begin - chunk.tokens.begin) * token_size(), elements(piece));
      if (piece.owner == communicator_.rank()) {
        std::copy_n(own_tokens(piece).begin(), to.size(), to.begin());
      } else {
        receives_.push_back(communicator_.receive(piece.owner, std::as_writable_bytes(to)));
      }
    }
  }

  /// One pass over all chunks, whose results are outputs and lse, or states.
  void pass(Stage stage, bool recomputes) {
    send();
    for (ContextRows<T>& rows : plan_->rows()) {
      // Fully masked rows have outputs, too.
      if (is_empty(rows.chunks)) run_part(rows, {0, 0}, stage, true, true, recomputes);
    }
    receive(0);
    for (index_t n = 0; n < std::ssize(plan_->chunks()); ++n) {
      Requests arriving = std::exchange(receives_, {});
      receive(n + 1);
      wait_for(arriving);
      compute(n, stage, recomputes);
    }
    wait_for(sends_);
  }

  /// Computes the rows of this rank that see keys of chunk n.
  void compute(index_t n, Stage stage, bool recomputes) {
    const ContextChunk& chunk = chunk_at(n);
    for (ContextRows<T>& rows : plan_->rows()) {
      if (n < rows.chunks.begin || n >= rows.chunks.end) continue;
      AttentionProblem<T>& problem = *ranges_[rows.range]->problem;
      const index_t batch = k_.extent(0), heads = problem.num_kv_heads();
      const auto view = [&](KeyElement* data, index_t dim) {
        const index_t tokens = chunk.tokens.end - chunk.tokens.begin;
        const TensorView4<const KeyElement> keys(data, {batch, heads, tokens, dim},
                                                 {heads * dim, dim, token_size(), 1});
        return view_as_whole(keys, layout_.seq(), chunk.tokens.begin, 0);
      };
      problem.k = view(stored(n), problem.head_dim());
      problem.v = view(stored(n) + batch * k_size(), problem.head_dim_v());
      run_part(rows, chunk.keys, stage, n == rows.chunks.begin, n + 1 == rows.chunks.end,
               recomputes);
    }
  }

  void run_part(ContextRows<T>& rows, KeyRange keys, Stage stage, bool is_first, bool is_last,
                bool recomputes) {
    const PollingExecutor threads(options_.execution.threads(), {&receives_, &sends_});
    Execution execution = options_.execution;
    execution.executor = &threads;
    const AttentionPart<T> part{.problem = *ranges_[rows.range]->problem,
                                .batch = rows.batch,
                                .queries = rows.queries,
                                .keys = keys,
                                .stage = stage,
                                .is_first = is_first,
                                .is_last = is_last,
                                .recomputes = recomputes,
                                .states = rows.states.data(),
                                .output_scales = rows.output_scales.data(),
                                .sums = rows.sums.data(),
                                .non_finite = rows.non_finite.data()};
    backend<family::AttentionParts, KeyElement, T>(execution).run(part, execution);
  }

  /// Whether any rank has an output that is not finite: a NaN in a masked value may have reached
  /// it.
  bool any_non_finite() {
    const auto is_set = [](std::uint8_t x) { return x != 0; };
    std::byte mine{0};
    for (const ContextRows<T>& rows : plan_->rows()) {
      if (std::any_of(rows.non_finite.begin(), rows.non_finite.end(), is_set)) mine = std::byte{1};
    }
    std::vector<std::byte> all(static_cast<std::size_t>(communicator_.size()));
    communicator_.all_gather(std::span(&mine, 1), all);
    return std::any_of(all.begin(), all.end(), [](std::byte x) { return x != std::byte{0}; });
  }

  Communicator& communicator_;
  const ContextLayout& layout_;
  TensorView4<const KeyElement> k_, v_;
  const AttentionOptions<T>& options_;
  std::vector<std::unique_ptr<Range>> ranges_;
  std::optional<ContextPlan<T>> plan_;
  Buffer<KeyElement> own_;  ///< keys and values of this rank, token by token
  std::array<Buffer<KeyElement>, 2> buffers_;
  Requests sends_, receives_;  ///< receives_: of the next chunk
};

}  // namespace detail

ATTN_NAMESPACE_END
