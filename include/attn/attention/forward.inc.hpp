// Kernel text: fused attention over blocks of keys, one register tile of queries at a time.

/// One query of one head. The heads that share keys are stacked: row r is head r / q_len, query r % q_len.
template <class T>
struct QueryRow {
  index_t h, i;
  detail::KeyRange keys;
  RowState<T> state;
};

/// Scratch of one worker, for tasks of up to `num_rows` rows, cut from `elements` of T at `memory`.
template <class T>
struct ForwardScratch {
  static constexpr index_t kBlockKV = detail::AttentionTiling::kBlockKV;

  T *q, *k, *v, *scores, *out;
  QueryRow<T>* rows;
  index_t out_stride, elements = 0;

  ForwardScratch(T* memory, index_t num_rows, index_t d, index_t dv) : out_stride(round_up(dv)) {
    const auto take = [&](index_t n) {
      T* start = memory == nullptr ? nullptr : memory + elements;
      elements += round_up(n);
      return start;
    };
    const index_t height = packed_rows<T>(num_rows);
    q = take(height * d);
    k = take(kBlockKV * d);
    v = take(kBlockKV * out_stride);
    scores = take(TileShape<T>::MR * kBlockKV);
    out = take(height * out_stride);
    rows = reinterpret_cast<QueryRow<T>*>(take(
        (num_rows * index_t{sizeof(QueryRow<T>)} + index_t{sizeof(T)} - 1) / index_t{sizeof(T)}));
  }

 private:
  static index_t round_up(index_t n) { return (n + 15) / 16 * 16; }
};

/// Rows [first_row, first_row + num_rows) of one batch entry and key/value head.
template <class T>
class ForwardTask {
  static constexpr index_t NR = TileShape<T>::NR, MR = TileShape<T>::MR;
  static constexpr index_t kBlockKV = ForwardScratch<T>::kBlockKV;
  static_assert(kBlockKV % NR == 0);

 public:
  ForwardTask(const detail::AttentionProblem<T>& problem, const ForwardScratch<T>& scratch,
              index_t b, index_t kv_head, index_t first_row, index_t num_rows)
      : problem_(problem),
        scratch_(scratch),
        b_(b),
        kv_head_(kv_head),
        first_row_(first_row),
        num_rows_(num_rows) {}

  void run() {
    sum_rows();
    for (index_t r = 0; r < num_rows_; ++r) finish_row(r);
    if (problem_.options.weights) write_weights();
    if (!hides_keys()) return;
    // Weight 0 times a hidden NaN is NaN: such rows are summed again, alone, with the hidden taken as 0.
    for (index_t r = 0; r < num_rows_; ++r) {
      if (all_finite(problem_.head_dim_v(), out_row(scratch_.rows[r]))) continue;
      ForwardTask alone(problem_, scratch_, b_, kv_head_, first_row_ + r, 1);
      alone.hidden_as_zero_ = true;
      alone.sum_rows();
      alone.finish_row(0);
    }
  }

 private:
  enum class Pass { sum, weights };

  /// A tile of rows against the keys of one block that some of them see.
  struct Tile {
    index_t row;
    index_t height;
    index_t first_key;
    detail::KeyRange keys;
  };

  /// scratch.out = sums of weight times value of every row, scratch.rows = their softmax state.
  void sum_rows() {
    set_rows();
    pack_queries();
    std::fill_n(scratch_.out, packed_rows<T>(num_rows_) * scratch_.out_stride, T{0});
    pass_over_keys(Pass::sum);
  }

