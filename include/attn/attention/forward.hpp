// Forward attention: how a call is cut into tasks, blocks of keys and tiles of queries, and what each of them does.
//
// Two paths. Many rows: keys are packed in panels, and a tile is MR rows. Few rows (all rows of a key/value head
// fit kFewRows): keys and values pass once, unpacked, since memory limits; a tile is all rows.
#pragma once

#include "attn/attention/row_kernels.hpp"
#include "attn/exec/caches.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// How the rows and keys of a call are cut. Results depend on block_kv and splits, which fix where sums are rescaled
/// and merged and which follow from kv_len and the machine alone; not on rows_per_task.
struct AttentionTiling {
  static constexpr index_t kMostBlockKV = 512;
  /// Rows of one task, at most and at least: packed queries and outputs of 384 x 64 floats are 96 KB each.
  static constexpr index_t kMostRows = 384, kLeastRows = 96;
  /// Keys of one task on the few-row path: enough work to be worth a task, and enough tasks for one head.
  static constexpr index_t kSplitKV = 2048;

  bool few;      ///< the path for few rows
  index_t rows;  ///< of one group: the heads that share keys are stacked, group * q_len
  index_t rows_per_task;
  index_t blocks_per_group;
  index_t splits;    ///< parts of the keys, each a task
  index_t block_kv;  ///< keys of one block, a multiple of every panel's width

  AttentionTiling(index_t groups, index_t rows_of_group, index_t kv_len, int threads)
      : few(rows_of_group <= kFewRows), rows(rows_of_group), rows_per_task(kMostRows) {
    // Packing a key costs about 1/400 of multiplying it by 384 rows; idle threads cost more.
    const auto tasks = [&] { return groups * ((rows + rows_per_task - 1) / rows_per_task); };
    while (rows_per_task > kLeastRows && tasks() < 2 * threads) rows_per_task /= 2;
    blocks_per_group = (rows + rows_per_task - 1) / rows_per_task;
    splits = few ? (kv_len + kSplitKV - 1) / kSplitKV : 1;
    // Packed K and V of 512 x 64 floats are 128 KB each; beside a task's rows, half a megabyte is not enough.
    const index_t most = second_level_cache() >= (1 << 20) ? kMostBlockKV : kMostBlockKV / 2;
    block_kv = std::min(most, (kv_len + 63) / 64 * 64);
  }
};

/// One query of one head. Row r of a group is head r / q_len of it, query r % q_len.
template <class T>
struct QueryRow {
  index_t h, i;
  KeyRange keys;
  RowState<T> state;
};

/// Scratch of one worker, cut from `elements` of T at `memory`.
template <class T>
struct ForwardScratch {
  T *q, *k, *v, *scores, *out;
  QueryRow<T>* rows;
  index_t out_stride, elements = 0;

  ForwardScratch(T* memory, const AttentionTiling& tiling, index_t d, index_t dv)
      : out_stride(round_up(dv)) {
    const auto take = [&](index_t n) {
      T* start = memory == nullptr ? nullptr : memory + elements;
      elements += round_up(n);
      return start;
    };
    const index_t num_rows = std::min(tiling.rows, tiling.rows_per_task);
    const index_t height =
        std::max((num_rows + kMostTileRows - 1) / kMostTileRows * kMostTileRows, kFewRows);
    q = take(height * d);
    k = take(tiling.few ? 0 : tiling.block_kv * d);
    v = take(tiling.block_kv * out_stride);
    scores = take(std::max(kMostTileRows, kFewRows) * tiling.block_kv);
    out = take(height * out_stride);
    rows = reinterpret_cast<QueryRow<T>*>(take(
        (num_rows * index_t{sizeof(QueryRow<T>)} + index_t{sizeof(T)} - 1) / index_t{sizeof(T)}));
  }

 private:
  static index_t round_up(index_t n) { return (n + 15) / 16 * 16; }
};

/// Rows [first_row, first_row + num_rows) of one group: one batch entry and key/value head.
struct RowBlock {
  index_t b, kv_head, first_row, num_rows;
};

template <class T>
class ForwardTask {
 public:
  ForwardTask(const AttentionProblem<T>& problem, const RowKernels<T>& kernels,
              const AttentionTiling& tiling, const ForwardScratch<T>& scratch, RowBlock block)
      : problem_(problem),
        kernels_(kernels),
        tiling_(tiling),
        scratch_(scratch),
        at_(block),
        tile_height_(tiling.few ? kFewRows : kernels.tile_rows) {}

