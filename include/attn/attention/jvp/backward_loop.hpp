// BackwardJvpLoop: the keys of one key/value head with all of its queries, and their tangents.
// SPDX-License-Identifier: Apache-2.0
//
// Like BackwardLoop, but with two sets of scratch memory: one for values, one for tangents. If both
// factors of a product have tangents, its tangent is a sum of two products. No score matrix is
// stored.
#pragma once

#include "attn/attention/backward/keys.hpp"
#include "attn/attention/backward/products.hpp"
#include "attn/attention/backward/queries.hpp"
#include "attn/attention/jvp/backward_problem.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
class BackwardJvpLoop {
 public:
  /// `memory`: of score_elements().
  BackwardJvpLoop(const BackwardTask<T>& value, const BackwardTask<T>& tangent, T* memory)
      : value_(value),
        tangent_(tangent),
        more_scores_(memory),
        more_d_p_(more_scores_ + kRows * value_.scratch().score_stride),
        capped_(more_d_p_ + kRows * value_.scratch().score_stride) {}

  static index_t score_elements(const BackwardScratch<T>& scratch, bool has_softcap) {
    return (has_softcap ? 3 : 2) * kRows * scratch.score_stride;
  }

  /// Adds the gradients and their tangents to d_q, d_k and d_v.
  void run() {
    const BackwardTask<T>& task = value_.task;
    const KeyRange keys{0, task.problem.forward.lengths(task.b).kv_len};
    value_.queries.find_seen(keys);
    for (index_t first = 0; first < keys.end; first += task.tiling.block_kv) {
      run_block({first, (std::min)(first + task.tiling.block_kv, keys.end)});
    }
  }

 private:
  static constexpr index_t kRows = BackwardTiling::kBlockQ;

  /// The values or the tangents.
  struct Part {
    explicit Part(const BackwardTask<T>& of) : task(of), queries(of), keys(of), tile(of) {}

    const BackwardScratch<T>& scratch() const { return task.scratch; }

    void clear_keys(KeyRange block) const {
      const index_t filled = block.end - block.begin + kMaxTileRows;
      std::fill_n(scratch().d_k, filled * scratch().d_stride, T{0});
      std::fill_n(scratch().d_v, filled * scratch().dv_stride, T{0});
    }
    void add_keys(KeyRange block) const {
      const AttentionProblem<T>& forward = task.problem.forward;
      for (index_t j = block.begin, x = 0; j < block.end; ++j, ++x) {
        task.gradients.add_scaled(forward.head_dim(), forward.scale,
                                  scratch().d_k + x * scratch().d_stride,
                                  task.problem.key_row(task.problem.d_k, keys.head(), j));
        task.gradients.add_scaled(forward.head_dim_v(), T{1},
                                  scratch().d_v + x * scratch().dv_stride,
                                  task.problem.key_row(task.problem.d_v, keys.head(), j));
      }
    }

    BackwardTask<T> task;
    BackwardQueries<T> queries;
    BackwardKeys<T> keys;
    BackwardTile<T> tile;
  };

  KeyRange seen_by_rows(index_t first, KeyRange block) const {
    return intersection(value_.scratch().seen[first / kRows], block);
  }

  void run_block(KeyRange block) {
    KeyRange used{block.end, block.begin};
    for (index_t first = 0; first < value_.queries.count(); first += kRows) {
      const KeyRange seen = seen_by_rows(first, block);
      if (seen.begin >= seen.end) continue;
      used = {(std::min)(used.begin, seen.begin), (std::max)(used.end, seen.end)};
    }
    if (used.begin >= used.end) return;
    for (Part* part : {&value_, &tangent_}) {
      part->clear_keys(block);
      part->keys.pack(block.begin, used);
    }
    for (index_t first = 0; first < value_.queries.count(); first += kRows) {
      const KeyRange seen = seen_by_rows(first, used);
      if (seen.begin < seen.end) add_rows(first, seen);
    }
    for (const Part* part : {&value_, &tangent_}) part->add_keys(block);
  }

