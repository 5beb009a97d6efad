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
#include "attn/distributed/communicator.hpp"
#include "attn/distributed/context_layout.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Runs tasks on another executor, and polls requests between the tasks of the calling thread: MPI
/// transfers data only while it is called.
class PollingExecutor final : public Executor {
 public:
  using Requests = std::vector<std::unique_ptr<Request>>;

  PollingExecutor(const Executor& threads, std::initializer_list<const Requests*> requests)
      : threads_(threads), requests_(requests) {}

  int concurrency() const override { return threads_.concurrency(); }
  void run(index_t count, TaskRef task) const override {
    const std::thread::id caller = std::this_thread::get_id();
    threads_.run(count, [&](index_t n, int worker) {
      task(n, worker);
      if (std::this_thread::get_id() != caller) return;
      for (const Requests* requests : requests_) {
        for (const auto& request : *requests) request->poll();
      }
    });
  }

 private:
  const Executor& threads_;
  std::vector<const Requests*> requests_;
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

/// The queries of one range of this rank's tokens as a part of the whole call.
template <class T>
struct ContextRows {
  IndexRange queries;
  std::optional<std::size_t> first_chunk = {}, last_chunk = {};  ///< with keys that they see
  AttentionOptions<T> options;  ///< with lse as a view of the whole call
  std::optional<AttentionProblem<T>> problem;
  std::vector<RowState<T>> states;
  std::vector<T> output_scales;
  Buffer<T> sums;
  std::vector<std::uint8_t> non_finite;
};

/// A call of context_parallel_attention(). Keys arrive in chunks of whole blocks, in the order of
/// keys. Every rank stores two chunks: the one it computes with, and the next one.
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
  void add_rows(const IndexRange& queries, index_t at, const TensorView4<const In>& q,
                const TensorView4<In>& out, const Functors&... functors) {
    ContextRows<T>& rows = *rows_.emplace_back(std::make_unique<ContextRows<T>>());
    rows.queries = queries;
    rows.options = options_;
    if (options_.lse) {
      rows.options.lse = view_as_whole<T, 3>(options_.lse, layout_.seq(), queries.begin, at);
    }
    const auto whole = [&](const auto& x) {
      return view_as_whole(x, layout_.seq(), queries.begin, at);
    };
    rows.problem.emplace(make_problem_with<T>(whole(q), whole(k_), whole(v_), whole(out),
                                              rows.options, functors...));
  }

  const AttentionProblem<T>& problem() const { return *rows_.front()->problem; }

  void run() {
    plan_chunks();
    for (const auto& rows : rows_) {
      const auto count = static_cast<std::size_t>(problem().batch() * problem().num_heads() *
                                                  (rows->queries.end - rows->queries.begin));
      rows->states.resize(count);
      rows->output_scales.resize(count);
      rows->sums = Buffer<T>(static_cast<index_t>(count) * problem().head_dim_v());
      rows->non_finite.resize(count);
    }
    const bool has_prob = static_cast<bool>(problem().functors.prob);
    if (has_prob) pass(Stage::states, false);
    const Stage last = has_prob ? Stage::final_sums : Stage::sums;
    pass(last, false);
    if (problem().masks_keys() && any_non_finite()) pass(last, true);
  }

 private:
  using Requests = PollingExecutor::Requests;

  /// Keys [begin, end), and for each rank whether it needs them.
  struct Chunk {
    IndexRange keys;
    std::vector<bool> needed_by;
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
  index_t token_size() const { return problem().k.extent(0) * (k_size() + v_size()); }

  /// The smallest range that contains all keys that queries see in any batch row.
  KeyRange seen_by(const IndexRange& queries) const {
    KeyRange all{layout_.seq(), 0};
    const bool varies = options_.mask.has_intervals();
    for (index_t b = 0; b < problem().batch(); ++b) {
      for (index_t i = queries.begin; i < (varies ? queries.end : queries.begin + 1); ++i) {
        const KeyRange seen = problem().keys_seen(b, i);
        if (seen.begin >= seen.end) continue;
        all = {(std::min)(all.begin, seen.begin), (std::max)(all.end, seen.end)};
      }
    }
    return all;
  }

