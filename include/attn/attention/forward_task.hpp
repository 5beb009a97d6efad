// ForwardTask: what one task of forward attention does with its rows: pack, score, online softmax, values, outputs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/coming_rows.hpp"
#include "attn/attention/row_modifiers.hpp"
#include "attn/attention/task_keys.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
class ForwardTask {
 public:
  ForwardTask(const AttentionProblem<T>& problem, const ForwardKernels<T>& kernels,
              const SequenceTiling& tiling, const ForwardScratch<T>& scratch, const RowBlock& block)
      : problem_(problem),
        call_kernels_(kernels),
        kernels_(kernels.rows),
        tiling_(tiling),
        scratch_(scratch),
        at_(block),
        rows_(problem, block, scratch.rows),
        keys_(problem, kernels, scratch_, block),
        tile_rows_(tiling.few ? (std::max)(tiling.rows, index_t{1}) : kernels.rows.tile_rows),
        tile_height_(tiling.few ? round_up(tile_rows_, kFewRowsAtOnce) : tile_rows_),
        tiles_((block.num_rows + tile_rows_ - 1) / tile_rows_),
        copies_values_(!tiling.few && (problem.paged() || problem.widens_keys() ||
                                       problem.v.stride(2) != problem.head_dim_v())),
        changes_scores_(changes_scores(problem)),
        first_number_(problem.lengths(block.b).first_key) {}

  /// What its worker does next, asked for during the last block of keys. Of pages only the queries: masks may leave
  /// out pages that are not there.
  void expect(const RowBlock& next) {
    next_ = next;
    const bool same_keys = next.b == at_.b && next.kv_head == at_.kv_head;
    next_keys_ =
        same_keys || problem_.paged() ? 0 : (std::min)(problem_.keys_of(next.b), tiling_.block_kv);
  }

  /// All keys: outputs, lse and weights. kept_states: null, or of all rows (batch, num_heads, q_len).
  void run(RowState<T>* kept_states) {
    sum_all(kept_states);
    finish();
  }

  /// One part of the keys: the rows' sums and states, for copy_part().
  void sum_part(index_t part) {
    const index_t begin = part * SequenceTiling::kSplitKV;
    start({begin, (std::min)(begin + SequenceTiling::kSplitKV, tiling_.kv_len)}, Pass::sum);
  }

  /// What sum_part() left of one of its key/value heads, to be merged by finish_parts().
  void copy_part(index_t head, T* sums, RowState<T>* states) const {
    const index_t n = scratch_.out_stride, first = head * tile_rows_;
    std::copy_n(scratch_.out + head * tile_height_ * n, tile_count(first) * n, sums);
    for (index_t r = 0; r < tile_count(first); ++r) states[r] = rows_[first + r].state;
  }

  /// Merges the parts, kFewRows rows each in `sums` and `states`, in their order; then as run().
  void finish_parts(const T* sums, const RowState<T>* states, RowState<T>* kept_states) {
    const index_t n = scratch_.out_stride;
    for (index_t r = 0; r < rows_.count(); ++r) {
      T* out = scratch_.out + r * n;
      std::fill_n(out, n, T{0});
      for (index_t at = r; at < tiling_.splits * kFewRows; at += kFewRows) {
        merge_part(n, states[at], sums + at * n, rows_[r].state, out);
      }
    }
    close_rows(kept_states);
    finish();
  }

  /// column_sums += the weights of these rows, whose states run() kept, over `keys` of one block.
  void add_columns(KeyRange keys, const RowState<T>* kept_states) {
    for (index_t r = 0; r < rows_.count(); ++r) {
      rows_[r].state = kept_states[problem_.row_at(at_.b, rows_[r].h, rows_[r].i)];
    }
    close_rows(nullptr);
    pack_queries();
    pass_over_keys(Pass::columns, keys);
  }

 private:
  /// sum: online softmax and values at once. totals: online softmax alone, then values with final weights,
  /// which a prob functor needs. weights, columns: final weights into these outputs. scores: scores into theirs.
  enum class Pass { sum, totals, values, weights, columns, scores };