  /// Adds one block's keys to the sums of one tile of rows.
  void sum_tile(const Tile& tile) {
    const detail::KeyRange panels = panels_of(tile.first_key, tile.keys);
    T* scores = scratch_.scores + tile.keys.begin - tile.first_key;
    const T* v = problem_.v.at_index({b_, kv_head_, tile.keys.begin, 0});
    index_t v_stride = problem_.v.stride(2);
    if (hidden_as_zero_) {
      copy_visible_values(tile.keys, scores);
      v = scratch_.v;
      v_stride = scratch_.out_stride;
    }
    T shrink[MR] = {};  // rows that fill up the tile: scores 0, sums that nobody reads
    for (index_t x = 0; x < tile.height; ++x) {
      shrink[x] =
          online_softmax(panels.end - panels.begin, scratch_.scores + x * kBlockKV + panels.begin,
                         scratch_.rows[tile.row + x].state);
    }
    T* out = scratch_.out + tile.row * scratch_.out_stride;
    const index_t dv = problem_.head_dim_v(), num_keys = tile.keys.end - tile.keys.begin;
    tile_columns(dv, num_keys, scores, kBlockKV, v, v_stride, out, scratch_.out_stride, shrink);
  }

  void set_rows() {
    const index_t q_len = problem_.q_len(), group = problem_.num_heads() / problem_.num_kv_heads();
    const auto& sinks = problem_.options.sinks;
    for (index_t r = 0; r < num_rows_; ++r) {
      const index_t h = kv_head_ * group + (first_row_ + r) / q_len, i = (first_row_ + r) % q_len;
      RowState<T> state{kMinusInf<T>, T{0}};
      if (sinks) state = {sinks(h), T{1}};
      scratch_.rows[r] = {h, i, problem_.keys_seen(b_, i), state};
    }
  }

  /// Queries in tiles of interleaved rows.
  void pack_queries() {
    const index_t d = problem_.head_dim();
    const auto pack = [&](index_t r, index_t height, index_t stride, T* to) {
      const QueryRow<T>& row = scratch_.rows[r];
      pack_tile(height, d, problem_.q.at_index({b_, row.h, row.i, 0}), stride, index_t{1}, T{1},
                to);
    };
    for (index_t r = 0; r < num_rows_; r += MR) {
      const index_t height = std::min(num_rows_ - r, MR);
      T* to = scratch_.q + r * d;
      if (scratch_.rows[r].h == scratch_.rows[r + height - 1].h) {
        pack(r, height, problem_.q.stride(2), to);
      } else if (problem_.q_len() == 1) {
        pack(r, height, problem_.q.stride(1), to);
      } else {  // the end of one head and the beginning of the next: row by row
        for (index_t x = 0; x < height; ++x) {
          const QueryRow<T>& row = scratch_.rows[r + x];
          const T* from = problem_.q.at_index({b_, row.h, row.i, 0});
          for (index_t p = 0; p < d; ++p) to[p * MR + x] = from[p];
        }
        for (index_t x = height; x < MR; ++x) {
          for (index_t p = 0; p < d; ++p) to[p * MR + x] = T{0};
        }
      }
    }
  }

  /// Packs block after block of the keys that any row sees, and scores them against every tile of rows.
  /// Blocks begin at multiples of kBlockKV whatever the rows are, so that a row is summed in the same order
  /// in every task.
  void pass_over_keys(Pass pass) {
    const detail::KeyRange all = seen_by(0, num_rows_, {0, problem_.kv_len()});
    for (index_t first = all.begin / kBlockKV * kBlockKV; first < all.end; first += kBlockKV) {
      const detail::KeyRange block =
          seen_by(0, num_rows_, {first, std::min(first + kBlockKV, problem_.kv_len())});
      if (block.begin >= block.end) continue;
      pack_keys(first, block);
      for (index_t r = 0; r < num_rows_; r += MR) {
        const index_t height = std::min(num_rows_ - r, MR);
        const Tile tile{r, height, first, seen_by(r, height, block)};
        if (tile.keys.begin >= tile.keys.end) continue;
        score_tile(tile);
        if (pass == Pass::sum) {
          sum_tile(tile);
        } else {
          weigh_tile(tile);
        }
      }
    }
  }

  /// The smallest range with all keys of `block` that rows [r, r + count) see.
  detail::KeyRange seen_by(index_t r, index_t count, detail::KeyRange block) const {
    detail::KeyRange seen{block.end, block.begin};
    for (index_t x = r; x < r + count; ++x) {
      const detail::KeyRange keys = scratch_.rows[x].keys;
      const index_t begin = std::max(keys.begin, block.begin), end = std::min(keys.end, block.end);
      if (begin >= end) continue;
      seen.begin = std::min(seen.begin, begin);
      seen.end = std::max(seen.end, end);
    }
    return seen;
  }