  static bool overlap(const KeyRange& a, const KeyRange& b) {
    return (std::max)(a.begin, b.begin) < (std::min)(a.end, b.end);
  }

  void plan_chunks() {
    // Longer chunks save copies of the rows' sums, shorter ones memory.
    constexpr index_t kMaxKeys = 2048;
    const index_t block = tiling_of(problem(), 0).block_kv;
    std::vector<std::array<KeyRange, 2>> seen;
    index_t longest = 0;
    for (int rank = 0; rank < layout_.ranks(); ++rank) {
      auto& ranges = seen.emplace_back();
      for (std::size_t n = 0; n < 2; ++n) {
        const IndexRange queries = layout_.ranges(rank)[n];
        longest = (std::max)(longest, queries.end - queries.begin);
        ranges[n] = queries.begin < queries.end ? seen_by(queries) : KeyRange{0, 0};
      }
    }
    const index_t step = (std::max)(round_up((std::min)(longest, kMaxKeys), block), block);
    for (index_t begin = 0; begin < layout_.seq(); begin += step) {
      Chunk chunk{{begin, (std::min)(begin + step, layout_.seq())}, {}};
      for (const auto& ranges : seen) {
        bool needs = false;
        for (const KeyRange& range : ranges) {
          needs = needs || overlap(range, chunk.keys);
        }
        chunk.needed_by.push_back(needs);
      }
      for (std::size_t n = 0; n < rows_.size(); ++n) {
        const KeyRange& range = seen[static_cast<std::size_t>(communicator_.rank())][n];
        if (!overlap(range, chunk.keys)) continue;
        if (!rows_[n]->first_chunk) rows_[n]->first_chunk = chunks_.size();
        rows_[n]->last_chunk = chunks_.size();
      }
      chunks_.push_back(std::move(chunk));
    }
    for (Buffer<KeyElement>& buffer : buffers_) {
      buffer = Buffer<KeyElement>((std::min)(step, layout_.seq()) * token_size());
    }
  }

  std::vector<Piece> pieces_of(const Chunk& chunk) const {
    std::vector<Piece> pieces;
    for (int rank = 0; rank < layout_.ranks(); ++rank) {
      index_t at = 0;
      for (const IndexRange& range : layout_.ranges(rank)) {
        const IndexRange tokens{(std::max)(range.begin, chunk.keys.begin),
                                (std::min)(range.end, chunk.keys.end)};
        if (tokens.begin < tokens.end) {
          pieces.push_back({rank, tokens, at + tokens.begin - range.begin});
        }
        at += range.end - range.begin;
      }
    }
    return pieces;
  }

  bool needs(const Chunk& chunk) const {
    return chunk.needed_by[static_cast<std::size_t>(communicator_.rank())];
  }

  KeyElement* stored(std::size_t n, index_t token) {
    return buffers_[n % 2].data() + (token - chunks_[n].keys.begin) * token_size();
  }

  /// Copies this rank's tokens of a piece to chunk n.
  void copy_own(std::size_t n, const Piece& piece) {
    for (index_t i = piece.tokens.begin; i < piece.tokens.end; ++i) {
      KeyElement* to = stored(n, i);
      for (const auto* x : {&k_, &v_}) {
        for (index_t b = 0; b < x->extent(0); ++b) {
          for (index_t h = 0; h < x->extent(1); ++h) {
            to = std::copy_n(x->at_index({b, h, piece.at + i - piece.tokens.begin, 0}),
                             x->extent(3), to);
          }
        }
      }
    }
  }