  /// A tile of rows, `at` rows into scratch.q and scratch.out, against the keys of one block that some of them see.
  struct Tile {
    index_t row, height, at, kv_head, first_key;
    KeyRange keys;
    bool all_visible;  ///< to the mask functor
    bool is_last;      ///< no block of keys comes after it
  };

  /// scratch.out = sums of weight times value of every row; closes the rows.
  void sum_all(RowState<T>* kept_states) {
    const KeyRange keys{0, tiling_.kv_len};
    const bool has_prob = static_cast<bool>(problem_.functors.prob);
    start(keys, has_prob ? Pass::totals : Pass::sum);
    close_rows(kept_states);
    if (has_prob) pass_over_keys(Pass::values, keys);
  }

  /// Row x again: the sums of all rows, in the same parts of the keys as before, with what x does not see taken as 0.
  void sum_again(index_t x) {
    zeros_of_ = x;
    if (tiling_.splits == 1) {
      sum_all(nullptr);
    } else {
      RowState<T> state{kMinusInf<T>, T{0}};
      const index_t n = scratch_.out_stride;
      T *of_part = scratch_.out + x * n, *out = scratch_.out + tile_height_ * n;
      std::fill_n(out, n, T{0});
      for (index_t part = 0; part < tiling_.splits; ++part) {
        for (index_t r = 0; r < rows_.count(); ++r) rows_[r].state = {kMinusInf<T>, T{0}};
        sum_part(part);
        merge_part(n, rows_[x].state, of_part, state, out);
      }
      rows_[x].state = state;
      std::copy_n(out, n, of_part);
      close_rows(nullptr);
    }
    finish_rows(x, 1, x);
  }

  /// The first pass over the keys, from sums of 0.
  void start(KeyRange keys, Pass pass) {
    pack_queries();
    std::fill_n(scratch_.out, tiles_ * tile_height_ * scratch_.out_stride, T{0});
    pass_over_keys(pass, keys);
  }

  /// Sinks join the states, which are then final.
  void close_rows(RowState<T>* kept_states) {
    const bool has_sinks = static_cast<bool>(problem_.options.sinks),
               is_final = static_cast<bool>(problem_.functors.prob);
    for (QueryRow<T>& row : rows_.all()) {
      const T sink = has_sinks ? problem_.options.sinks(row.h) : kMinusInf<T>;
      const bool has_sink = has_sinks && sink != kMinusInf<T>;
      // A row is empty by its masks alone: one that sees nothing but products of -inf has no weights.
      if (row.state.total == T{0} && !has_sink && sees_key(problem_, kernels_, at_.b, row)) {
        row.state.total = std::numeric_limits<T>::quiet_NaN();
      }
      if (kept_states != nullptr) kept_states[problem_.row_at(at_.b, row.h, row.i)] = row.state;
      T shrink = 1;
      if (has_sink) {
        const T most = (std::max)(row.state.most, sink);
        shrink = std::exp(row.state.most - most);
        row.state = {most, row.state.total * shrink + std::exp(sink - most)};
      }
      row.factor = row.state.total == T{0} ? T{0} : is_final ? T{1} : shrink / row.state.total;
    }
  }

  index_t tile_count(index_t row) const { return (std::min)(rows_.count() - row, tile_rows_); }

  /// Of queries that are of T.
  const T* query(const QueryRow<T>& row) const {
    return static_cast<const T*>(problem_.query(at_.b, row.h, row.i));
  }

  /// Whether queries fill their tiles, and those of each tile lie query_stride_ apart.
  bool queries_lie_in_tiles() const {
    const index_t last = tile_rows_ - 1;
    if (tile_height_ != tile_rows_ || rows_.count() != tiles_ * tile_rows_) return false;
    for (index_t r = 0; r < rows_.count(); r += tile_rows_) {
      if (query(rows_[r + last]) != query(rows_[r]) + last * query_stride_) return false;
    }
    return true;
  }