  /// The whole panels that hold `keys`, counted from first_key.
  static detail::KeyRange panels_of(index_t first_key, detail::KeyRange keys) {
    return {(keys.begin - first_key) / NR * NR, (keys.end - first_key + NR - 1) / NR * NR};
  }

  /// K of one block in panels of NR keys; keys that no row sees are not read but taken as 0.
  void pack_keys(index_t first_key, detail::KeyRange block) {
    const index_t d = problem_.head_dim(), stride = problem_.k.stride(2);
    const detail::KeyRange panels = panels_of(first_key, block);
    const index_t unseen = block.begin - first_key - panels.begin;
    T* panel = scratch_.k + panels.begin * d;
    const T* k = problem_.k.at_index({b_, kv_head_, block.begin, 0});
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
    pack_columns(block.end - block.begin, d, k, index_t{1}, stride, panel);
  }

  /// scratch.scores = masked scores of one tile of rows against whole panels of keys.
  void score_tile(const Tile& tile) {
    const index_t d = problem_.head_dim();
    const detail::KeyRange panels = panels_of(tile.first_key, tile.keys);
    for (index_t j = panels.begin; j < panels.end; j += NR) {
      tile_panel<T, Start::zero>(d, scratch_.q + tile.row * d, scratch_.k + j * d,
                                 scratch_.scores + j, kBlockKV, nullptr);
    }
    for (index_t x = 0; x < tile.height; ++x) {
      const QueryRow<T>& row = scratch_.rows[tile.row + x];
      T* s = scratch_.scores + x * kBlockKV;
      // Scaled here and not in the queries: one rounding of each score instead of one of each factor.
      for (index_t j = panels.begin; j < panels.end; j += Vec<T>::kLanes) {
        (Vec<T>::load(s + j) * Vec<T>::all(problem_.scale)).store(s + j);
      }
      const index_t begin = std::clamp(row.keys.begin - tile.first_key, panels.begin, panels.end);
      const index_t end = std::clamp(row.keys.end - tile.first_key, begin, panels.end);
      std::fill(s + panels.begin, s + begin, kMinusInf<T>);
      std::fill(s + end, s + panels.end, kMinusInf<T>);
      if (begin < end) {
        apply_masks(problem_, ScoreRow<T>{s + begin, tile.first_key + begin, end - begin}, b_,
                    row.h, row.i);
      }
    }
  }

  /// scratch.v = values of `keys`, 0 where the score is -inf.
  void copy_visible_values(detail::KeyRange keys, const T* scores) {
    const index_t dv = problem_.head_dim_v();
    for (index_t j = keys.begin; j < keys.end; ++j) {
      T* to = scratch_.v + (j - keys.begin) * scratch_.out_stride;
      if (scores[j - keys.begin] == kMinusInf<T>) {
        std::fill_n(to, dv, T{0});
      } else {
        std::copy_n(problem_.v.at_index({b_, kv_head_, j, 0}), dv, to);
      }
    }
  }

  T* out_row(const QueryRow<T>& row) const { return problem_.out.at_index({b_, row.h, row.i, 0}); }

  /// Output and lse of row r from its sums.
  void finish_row(index_t r) {
    const QueryRow<T>& row = scratch_.rows[r];
    const T* sums = scratch_.out + r * scratch_.out_stride;
    const bool nothing_seen = row.state.total == T{0};
    if (problem_.options.lse) {
      problem_.options.lse(b_, row.h, row.i) =
          nothing_seen ? kMinusInf<T> : row.state.most + std::log(row.state.total);
    }
    if (nothing_seen && problem_.options.masked_row == MaskedRow::mean)
      return mean_of_values(out_row(row));
    const T factor = nothing_seen ? T{0} : T{1} / row.state.total;
    T* out = out_row(row);
    const index_t dv = problem_.head_dim_v();
    using V = Vec<T>;
    index_t x = 0;
    for (; x + V::kLanes <= dv; x += V::kLanes) (V::load(sums + x) * V::all(factor)).store(out + x);
    if (x < dv) (V::load(sums + x, dv - x) * V::all(factor)).store(out + x, dv - x);
  }