  /// Starts the messages of chunk n.
  void post(std::size_t n) {
    if (n >= chunks_.size()) return;
    for (const auto& request : sends_[n % 2]) request->wait();  // of chunk n - 2
    sends_[n % 2].clear();
    const Chunk& chunk = chunks_[n];
    for (const Piece& piece : pieces_of(chunk)) {
      const std::span<KeyElement> tokens(
          stored(n, piece.tokens.begin),
          static_cast<std::size_t>((piece.tokens.end - piece.tokens.begin) * token_size()));
      if (piece.owner != communicator_.rank()) {
        if (!needs(chunk)) continue;
        receives_.push_back(communicator_.receive(piece.owner, std::as_writable_bytes(tokens)));
        continue;
      }
      copy_own(n, piece);
      for (int to = 0; to < communicator_.size(); ++to) {
        if (to == communicator_.rank() || !chunk.needed_by[static_cast<std::size_t>(to)]) continue;
        sends_[n % 2].push_back(communicator_.send(to, std::as_bytes(tokens)));
      }
    }
  }

  /// One pass over all chunks, whose results are outputs and lse, or states.
  void pass(Stage stage, bool recomputes) {
    for (const auto& rows : rows_) {
      // Fully masked rows have outputs, too.
      if (!rows->first_chunk) run_part(*rows, {0, 0}, stage, true, true, recomputes);
    }
    post(0);
    for (std::size_t n = 0; n < chunks_.size(); ++n) {
      Requests arriving = std::exchange(receives_, {});
      post(n + 1);
      for (const auto& request : arriving) request->wait();
      compute(n, stage, recomputes);
    }
    for (Requests& sends : sends_) {
      for (const auto& request : sends) request->wait();
      sends.clear();
    }
  }

  /// Computes the rows of this rank that see keys of chunk n.
  void compute(std::size_t n, Stage stage, bool recomputes) {
    const KeyRange keys = chunks_[n].keys;
    for (const auto& rows : rows_) {
      AttentionProblem<T>& problem = *rows->problem;
      if (!rows->first_chunk || n < *rows->first_chunk || n > *rows->last_chunk) continue;
      const index_t batch = problem.k.extent(0), heads = problem.num_kv_heads();
      const auto view = [&](KeyElement* data, index_t dim) {
        const TensorView4<const KeyElement> chunk(data, {batch, heads, keys.end - keys.begin, dim},
                                                  {heads * dim, dim, token_size(), 1});
        return view_as_whole(chunk, layout_.seq(), keys.begin, 0);
      };
      problem.k = view(stored(n, keys.begin), problem.head_dim());
      problem.v = view(stored(n, keys.begin) + batch * k_size(), problem.head_dim_v());
      run_part(*rows, keys, stage, n == *rows->first_chunk, n == *rows->last_chunk, recomputes);
    }
  }

  void run_part(ContextRows<T>& rows, KeyRange keys, Stage stage, bool is_first, bool is_last,
                bool recomputes) {
    const PollingExecutor threads(options_.execution.threads(),
                                  {&receives_, &sends_[0], &sends_[1]});
    Execution execution = options_.execution;
    execution.executor = &threads;
    const AttentionPart<T> part{.problem = *rows.problem,
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
    for (const auto& rows : rows_) {
      if (std::any_of(rows->non_finite.begin(), rows->non_finite.end(), is_set))
        mine = std::byte{1};
    }
    std::vector<std::byte> all(static_cast<std::size_t>(communicator_.size()));
    communicator_.all_gather(std::span(&mine, 1), all);
    return std::any_of(all.begin(), all.end(), [](std::byte x) { return x != std::byte{0}; });
  }

  Communicator& communicator_;
  const ContextLayout& layout_;
  TensorView4<const KeyElement> k_, v_;
  const AttentionOptions<T>& options_;
  std::vector<std::unique_ptr<ContextRows<T>>> rows_;
  std::vector<Chunk> chunks_;
  std::array<Buffer<KeyElement>, 2> buffers_;
  std::array<Requests, 2> sends_;
  Requests receives_;  ///< of the next chunk
};

}  // namespace detail

ATTN_NAMESPACE_END