  /// Queries in whole tiles: where they lie, if they can, else copied. Copies take sdpa_short and sdpa_512 of attn_report
  /// 1.01 times as long. More than a few, passed over again for each of many keys, may evict one another where they lie.
  void pack_queries() {
    const index_t d = problem_.head_dim(), score_dim = problem_.score_dim(), count = rows_.count();
    copies_queries_ = problem_.options.qv || problem_.widens_queries() ||
                      (tiling_.few && tile_rows_ > kFewRowsAtOnce);
    if (!copies_queries_) {
      query_stride_ = count > 1 ? query(rows_[1]) - query(rows_[0]) : d;
      copies_queries_ = !queries_lie_in_tiles();
    }
    if (!copies_queries_) return;
    query_stride_ = score_dim;
    T* to = scratch_.q;
    for (index_t r = 0; r < count; r += tile_rows_) {
      const index_t height = tile_count(r);
      for (index_t x = 0; x < height; ++x, to += score_dim) {
        const QueryRow<T>& row = rows_[r + x];
        call_kernels_.of_queries.widen_rows(1, d, {problem_.query(at_.b, row.h, row.i), 0}, to, 0);
        if (problem_.options.qv) {
          std::copy_n(problem_.query_of_values(at_.b, row.h, row.i), score_dim - d, to + d);
        }
      }
      std::fill_n(to, (tile_height_ - height) * score_dim, T{0});
      to += (tile_height_ - height) * score_dim;
    }
  }

  /// Scores block after block of `keys`, as far as any row sees them. Blocks begin at multiples of block_kv
  /// whatever the rows are, so that a row is summed in the same order in every task.
  void pass_over_keys(Pass pass, KeyRange keys) {
    const KeyRange all = rows_.seen(keys);
    const index_t step = tiling_.block_kv;
    for (index_t first = all.begin / step * step; first < all.end; first += step) {
      pass_over_block(pass, first, all);
    }
  }

  /// The block that begins at `first`, as far as any row sees it, against every tile of rows.
  void pass_over_block(Pass pass, index_t first, KeyRange all) {
    const index_t step = tiling_.block_kv;
    const KeyRange block =
        rows_.seen({(std::max)(first, all.begin), (std::min)(first + step, all.end)});
    if (block.begin >= block.end) return;
    if (!tiling_.few) keys_.pack(first, block);
    const bool adds_values = pass == Pass::sum || pass == Pass::values;
    if (copies_values_ && adds_values && zeros_of_ < 0) keys_.copy_values(first, block);
    const KeyRange next{first + step, (std::min)(first + 2 * step, all.end)};
    const bool is_last = next.begin >= next.end;
    if (!tiling_.few) {
      const index_t panels =
          (block.end - block.begin + kernels_.panel_width - 1) / kernels_.panel_width;
      const auto asks = [&](const RowBlock& queries, KeyRange keys) {
        return ComingRows<T>(problem_, queries, keys, rows_.count(), tiles_ * panels,
                             kernels_.panel_width);
      };
      coming_ = is_last ? asks(next_, {0, next_keys_}) : asks({at_.b, at_.kv_head, 0, 0}, next);
    }
    index_t at = 0, kv_head = at_.kv_head;
    for (index_t r = 0; r < rows_.count();
         r += tile_rows_, at += tile_height_, kv_head += index_t{tiling_.few}) {
      const index_t height = tile_count(r);
      const KeyRange seen = rows_.seen_by(r, height, block);
      if (seen.begin >= seen.end) continue;
      if (pass == Pass::weights && !rows_.shows_weights(r, height)) continue;
      const bool all_visible = rows_.visibility(r, height, seen) == Visibility::full;
      const Tile tile{r, height, at, kv_head, first, seen, all_visible, is_last};
      score_tile(tile, pass == Pass::scores ? problem_.options.score_stage : ScoreStage::masked);
      if (pass == Pass::scores) {
        copy_scores(tile);
      } else if (pass == Pass::weights || pass == Pass::columns) {
        weigh_tile(tile, pass);
      } else {
        sum_tile(tile, pass);
      }
    }
  }