  /// All keys: outputs, lse and weights.
  void run() {
    sum_rows({0, problem_.kv_len()});
    finish();
  }

  /// One part of the keys: the rows' sums and states, to be merged by finish_parts().
  void sum_part(index_t part, T* sums, RowState<T>* states) {
    const index_t begin = part * AttentionTiling::kSplitKV;
    sum_rows({begin, std::min(begin + AttentionTiling::kSplitKV, problem_.kv_len())});
    std::copy_n(scratch_.out, at_.num_rows * scratch_.out_stride, sums);
    for (index_t r = 0; r < at_.num_rows; ++r) states[r] = scratch_.rows[r].state;
  }

  /// Merges the parts, which follow each other in `sums` and `states`, in their order; then as run().
  void finish_parts(const T* sums, const RowState<T>* states) {
    set_rows(Sinks::left_out);  // they are in the first part
    for (index_t r = 0; r < at_.num_rows; ++r) {
      RowState<T>& row = scratch_.rows[r].state;
      T* out = scratch_.out + r * scratch_.out_stride;
      std::fill_n(out, scratch_.out_stride, T{0});
      for (index_t at = r; at < tiling_.splits * at_.num_rows; at += at_.num_rows) {
        const RowState<T>& part = states[at];
        const T most = std::max(row.most, part.most);
        if (most == kMinusInf<T>) continue;
        const T old = std::exp(row.most - most), added = std::exp(part.most - most);
        const T* sum = sums + at * scratch_.out_stride;
        for (index_t x = 0; x < scratch_.out_stride; ++x) out[x] = out[x] * old + sum[x] * added;
        row = {most, row.total * old + part.total * added};
      }
    }
    finish();
  }

 private:
  /// sum: online softmax and values at once. totals: online softmax alone, then values with final weights,
  /// which a prob functor needs. weights: final weights into options.weights.
  enum class Pass { sum, totals, values, weights };
  enum class Sinks { taken, left_out };
  /// Keys of which a mask functor is asked at once.
  static constexpr index_t kChunk = 64;

  /// A tile of rows against the keys of one block that some of them see.
  struct Tile {
    index_t row, height, first_key;
    KeyRange keys;
    bool all_visible;  ///< to the mask functor
  };

  /// scratch.out = sums of weight times value of every row, scratch.rows = their softmax state.
  void sum_rows(KeyRange keys) {
    set_rows(keys.begin == 0 ? Sinks::taken : Sinks::left_out);
    pack_queries();
    const index_t tiles = (at_.num_rows + tile_height_ - 1) / tile_height_;
    std::fill_n(scratch_.out, tiles * tile_height_ * scratch_.out_stride, T{0});
    if (!problem_.functors.prob) return pass_over_keys(Pass::sum, keys);
    pass_over_keys(Pass::totals, keys);
    pass_over_keys(Pass::values, keys);
  }

  void set_rows(Sinks sinks) {
    const index_t q_len = problem_.q_len(), group = problem_.num_heads() / problem_.num_kv_heads();
    for (index_t r = 0; r < at_.num_rows; ++r) {
      const index_t row = at_.first_row + r;
      const index_t h = at_.kv_head * group + row / q_len, i = row % q_len;
      RowState<T> state{kMinusInf<T>, T{0}};
      if (problem_.options.sinks && sinks == Sinks::taken)
        state = {problem_.options.sinks(h), T{1}};
      scratch_.rows[r] = {h, i, problem_.keys_seen(at_.b, i), state};
    }
  }

  const T* query(const QueryRow<T>& row) const {
    return problem_.q.at_index({at_.b, row.h, row.i, 0});
  }