  void mean_of_values(T* out) const {
    const index_t dv = problem_.head_dim_v(), keys = problem_.keys_of(b_);
    std::fill_n(out, dv, T{0});
    for (index_t j = 0; j < keys; ++j) {
      const T* v = problem_.v.at_index({b_, kv_head_, j, 0});
      for (index_t x = 0; x < dv; ++x) out[x] += v[x] / static_cast<T>(keys);
    }
  }

  /// A second pass over the scores, now that each row's largest score and sum are known.
  void write_weights() {
    const auto& weights = problem_.options.weights;
    for (index_t r = 0; r < num_rows_; ++r) {
      const QueryRow<T>& row = scratch_.rows[r];
      const bool mean = row.state.total == T{0} && problem_.options.masked_row == MaskedRow::mean;
      T* out = weights.at_index({b_, row.h, row.i, 0});
      std::fill_n(out, problem_.kv_len(), T{0});
      if (mean) std::fill_n(out, problem_.keys_of(b_), T{1} / static_cast<T>(problem_.keys_of(b_)));
    }
    pass_over_keys(Pass::weights);
  }

  void weigh_tile(const Tile& tile) {
    for (index_t x = 0; x < tile.height; ++x) {
      const QueryRow<T>& row = scratch_.rows[tile.row + x];
      if (row.state.total == T{0}) continue;
      weigh(tile.keys.end - tile.keys.begin,
            scratch_.scores + x * kBlockKV + tile.keys.begin - tile.first_key, row.state,
            problem_.options.weights.at_index({b_, row.h, row.i, tile.keys.begin}));
    }
  }

  bool hides_keys() const {
    const Mask& mask = problem_.options.mask;
    return mask.num_dense > 0 || mask.causal || mask.key_lengths || mask.left < Mask::kUnbounded ||
           mask.right < Mask::kUnbounded;
  }

  static bool all_finite(index_t n, const T* x) {
    using V = Vec<T>;
    V total = V::all(T{0});  // x - x is 0, or NaN where x is not finite
    for (index_t i = 0; i < n; i += V::kLanes) {
      const V v = V::load(x + i, n - i);
      total = total + (v - v);
    }
    return sum(total) == T{0};
  }

  const detail::AttentionProblem<T>& problem_;
  const ForwardScratch<T>& scratch_;
  index_t b_, kv_head_, first_row_, num_rows_;
  bool hidden_as_zero_ = false;
};

template <class T>
inline void forward(const detail::AttentionProblem<T>& problem, const Executor& executor,
                    Workspace& workspace) {
  const index_t d = problem.head_dim(), dv = problem.head_dim_v();
  const index_t groups = problem.batch() * problem.num_kv_heads();
  const index_t rows = problem.num_heads() / problem.num_kv_heads() * problem.q_len();
  // Below a million multiplications, about 30 us, waking threads costs more than they save.
  const SerialExecutor serial;
  const Executor& threads =
      groups * rows * problem.kv_len() * (d + dv) < 1000000 ? serial : executor;
  const detail::AttentionTiling tiling(groups, rows, threads.concurrency());
  const index_t most_rows = std::min(rows, tiling.rows_per_task);
  const index_t each = ForwardScratch<T>(nullptr, most_rows, d, dv).elements;
  Scratch<T> memory(workspace, each * threads.concurrency());
  threads.run(tiling.num_tasks, [&](index_t task, int worker) {
    const index_t group = task / tiling.blocks_per_group;
    const index_t first = task % tiling.blocks_per_group * tiling.rows_per_task;
    const ForwardScratch<T> scratch(memory.data() + worker * each, most_rows, d, dv);
    ForwardTask<T>(problem, scratch, group / problem.num_kv_heads(), group % problem.num_kv_heads(),
                   first, std::min(tiling.rows_per_task, rows - first))
        .run();
  });
}