  /// scratch.scores = scores of one tile of rows, -inf where a row does not see the key.
  ATTN_INLINE void score_tile(const Tile& tile, ScoreStage stage) {
    const index_t d = problem_.score_dim();
    const KeyRange columns = keys_.scores_of(tile.first_key, tile.keys);
    const T* queries = copies_queries_ ? scratch_.q + tile.at * d : query(rows_[tile.row]);
    if (tiling_.few) {
      const index_t of_keys = problem_.head_dim(), n = tile.keys.end - tile.keys.begin;
      T* scores = scratch_.scores + tile.keys.begin - tile.first_key;
      call_kernels_.of_keys.score_rows(tile.height, n, of_keys, queries, query_stride_,
                                       keys_.point_to(problem_.k, tile.kv_head, tile.keys),
                                       problem_.scale, scores, tiling_.block_kv);
      scale_columns(problem_.k_scales, tile, scores, tiling_.block_kv);
      if (problem_.options.qv) add_scores_of_values(tile, queries + of_keys, n, scores);
    } else {
      for (index_t j = columns.begin; j < columns.end; j += kernels_.panel_width) {
        const T* panel = scratch_.k + j * d;
        kernels_.score_panel(d, queries, query_stride_, panel, problem_.scale, scratch_.scores + j,
                             tiling_.block_kv, coming_.ask_during(panel));
      }
    }
    if (rows_.alike() && !changes_scores_) return;
    for (index_t x = 0; x < tile.height; ++x) {
      const QueryRow<T>& row = rows_[tile.row + x];
      T* s = scratch_.scores + x * tiling_.block_kv;
      const index_t begin = std::clamp((std::max)(row.keys.begin, tile.keys.begin) - tile.first_key,
                                       columns.begin, columns.end);
      const index_t end =
          std::clamp((std::min)(row.keys.end, tile.keys.end) - tile.first_key, begin, columns.end);
      std::fill(s + columns.begin, s + begin, kMinusInf<T>);
      std::fill(s + end, s + columns.end, kMinusInf<T>);
      if (begin >= end || !changes_scores_ || stage == ScoreStage::scaled) continue;
      const index_t first = tile.first_key + begin;
      const ScoreRow<T> scores{at_.b,       row.h,    row.i, first, first_number_ + first,
                               end - begin, s + begin};
      cap_row(problem_, kernels_, scores);
      if (stage == ScoreStage::masked) mask_row(problem_, kernels_, scores, tile.all_visible);
    }
  }

  /// Multiplies a tile's scores, or weights, by the scales of its keys, or values, if there are any.
  void scale_columns(const TensorView3<const T>& scales, const Tile& tile, T* s,
                     index_t stride) const {
    if (!scales) return;
    keys_.load_factors(scales, tile.kv_head, tile.first_key, tile.keys);
    scale_columns_by_factors(tile, s, stride);
  }
  void scale_columns_by_factors(const Tile& tile, T* s, index_t stride) const {
    call_kernels_.of_keys.scale_columns(tile.height, tile.keys.end - tile.keys.begin,
                                        scratch_.factors + tile.keys.begin - tile.first_key, s,
                                        stride);
  }

  /// scores += scale qv . v of a tile's n keys on the path for few rows.
  void add_scores_of_values(const Tile& tile, const T* queries, index_t n, T* scores) {
    const void* const* values = keys_.point_to(problem_.v, tile.kv_head, tile.keys);
    call_kernels_.of_keys.score_rows(tile.height, n, problem_.head_dim_v(), queries, query_stride_,
                                     values, problem_.scale, scratch_.products, n);
    scale_columns(problem_.v_scales, tile, scratch_.products, n);
    for (index_t x = 0; x < tile.height; ++x) {
      T* s = scores + x * tiling_.block_kv;
      const T* products = scratch_.products + x * n;
      for (index_t j = 0; j < n; ++j) s[j] += products[j];
    }
  }

  /// Between rows of scores, what is needed later: masks of the next tile's row, keys, and the output.
  void ask_for_more(const Tile& tile, index_t x) {
    const index_t row = tile.row + x, later = row + tile_rows_;
    if (later < rows_.count()) prefetch_masks(problem_, at_.b, rows_[later], tile.keys);
    coming_.ask();
    if (tile.is_last) {
      prefetch_row<1>(problem_.output(at_.b, rows_[row].h, rows_[row].i), problem_.out);
    }
  }