  /// Queries in tiles of interleaved rows; few of them in plain rows.
  void pack_queries() {
    const index_t d = problem_.head_dim(), MR = kernels_.tile_rows;
    if (tiling_.few) {
      std::fill_n(scratch_.q, kFewRows * d, T{0});
      for (index_t r = 0; r < at_.num_rows; ++r) {
        std::copy_n(query(scratch_.rows[r]), d, scratch_.q + r * d);
      }
      return;
    }
    for (index_t r = 0; r < at_.num_rows; r += MR) {
      const index_t height = std::min(at_.num_rows - r, MR);
      const QueryRow<T>& first = scratch_.rows[r];
      prefetch_keys({0, std::min(tiling_.block_kv, problem_.kv_len())}, r);
      T* to = scratch_.q + r * d;
      if (first.h == scratch_.rows[r + height - 1].h) {
        kernels_.pack_tile(height, d, query(first), problem_.q.stride(2), 1, to);
      } else if (problem_.q_len() == 1) {
        kernels_.pack_tile(height, d, query(first), problem_.q.stride(1), 1, to);
      } else {  // the end of one head and the beginning of the next: row by row
        std::fill_n(to, MR * d, T{0});
        for (index_t x = 0; x < height; ++x) {
          const T* from = query(scratch_.rows[r + x]);
          for (index_t p = 0; p < d; ++p) to[p * MR + x] = from[p];
        }
      }
    }
  }

  /// Scores block after block of `keys`, as far as any row sees them, against every tile of rows. Blocks begin
  /// at multiples of block_kv whatever the rows are, so that a row is summed in the same order in every task.
  void pass_over_keys(Pass pass, KeyRange keys) {
    const KeyRange all = seen_by(0, at_.num_rows, keys);
    const index_t step = tiling_.block_kv;
    for (index_t first = all.begin / step * step; first < all.end; first += step) {
      const KeyRange block =
          seen_by(0, at_.num_rows, {std::max(first, all.begin), std::min(first + step, all.end)});
      if (block.begin >= block.end) continue;
      if (!tiling_.few) pack_keys(first, block);
      const KeyRange next{first + step, std::min(first + 2 * step, all.end)};
      for (index_t r = 0; r < at_.num_rows; r += tile_height_) {
        const index_t height = std::min(at_.num_rows - r, tile_height_);
        if (!tiling_.few) prefetch_keys(next, r);
        const KeyRange seen = seen_by(r, height, block);
        if (seen.begin >= seen.end) continue;
        const Tile tile{r, height, first, seen, visibility(r, height, seen) == Visibility::full};
        score_tile(tile);
        if (pass == Pass::weights) {
          weigh_tile(tile);
        } else {
          sum_tile(tile, pass);
        }
      }
    }
  }

  /// The smallest range with all keys of `block` that rows [r, r + count) see.
  KeyRange seen_by(index_t r, index_t count, KeyRange block) const {
    KeyRange seen{block.end, block.begin};
    for (index_t x = r; x < r + count; ++x) {
      const KeyRange keys = scratch_.rows[x].keys;
      const index_t begin = std::max(keys.begin, block.begin), end = std::min(keys.end, block.end);
      if (begin >= end) continue;
      seen.begin = std::min(seen.begin, begin);
      seen.end = std::max(seen.end, end);
    }
    if (problem_.functors.classify == nullptr) return seen;
    // Trimmed at both ends by what the mask functor says of chunks.
    while (seen.begin < seen.end) {
      const index_t next = std::min((seen.begin / kChunk + 1) * kChunk, seen.end);
      if (visibility(r, count, {seen.begin, next}) != Visibility::empty) break;
      seen.begin = next;
    }
    while (seen.begin < seen.end) {
      const index_t last = std::max((seen.end - 1) / kChunk * kChunk, seen.begin);
      if (visibility(r, count, {last, seen.end}) != Visibility::empty) break;
      seen.end = last;
    }
    return seen;
  }

  /// What the mask functor says of rows [r, r + count), head by head.
  Visibility visibility(index_t r, index_t count, KeyRange keys) const {
    const RowFunctors<T>& functors = problem_.functors;
    if (functors.classify == nullptr) return Visibility::partial;
    bool some = false, all = true;
    for (index_t x = r; x < r + count;) {
      const QueryRow<T>& first = scratch_.rows[x];
      index_t end = x + 1;
      while (end < r + count && scratch_.rows[end].h == first.h) ++end;
      const Visibility part = functors.classify(functors.mask.object, at_.b, first.h,
                                                {first.i, first.i + end - x}, keys);
      some = some || part != Visibility::empty;
      all = all && part == Visibility::full;
      x = end;
    }
    return all ? Visibility::full : some ? Visibility::partial : Visibility::empty;
  }

  /// The whole panels that hold `keys`, counted from first_key.
  KeyRange panels_of(index_t first_key, KeyRange keys) const {
    const index_t NR = kernels_.panel_width;
    return {(keys.begin - first_key) / NR * NR, (keys.end - first_key + NR - 1) / NR * NR};
  }