  /// Multiplies one block of rows with those keys of the block that at least one of the rows sees.
  void add_rows(index_t first, KeyRange seen) {
    const TaskRows<T> rows = value_.queries.rows_from(first);
    const BackwardScratch<T>&value = value_.scratch(), &tangent = tangent_.scratch();
    const index_t count = rows.count(), MR = value_.task.kernels.tile_rows;
    const index_t first_key = value_.keys.first();
    const KeyRange all{seen.begin - first_key, seen.end - first_key};
    tangent_.queries.copy(rows);
    value_.queries.copy(rows);  // the last one sets the rows' states
    TileKeys of_tile[kRows];
    for (index_t r = 0; r < count; r += MR) {
      const index_t height = (std::min)(MR, count - r);
      const KeyRange keys = rows.seen_by(r, height, seen);
      TileKeys& tile = of_tile[r / MR];
      tile.columns = {keys.begin - first_key, keys.end - first_key};
      if (keys.begin < keys.end) tile.chunks = rows.chunks(r, height, first_key, keys);
      for (const Part* part : {&value_, &tangent_}) {
        part->tile.clear_beyond(r, height, tile.columns, all);
      }
    }
    multiply(count, value, value, of_tile, all, value.weights, value.d_s);
    multiply(count, tangent, value, of_tile, all, tangent.weights, tangent.d_s);
    multiply(count, value, tangent, of_tile, all, more_scores_, more_d_p_);
    for (index_t r = 0; r < count; r += MR) {
      const TileKeys& tile = of_tile[r / MR];
      if (tile.columns.begin >= tile.columns.end) continue;
      const index_t height = (std::min)(MR, count - r);
      if (softcap() > 0) keep_capped_scores(r, height, tile.columns);
      value_.tile.make(rows, r, height, tile, true, false);
      for (index_t x = r; x < r + height; ++x) make_tangents(rows[x], x, tile.columns);
    }
    const KeyChunks chunks = rows.chunks(0, count, first_key, seen);
    for (const BackwardScratch<T>* scratch : {&value, &tangent}) {
      std::fill_n(scratch->d_q, round_up(count, MR) * scratch->d_stride, T{0});
    }
    const BackwardTask<T>& task = value_.task;
    add_products(task, value, value, value, count, of_tile, all, chunks);
    add_products(task, tangent, value, tangent, count, of_tile, all, chunks);
    add_products(task, value, tangent, tangent, count, of_tile, all, chunks);
    for (const Part* part : {&value_, &tangent_}) {
      for (index_t r = 0; r < count; ++r) {
        part->queries.add_gradient(first + r, part->scratch().d_q + r * part->scratch().d_stride);
      }
    }
  }

  /// scores = scale q k^T and d_p = d_out v^T, with q and d_out of `rows`, k and v of `keys`.
  void multiply(index_t count, const BackwardScratch<T>& rows, const BackwardScratch<T>& keys,
                const TileKeys* tiles, KeyRange all, T* scores, T* d_p) const {
    const AttentionProblem<T>& forward = value_.task.problem.forward;
    value_.tile.multiply(count, forward.head_dim(), rows.q, keys.k_panels, forward.scale, tiles,
                         all, scores);
    value_.tile.multiply(count, forward.head_dim_v(), rows.d_out, keys.v_panels, T{1}, tiles, all,
                         d_p);
  }

  /// Applies softcap to a copy of the scores of rows [r, r + height), which make() replaces.
  void keep_capped_scores(index_t r, index_t height, KeyRange columns) const {
    const BackwardScratch<T>& value = value_.scratch();
    const index_t n = columns.end - columns.begin;
    for (index_t x = r; x < r + height; ++x) {
      const index_t at = x * value.score_stride + columns.begin;
      std::copy_n(value.weights + at, n, capped_ + at);
      value_.task.kernels.softcap(n, capped_ + at, softcap());
    }
  }

  /// Turns the tangents of scores and of d_p in row r into those of weights and of d_s, in the
  /// whole panels that products filled.
  void make_tangents(const QueryRow<T>& row, index_t r, KeyRange columns) const {
    const BackwardTask<T>& task = tangent_.task;
    const BackwardScratch<T>&value = value_.scratch(), &tangent = tangent_.scratch();
    const index_t NR = task.kernels.panel_width, begin = columns.begin & -NR;
    const index_t at = r * value.score_stride + begin, n = round_up(columns.end, NR) - begin;
    const T d_lse = task.problem.of_query(task.problem.lse, task.b, row.h, row.i);
    const T *p = value.weights + at, *d_s = value.d_s + at;
    T *d_p = tangent.weights + at, *d_d_s = tangent.d_s + at;
    if (softcap() > 0) {
      task.gradients.capped_score_gradient_jvp(n, p, d_s, capped_ + at, softcap(), d_lse,
                                               tangent.delta[r], d_p, more_scores_ + at, d_d_s,
                                               more_d_p_ + at);
    } else {
      task.gradients.score_gradient_jvp(n, p, d_s, d_lse, tangent.delta[r], d_p, more_scores_ + at,
                                        d_d_s, more_d_p_ + at);
    }
  }

  T softcap() const { return static_cast<T>(value_.task.problem.forward.options.softcap); }

  Part value_, tangent_;
  T *more_scores_, *more_d_p_;
  T* capped_;  ///< scores after softcap
};

}  // namespace detail

ATTN_NAMESPACE_END