  /// s = what the prob functor makes of the final weights of n scores, of keys from `number` on.
  void weigh_for_functor(const QueryRow<T>& row, index_t n, T* s, index_t number) {
    if (row.state.total == T{0}) {
      std::fill_n(s, n, T{0});
    } else {
      kernels_.weigh(n, s, row.state, s);
    }
    const RowFunctor<T>& prob = problem_.functors.prob;
    prob.apply(prob.object, n, s, at_.b, row.h, row.i, number);
  }

  /// scratch.v = values of a tile's keys; 0 where row zeros_of_ does not see the key, whatever its score is.
  void copy_shown_values(const Tile& tile) {
    T shown[kKeysShown];
    for (index_t j = tile.keys.begin; j < tile.keys.end; j += kKeysShown) {
      const KeyRange keys{j, (std::min)(j + kKeysShown, tile.keys.end)};
      show_keys(problem_, kernels_, at_.b, rows_[zeros_of_], keys, tile.all_visible, shown);
      keys_.copy_shown_values(tile.first_key, keys, shown, tiling_.few);
    }
  }

  /// Adds one block's keys to the states, the sums or both of one tile of rows.
  ATTN_INLINE void sum_tile(const Tile& tile, Pass pass) {
    const KeyRange columns = keys_.scores_of(tile.first_key, tile.keys);
    const index_t stride = tiling_.block_kv;
    T shrink[(std::max)(kMostTileRows, kFewRows)] = {};  // of rows that fill up the tile, too
    if (zeros_of_ >= 0) copy_shown_values(tile);
    const index_t n = columns.end - columns.begin;
    const index_t number = first_number_ + tile.first_key + columns.begin;
    T* s = scratch_.scores + columns.begin;
    QueryRow<T>* rows = &rows_[tile.row];
    if (tiling_.few && pass != Pass::values) {
      kernels_.online_softmax(tile.height, n, s, stride, rows, shrink);
    } else {
      for (index_t x = 0; x < tile.height; ++x) {
        if (!tiling_.few) ask_for_more(tile, x);
        if (pass == Pass::values) {
          shrink[x] = 1;
          weigh_for_functor(rows[x], n, s + x * stride, number);
        } else {
          kernels_.online_softmax(1, n, s + x * stride, stride, rows + x, shrink + x);
        }
      }
    }
    if (problem_.options.dropout.p > 0 && pass != Pass::totals) {
      for (index_t x = 0; x < tile.height; ++x) {
        kernels_.drop(n, s + x * stride, problem_.options.dropout, at_.b, rows[x].h, rows[x].i,
                      number);
      }
    }
    if (pass != Pass::totals) add_values(tile, shrink);
  }

  /// scratch.out of the tile's rows = shrink times itself + weights times values.
  ATTN_INLINE void add_values(const Tile& tile, const T* shrink) {
    const index_t dv = problem_.head_dim_v(), stride = tiling_.block_kv,
                  out_stride = scratch_.out_stride, n = tile.keys.end - tile.keys.begin;
    T* weights = scratch_.scores + tile.keys.begin - tile.first_key;
    const T* copied = scratch_.v + (tile.keys.begin - tile.first_key) * out_stride;
    T* out = scratch_.out + tile.at * out_stride;
    if (!tiling_.few) {
      const bool copies = zeros_of_ >= 0 || copies_values_;
      kernels_.add_values_tile(dv, n, weights, stride,
                               copies ? copied : keys_.value(tile.keys.begin),
                               copies ? out_stride : problem_.v.stride(2), out, out_stride, shrink);
      return;
    }
    const index_t first = tile.keys.begin - tile.first_key;
    if (zeros_of_ >= 0) {
      for (index_t j = 0; j < n; ++j) scratch_.pointers[j] = copied + j * out_stride;
      if (problem_.v_scales) scale_columns_by_factors(tile, weights, stride);
      call_kernels_.own.add_values_rows(tile.height, dv, first, n, weights, stride,
                                        scratch_.pointers, out, out_stride, shrink);
      return;
    }
    scale_columns(problem_.v_scales, tile, weights, stride);
    call_kernels_.of_keys.add_values_rows(tile.height, dv, first, n, weights, stride,
                                          keys_.point_to(problem_.v, tile.kv_head, tile.keys), out,
                                          out_stride, shrink);
  }