  /// K of one block in panels of NR keys; keys that no row sees are not read but taken as 0.
  void pack_keys(index_t first_key, KeyRange block) {
    const index_t d = problem_.head_dim(), stride = problem_.k.stride(2), NR = kernels_.panel_width;
    const KeyRange panels = panels_of(first_key, block);
    const index_t unseen = block.begin - first_key - panels.begin;
    T* panel = scratch_.k + panels.begin * d;
    const T* k = problem_.k.at_index({at_.b, at_.kv_head, block.begin, 0});
    if (unseen > 0) {  // a first panel that begins with unseen keys
      std::fill_n(panel, NR * d, T{0});
      const index_t seen = std::min(NR - unseen, block.end - block.begin);
      for (index_t j = 0; j < seen; ++j) {
        for (index_t p = 0; p < d; ++p) panel[p * NR + unseen + j] = k[j * stride + p];
      }
      panel += NR * d;
      k += seen * stride;
      block.begin += seen;
    }
    for (index_t j = block.begin; j < block.end; j += NR) {
      const index_t n = std::min(NR, block.end - j);
      prefetch<0>(problem_.v, problem_.head_dim_v(), {at_.b, at_.kv_head, j, 0}, n);
      kernels_.pack_columns(n, d, k, 1, stride, panel);
      panel += NR * d;
      k += n * stride;
    }
  }

  /// The share of `keys` that falls to the tile at row r.
  void prefetch_keys(KeyRange keys, index_t r) const {
    const index_t tiles = (at_.num_rows + tile_height_ - 1) / tile_height_, tile = r / tile_height_;
    const index_t n = keys.end - keys.begin;
    if (n <= 0) return;
    const index_t begin = tile * n / tiles, end = (tile + 1) * n / tiles;
    prefetch<0>(problem_.k, problem_.head_dim(), {at_.b, at_.kv_head, keys.begin + begin, 0},
                end - begin);
  }

  /// Asks for `count` rows from `at` on before they are needed: short sequences come from memory once, and what
  /// reads them takes as long as it waits. kWrite: 1 for rows that will be written.
  template <int kWrite, class U>
  static void prefetch(const TensorView4<U>& x, index_t dim, const Shape<4>& at, index_t count) {
    constexpr index_t kLine = 64 / index_t{sizeof(T)};
    const T* row = x.at_index(at);
    for (index_t i = 0; i < count; ++i, row += x.stride(2)) {
      for (index_t p = 0; p < dim; p += kLine) __builtin_prefetch(row + p, kWrite, 2);
    }
  }

  /// scratch.scores = masked scores of one tile of rows against whole panels of keys.
  void score_tile(const Tile& tile) {
    const index_t d = problem_.head_dim();
    const KeyRange panels = panels_of(tile.first_key, tile.keys);
    if (tiling_.few) {
      kernels_.score_rows(tile.height, tile.keys.end - tile.keys.begin, d, scratch_.q,
                          problem_.k.at_index({at_.b, at_.kv_head, tile.keys.begin, 0}),
                          problem_.k.stride(2), problem_.scale,
                          scratch_.scores + tile.keys.begin - tile.first_key, tiling_.block_kv);
    } else {
      kernels_.score_tile(d, scratch_.q + tile.row * d, scratch_.k, panels.begin, panels.end,
                          problem_.scale, scratch_.scores, tiling_.block_kv);
    }
    for (index_t x = 0; x < tile.height; ++x) {
      const QueryRow<T>& row = scratch_.rows[tile.row + x];
      T* s = scratch_.scores + x * tiling_.block_kv;
      const index_t begin = std::clamp(std::max(row.keys.begin, tile.keys.begin) - tile.first_key,
                                       panels.begin, panels.end);
      const index_t end =
          std::clamp(std::min(row.keys.end, tile.keys.end) - tile.first_key, begin, panels.end);
      std::fill(s + panels.begin, s + begin, kMinusInf<T>);
      std::fill(s + end, s + panels.end, kMinusInf<T>);
      if (begin < end) {
        mask_row(row, tile.first_key + begin, end - begin, s + begin, tile.all_visible);
      }
    }
  }