  /// Final weights of one tile, into `weights` or onto `column_sums`.
  void weigh_tile(const Tile& tile, Pass pass) {
    const AttentionOptions<T>& options = problem_.options;
    const index_t n = tile.keys.end - tile.keys.begin;
    for (index_t x = 0; x < tile.height; ++x) {
      const QueryRow<T>& row = rows_[tile.row + x];
      if (row.state.total == T{0}) continue;
      T* s = scratch_.scores + x * tiling_.block_kv + tile.keys.begin - tile.first_key;
      if (pass == Pass::weights) {
        const index_t at = problem_.weights_at(row.h);
        if (at < 0) continue;
        kernels_.weigh(n, s, row.state,
                       options.weights.at_index({at_.b, at, row.i, tile.keys.begin}));
        continue;
      }
      kernels_.weigh(n, s, row.state, s);
      for (index_t j = 0; j < n; ++j) {
        options.column_sums(at_.b, row.h, tile.keys.begin + j) += s[j];
      }
    }
  }

  /// Outputs, lse and weights of all rows from their sums and states.
  void finish() {
    const index_t q_len = tiling_.rows / problem_.group;
    bool finite = true;
    index_t at = 0;
    for (index_t r = 0; r < rows_.count(); r += tile_rows_, at += tile_height_) {
      const index_t count = tile_count(r);
      for (index_t x = 0; x < count;) {
        const index_t n = (std::min)(count - x, q_len - rows_[r + x].i);  // of one head
        finite = finish_rows(r + x, n, at + x) && finite;
        x += n;
      }
    }
    if (problem_.options.weights) write_weights();
    if (problem_.options.scores) write_scores();  // the last, since it forgets what rows see
    if (finite || !problem_.hides_keys()) return;
    // Weight 0 times a hidden NaN is NaN: such rows are summed again. Alone, where the order of sums does not depend on
    // other rows; on the path for few rows it follows from the keys that any of them sees.
    const RowBlock all = at_;
    for (index_t x = 0; x < all.num_rows; ++x) {
      const index_t row = all.first_row + x;
      if (is_finite(
              problem_.output(all.b, all.kv_head * problem_.group + row / q_len, row % q_len))) {
        continue;
      }
      const index_t head = all.kv_head + row / tiling_.rows;
      const RowBlock block =
          tiling_.few ? RowBlock{all.b, head, 0, tiling_.rows} : RowBlock{all.b, head, row, 1};
      ForwardTask(problem_, call_kernels_, tiling_, scratch_, block)
          .sum_again(tiling_.few ? row % tiling_.rows : 0);
    }
  }

  /// Whether a row of outputs is.
  bool is_finite(const void* out) const {
    const index_t dv = problem_.head_dim_v();
    T* copy = scratch_.v;
    call_kernels_.of_queries.widen_rows(1, dv, {out, 0}, copy, 0);
    QueryRow<T> unscaled{};
    unscaled.factor = T{1};
    return kernels_.scale_rows(1, dv, &unscaled, copy, 0, copy, 0);
  }

  /// Outputs and lse of `count` rows of one head, whose sums are scratch.out from row `at` on; false where an output is not
  /// finite.
  bool finish_rows(index_t first, index_t count, index_t at) {
    const QueryRow<T>* rows = &rows_[first];
    void* out = problem_.output(at_.b, rows->h, rows->i);
    const index_t dv = problem_.head_dim_v(), stride = problem_.out.stride(2);
    const index_t sum_stride = scratch_.out_stride;
    const bool narrows = problem_.widens_queries();
    T* sums = scratch_.out + at * sum_stride;
    const bool finite =
        kernels_.scale_rows(count, dv, rows, sums, sum_stride,
                            narrows ? sums : static_cast<T*>(out), narrows ? sum_stride : stride);
    if (narrows) {
      call_kernels_.of_queries.narrow_rows(count, dv, sums, sum_stride, out, stride);
    }
    for (index_t r = 0; r < count && problem_.options.lse; ++r) {
      problem_.lse(at_.b, rows[r].h, rows[r].i) =
          rows[r].state.most + std::log(rows[r].state.total);
    }
    for (index_t r = 0; r < count && problem_.options.masked_row == MaskedRow::mean; ++r) {
      if (rows[r].state.total != T{0}) continue;
      call_kernels_.of_queries.narrow_rows(1, dv, keys_.mean_of_values(rows[r].h / problem_.group),
                                           0, rows_after(out, r, problem_.out), 0);
    }
    return finite;
  }

  /// A second pass over the scores, now that each row's largest score and sum are known.
  void write_weights() {
    for (index_t r = 0; r < rows_.count(); ++r) {
      const QueryRow<T>& row = rows_[r];
      const index_t at = problem_.weights_at(row.h);
      if (at < 0) continue;
      T* out = problem_.options.weights.at_index({at_.b, at, row.i, 0});
      std::fill_n(out, problem_.scores[3], T{0});
      if (row.state.total == T{0} && problem_.options.masked_row == MaskedRow::mean) {
        const KeyRange keys = problem_.unpadded_keys(at_.b);
        std::fill(out + keys.begin, out + keys.end, T{1} / static_cast<T>(keys.end - keys.begin));
      }
    }
    if (tiling_.splits > 1) pack_queries();
    pass_over_keys(Pass::weights, {0, tiling_.kv_len});
  }

  void write_scores() {
    const TensorView4<T>& scores = problem_.options.scores;
    for (index_t r = 0; r < rows_.count(); ++r) {
      std::fill_n(scores.at_index({at_.b, rows_[r].h, rows_[r].i, 0}), problem_.scores[3],
                  kMinusInf<T>);
    }
    if (tiling_.splits > 1) pack_queries();
    if (problem_.options.score_stage != ScoreStage::masked) {
      rows_.show_all(problem_.keys_of(at_.b));
    }
    pass_over_keys(Pass::scores, {0, tiling_.kv_len});
  }

  void copy_scores(const Tile& tile) {
    for (index_t x = 0; x < tile.height; ++x) {
      const QueryRow<T>& row = rows_[tile.row + x];
      const T* s = scratch_.scores + x * tiling_.block_kv + tile.keys.begin - tile.first_key;
      std::copy_n(s, tile.keys.end - tile.keys.begin,
                  problem_.options.scores.at_index({at_.b, row.h, row.i, tile.keys.begin}));
    }
  }

  const AttentionProblem<T>& problem_;
  const ForwardKernels<T>& call_kernels_;
  const RowKernels<T>& kernels_;  ///< of them
  const SequenceTiling& tiling_;
  ForwardScratch<T> scratch_;
  RowBlock at_;
  RowBlock next_{};  ///< of the worker's next task, and how many new keys it begins with
  index_t next_keys_ = 0;
  ComingRows<T> coming_;
  TaskRows<T> rows_;
  TaskKeys<T> keys_;
  bool copies_queries_ = false;
  index_t query_stride_ = 0;  ///< of one tile's rows, in q or in their copies
  index_t tile_rows_;    ///< of one tile: of a key/value head's rows, all on the path for few rows
  index_t tile_height_;  ///< the same in memory, as many as kernels take at once
  index_t tiles_;
  /// Values of a block are copied side by side, once for all tiles: rows apart by a power of two, as in (batch, seq, 16
  /// heads, 64), fall into few sets of the caches, which took up to 1.2 times as long (attention_bench's
  /// attention_1024_seq_major).
  bool copies_values_;
  bool changes_scores_;
  index_t first_number_;   ///< of the first key given
  index_t zeros_of_ = -1;  ///< values that this row does not see are taken as 0; -1: none
};

}  // namespace detail

ATTN_NAMESPACE_END