  /// Everything that options say of a query over n keys: first what is added, then what hides, so that a NaN
  /// in a bias for a hidden key goes the way of the key.
  void mask_row(const QueryRow<T>& row, index_t first_key, index_t n, T* s, bool all_visible) {
    using Dense = Mask::Dense;
    const AttentionOptions<T>& options = problem_.options;
    const auto apply = [&](const RowFunctor<T>& functor) {
      functor.apply(functor.object, n, s, at_.b, row.h, row.i, first_key);
    };
    if (problem_.functors.score) apply(problem_.functors.score);
    if (options.softcap > 0) kernels_.softcap(n, s, static_cast<T>(options.softcap));
    if (options.alibi_slopes) {
      kernels_.add_alibi(n, s, options.alibi_slopes(row.h),
                         problem_.position(at_.b, row.i) - first_key);
    }
    for (const bool adds : {true, false}) {
      for (int part = 0; part < options.mask.num_dense; ++part) {
        const Dense& dense = options.mask.dense[static_cast<std::size_t>(part)];
        if ((dense.kind == Dense::Kind::add) != adds) continue;
        const auto& strides = dense.strides;
        const index_t offset =
            at_.b * strides[0] + row.h * strides[1] + row.i * strides[2] + first_key * strides[3];
        if (adds) {
          kernels_.add_bias(n, s, static_cast<const T*>(dense.data) + offset, strides[3]);
        } else {
          kernels_.hide(n, s, static_cast<const bool*>(dense.data) + offset, strides[3],
                        dense.kind == Dense::Kind::drop);
        }
      }
    }
    if (problem_.functors.mask && !all_visible) apply(problem_.functors.mask);
  }

  /// Adds one block's keys to the states, the sums or both of one tile of rows.
  void sum_tile(const Tile& tile, Pass pass) {
    const KeyRange panels = panels_of(tile.first_key, tile.keys);
    const index_t stride = tiling_.block_kv;
    T* scores = scratch_.scores + tile.keys.begin - tile.first_key;
    const T* v = problem_.v.at_index({at_.b, at_.kv_head, tile.keys.begin, 0});
    index_t v_stride = problem_.v.stride(2);
    if (hidden_as_zero_) {
      copy_visible_values(tile.keys, scores);
      v = scratch_.v;
      v_stride = scratch_.out_stride;
    }
    T shrink[std::max(kMostTileRows, kFewRows)] =
        {};  // of rows that fill up the tile: sums that nobody reads
    for (index_t x = 0; x < tile.height; ++x) {
      QueryRow<T>& row = scratch_.rows[tile.row + x];
      T* s = scratch_.scores + x * stride + panels.begin;
      const index_t n = panels.end - panels.begin, first_key = tile.first_key + panels.begin;
      if (pass == Pass::values) {
        shrink[x] = 1;
        if (row.state.total == T{0}) {
          std::fill_n(s, n, T{0});
        } else {
          kernels_.weigh(n, s, row.state, s);
        }
        const RowFunctor<T>& prob = problem_.functors.prob;
        prob.apply(prob.object, n, s, at_.b, row.h, row.i, first_key);
      } else {
        shrink[x] = kernels_.online_softmax(n, s, row.state);
      }
      if (problem_.options.dropout.p > 0 && pass != Pass::totals) {
        kernels_.drop(n, s, problem_.options.dropout, at_.b, row.h, row.i, first_key);
      }
    }
    if (pass == Pass::totals) return;
    T* out = scratch_.out + tile.row * scratch_.out_stride;
    const index_t dv = problem_.head_dim_v(), num_keys = tile.keys.end - tile.keys.begin;
    if (tiling_.few) {
      kernels_.add_values_rows(tile.height, dv, num_keys, scores, stride, v, v_stride, out,
                               scratch_.out_stride, shrink);
    } else {
      kernels_.add_values_tile(dv, num_keys, scores, stride, v, v_stride, out, scratch_.out_stride,
                               shrink);
    }
  }

  /// scratch.v = values of `keys`, 0 where the score is -inf.
  void copy_visible_values(KeyRange keys, const T* scores) {
    const index_t dv = problem_.head_dim_v();
    for (index_t j = keys.begin; j < keys.end; ++j) {
      T* to = scratch_.v + (j - keys.begin) * scratch_.out_stride;
      if (scores[j - keys.begin] == kMinusInf<T>) {
        std::fill_n(to, dv, T{0});
      } else {
        std::copy_n(problem_.v.at_index({at_.b, at_.kv_head, j, 0}), dv, to);
      }
    }
  }

  void weigh_tile(const Tile& tile) {
    for (index_t x = 0; x < tile.height; ++x) {
      const QueryRow<T>& row = scratch_.rows[tile.row + x];
      if (row.state.total == T{0}) continue;
      kernels_.weigh(tile.keys.end - tile.keys.begin,
                     scratch_.scores + x * tiling_.block_kv + tile.keys.begin - tile.first_key,
                     row.state,
                     problem_.options.weights.at_index({at_.b, row.h, row.i, tile.keys.begin}));
    }
  }

  /// Outputs, lse and weights of all rows from their sums and states.
  void finish() {
    bool finite = true;
    for (index_t r = 0; r < at_.num_rows; ++r) {
      if (r + 8 < at_.num_rows) {
        const QueryRow<T>& later = scratch_.rows[r + 8];
        prefetch<1>(problem_.out, problem_.head_dim_v(), {at_.b, later.h, later.i, 0}, 1);
      }
      finite = finish_row(r) && finite;
    }
    if (problem_.options.weights) write_weights();
    if (finite || hidden_as_zero_ || !hides_keys()) return;
    // Weight 0 times a hidden NaN is NaN: such rows are summed again, alone, with the hidden taken as 0.
    for (index_t r = 0; r < at_.num_rows; ++r) {
      const index_t row = at_.first_row + r;
      T* out = out_row(row);
      if (kernels_.scale_row(problem_.head_dim_v(), T{1}, out, out)) continue;
      ForwardTask alone(problem_, kernels_, tiling_, scratch_, {at_.b, at_.kv_head, row, 1});
      alone.hidden_as_zero_ = true;
      alone.sum_rows({0, problem_.kv_len()});
      alone.finish_row(0);
    }
  }

  T* out_row(index_t row) const {
    const index_t q_len = problem_.q_len(), group = problem_.num_heads() / problem_.num_kv_heads();
    return problem_.out.at_index({at_.b, at_.kv_head * group + row / q_len, row % q_len, 0});
  }

  /// Output and lse of one row; false where the output is not finite.
  bool finish_row(index_t r) {
    const QueryRow<T>& row = scratch_.rows[r];
    const bool nothing_seen = row.state.total == T{0};
    if (problem_.options.lse) {
      problem_.options.lse(at_.b, row.h, row.i) =
          nothing_seen ? kMinusInf<T> : row.state.most + std::log(row.state.total);
    }
    T* out = out_row(at_.first_row + r);
    if (nothing_seen && problem_.options.masked_row == MaskedRow::mean) {
      mean_of_values(out);
      return true;
    }
    const T factor = nothing_seen ? T{0} : problem_.functors.prob ? T{1} : T{1} / row.state.total;
    return kernels_.scale_row(problem_.head_dim_v(), factor, scratch_.out + r * scratch_.out_stride,
                              out);
  }

  void mean_of_values(T* out) const {
    const index_t dv = problem_.head_dim_v(), keys = problem_.keys_of(at_.b);
    std::fill_n(out, dv, T{0});
    for (index_t j = 0; j < keys; ++j) {
      const T* v = problem_.v.at_index({at_.b, at_.kv_head, j, 0});
      for (index_t x = 0; x < dv; ++x) out[x] += v[x] / static_cast<T>(keys);
    }
  }

  /// A second pass over the scores, now that each row's largest score and sum are known.
  void write_weights() {
    const auto& weights = problem_.options.weights;
    for (index_t r = 0; r < at_.num_rows; ++r) {
      const QueryRow<T>& row = scratch_.rows[r];
      const bool mean = row.state.total == T{0} && problem_.options.masked_row == MaskedRow::mean;
      T* out = weights.at_index({at_.b, row.h, row.i, 0});
      std::fill_n(out, problem_.kv_len(), T{0});
      const index_t keys = problem_.keys_of(at_.b);
      if (mean) std::fill_n(out, keys, T{1} / static_cast<T>(keys));
    }
    if (tiling_.splits > 1) pack_queries();
    pass_over_keys(Pass::weights, {0, problem_.kv_len()});
  }

  bool hides_keys() const {
    const Mask& mask = problem_.options.mask;
    return mask.num_dense > 0 || problem_.functors.mask || mask.causal || mask.key_lengths ||
           mask.left < Mask::kUnbounded || mask.right < Mask::kUnbounded;
  }

  const AttentionProblem<T>& problem_;
  const RowKernels<T>& kernels_;
  const AttentionTiling& tiling_;
  const ForwardScratch<T>& scratch_;
  RowBlock at_;
  index_t tile_height_;  ///< rows of one tile
  bool hidden_as_zero_ = false;
};

/// What one call does and needs, known before it runs; the same on every instruction set.
template <class T>
struct ForwardPlan {
  index_t kv_heads, groups, rows;  ///< rows of one group: the heads that share keys are stacked
  bool serial;
  AttentionTiling tiling;
  index_t worker_elements, out_stride;

  ForwardPlan(const AttentionProblem<T>& problem, int concurrency)
      : kv_heads(problem.num_kv_heads()),
        groups(problem.batch() * kv_heads),
        rows(problem.num_heads() / kv_heads * problem.q_len()),
        // Below a million multiplications, about 30 us, waking threads costs more than they save.
        serial(groups * rows * problem.kv_len() * (problem.head_dim() + problem.head_dim_v()) <
               1000000),
        // A prob functor needs final weights, so its keys are not split.
        tiling(groups, rows, problem.functors.prob ? 1 : problem.kv_len(),
               serial ? 1 : concurrency) {
    const ForwardScratch<T> scratch = scratch_at(problem, nullptr);
    worker_elements = scratch.elements;
    out_stride = scratch.out_stride;
  }

  ForwardScratch<T> scratch_at(const AttentionProblem<T>& problem, T* memory) const {
    return {memory, tiling, problem.head_dim(), problem.head_dim_v()};
  }

  index_t num_parts() const { return tiling.splits > 1 ? groups * tiling.splits : 0; }

  /// Bytes that a call takes from its workspace.
  std::size_t workspace_bytes(int concurrency) const {
    return Scratch<T>::bytes(worker_elements * (serial ? 1 : concurrency)) +
           Scratch<T>::bytes(num_parts() * rows * out_stride) +
           Scratch<RowState<T>>::bytes(num_parts() * rows);
  }
};

/// One call, on the instruction set that `kernels` are of.
template <class T>
void forward_with(const RowKernels<T>& kernels, const AttentionProblem<T>& problem,
                  const Executor& executor, Workspace& workspace) {
  const ForwardPlan<T> plan(problem, executor.concurrency());
  const AttentionTiling& tiling = plan.tiling;
  const SerialExecutor one_thread;
  const Executor& threads = plan.serial ? one_thread : executor;
  Scratch<T> memory(workspace, plan.worker_elements * threads.concurrency());
  const auto scratch_of = [&](int worker) {
    return plan.scratch_at(problem, memory.data() + worker * plan.worker_elements);
  };
  const auto task = [&](const ForwardScratch<T>& scratch, index_t group, index_t block) {
    const index_t first = block * tiling.rows_per_task;
    return ForwardTask<T>(problem, kernels, tiling, scratch,
                          {group / plan.kv_heads, group % plan.kv_heads, first,
                           std::min(tiling.rows_per_task, plan.rows - first)});
  };
  if (tiling.splits == 1) {
    threads.run(plan.groups * tiling.blocks_per_group, [&](index_t i, int worker) {
      const ForwardScratch<T> scratch = scratch_of(worker);
      task(scratch, i / tiling.blocks_per_group, i % tiling.blocks_per_group).run();
    });
    return;
  }
  const index_t part = plan.rows * plan.out_stride;
  Scratch<T> sums(workspace, plan.num_parts() * part);
  Scratch<RowState<T>> states(workspace, plan.num_parts() * plan.rows);
  threads.run(plan.num_parts(), [&](index_t i, int worker) {
    const ForwardScratch<T> scratch = scratch_of(worker);
    task(scratch, i / tiling.splits, 0)
        .sum_part(i % tiling.splits, sums.data() + i * part, states.data() + i * plan.rows);
  });
  threads.run(plan.groups, [&](index_t group, int worker) {
    const ForwardScratch<T> scratch = scratch_of(worker);
    const index_t first = group * tiling.splits;
    task(scratch, group, 0)
        .finish_parts(sums.data() + first * part, states.data() + first * plan.rows);
  });
}

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/attention/forward.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
ATTN_KERNEL_DOOR(forward, AttentionProblem)
