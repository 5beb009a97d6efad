// AttentionDraw: a random attention call, and its run in the library.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "attn/attention/sdpa.hpp"

#include "support/draws/library_options.hpp"
#include "support/placed.hpp"
#include "support/random.hpp"
#include "support/references/reference.hpp"

namespace attn_test {

template <class T>
struct AttentionDraw {
  Array<T> q, k, v;
  ReferenceOptions options;

  /// `work`: an approximate limit of multiplications.
  explicit AttentionDraw(Random& random, Index work = 400000) {
    const std::vector<Index> lengths = {1,  2,  3,  5,  7,   8,   9,   15,  16,   17,   31,
                                        33, 64, 97, 98, 255, 256, 257, 520, 1025, 2049, 4500};
    const std::vector<Index> dims = {1,  2,  3,  5,  7,  8,  9,  15, 16,  17,
                                     24, 31, 32, 33, 40, 64, 65, 97, 128, 160};
    Index batch = 0, kv_heads = 0, heads = 0, q_len = 0, kv_len = 0, dim = 0, dim_v = 0;
    do {
      batch = random.integer(1, 3), kv_heads = random.integer(1, 3);
      heads = kv_heads * random.pick<Index>({1, 1, 2, 4, 7});
      q_len = random.pick(lengths), kv_len = random.chance(0.3) ? q_len : random.pick(lengths);
      dim = random.pick(dims), dim_v = random.chance(0.6) ? dim : random.pick(dims);
    } while (batch * heads * q_len * kv_len * (dim + dim_v) > work);
    draw({batch, heads, q_len, kv_len}, kv_heads, dim, dim_v, random);
  }

  /// A call with these shapes.
  AttentionDraw(Random& random, const attn::Shape<4>& scores, Index kv_heads, Index dim,
                Index dim_v) {
    draw(scores, kv_heads, dim, dim_v, random);
  }

  attn::Shape<4> scores() const { return {q.extent(0), q.extent(1), q.extent(2), k.extent(2)}; }

  std::string text() const {
    std::string text =
        "q " + shape_text(q.shape) + ", k " + shape_text(k.shape) + ", v " + shape_text(v.shape);
    if (options.causal) text += ", causal";
    if (options.left >= 0 || options.right >= 0) {
      text += ", window " + std::to_string(options.left) + " " + std::to_string(options.right);
    }
    if (options.offset == ReferenceOptions::Offset::top_left) text += ", top left";
    if (options.offset == ReferenceOptions::Offset::fixed) {
      text += ", offset " + std::to_string(options.fixed_offset);
    }
    if (options.chunk > 0) text += ", chunks of " + std::to_string(options.chunk);
    if (options.documents) text += ", documents " + shape_text(options.documents.shape);
    if (options.relative_bias) text += ", relative bias " + shape_text(options.relative_bias.shape);
    for (const auto& mask : options.masks) {
      const char* kinds[] = {", keep ", ", drop ", ", add "};
      text += kinds[static_cast<int>(mask.kind)] + shape_text(mask.values.shape);
    }
    for (const auto& [name, entries] : per_row_options(options)) {
      if (!entries->empty()) text += ", " + std::string(name) + " " + shape_text(*entries);
    }
    if (!options.alibi_slopes.empty()) text += ", alibi";
    if (!options.sinks.empty()) text += ", sinks";
    if (options.batch_alibi_slopes) text += ", alibi of batch rows";
    if (options.qv) text += ", qv";
    if (options.first_key > 0) text += ", first key " + std::to_string(options.first_key);
    if (options.mean_of_masked_row) text += ", mean";
    if (options.softcap > 0) text += ", softcap " + std::to_string(options.softcap);
    if (options.dropout > 0) text += ", dropout " + std::to_string(options.dropout);
    return text;
  }

  /// The same call with these batch rows, in this order; rows may be repeated.
  AttentionDraw with_batch(const std::vector<Index>& rows) const {
    AttentionDraw result = *this;
    result.q = pick_rows(q, rows);
    result.k = pick_rows(k, rows);
    result.v = pick_rows(v, rows);
    for (auto& mask : result.options.masks) {
      if (mask.values.extent(0) > 1) mask.values = pick_rows(mask.values, rows);
    }
    if (options.qv) result.options.qv = pick_rows(options.qv, rows);
    if (options.batch_alibi_slopes) {
      result.options.batch_alibi_slopes = pick_rows(options.batch_alibi_slopes, rows);
    }
    if (options.documents && options.documents.extent(0) > 1) {
      result.options.documents = pick_rows(options.documents, rows);
    }
    for (const auto& [name, entries] : per_row_options(result.options)) {
      if (entries->empty()) continue;
      const std::vector<Index> all = std::exchange(*entries, {});
      for (Index row : rows) entries->push_back(all.at(static_cast<std::size_t>(row)));
    }
    return result;
  }

  template <class U>
  static Array<U> pick_rows(const Array<U>& x, const std::vector<Index>& rows) {
    Array<U> result;
    result.shape = x.shape;
    result.shape[0] = static_cast<Index>(rows.size());
    const Index size = x.size() / x.extent(0);
    for (Index row : rows) {
      result.data.insert(result.data.end(), x.data.begin() + row * size,
                         x.data.begin() + (row + 1) * size);
    }
    return result;
  }

  /// Options with one entry per batch row, by name.
  template <class Options>
  static auto per_row_options(Options& o) {
    return std::array{std::pair{"offsets", &o.offsets}, std::pair{"key lengths", &o.key_lengths},
                      std::pair{"query lengths", &o.query_lengths},
                      std::pair{"left padding", &o.left_padding},
                      std::pair{"prefix lengths", &o.prefix_lengths}};
  }

 private:
  void draw(const attn::Shape<4>& scores, Index kv_heads, Index dim, Index dim_v, Random& random) {
    const auto [batch, heads, q_len, kv_len] = scores;
    q = random.array<T>({batch, heads, q_len, dim}, random.pick<double>({1, 1, 1, 3}));
    k = random.array<T>({batch, kv_heads, kv_len, dim});
    v = random.array<T>({batch, kv_heads, kv_len, dim_v});
    draw_options(random);
  }

  void draw_documents(Random& random) {
    Array<Index> ids({random.chance(0.5) ? 1 : q.extent(0), options.first_key + k.extent(2)});
    const double ends = random.pick<double>({0.01, 0.1, 0.5});
    for (Index b = 0; b < ids.extent(0); ++b) {
      for (Index j = 1; j < ids.extent(1); ++j) {
        ids(b, j) = ids(b, j - 1) + (random.chance(ends) ? random.integer(1, 3) : 0);
      }
    }
    options.documents = ids;
  }

  void draw_options(Random& random) {
    using Kind = ReferenceOptions::Mask::Kind;
    using Offset = ReferenceOptions::Offset;
    const auto [batch, heads, q_len, kv_given] = scores();
    if (random.chance(0.2)) options.first_key = random.pick<Index>({1, 3, 50, 64, 700});
    const Index kv_len = options.first_key + kv_given;  // includes those before first_key
    if (random.chance(0.2)) options.scale = 0.5 * random.normal();
    options.causal = random.chance(0.35);
    if (random.chance(0.25)) {
      options.left = random.integer(-1, kv_len / 2);
      options.right = random.integer(-1, kv_len / 2);
    }
    if (random.chance(0.3)) options.offset = Offset::top_left;
    if (random.chance(0.2)) {
      options.offset = Offset::fixed;
      options.fixed_offset = random.integer(-q_len, kv_len);
    }
    const auto draw_rows = [&, rows = batch](double chance, std::vector<Index>& entries,
                                             Index least, Index most) {
      if (!random.chance(chance)) return;
      for (Index b = 0; b < rows; ++b) entries.push_back(random.integer(least, most));
    };
    draw_rows(0.1, options.offsets, -q_len, kv_len);
    if (!options.offsets.empty()) options.offset = Offset::per_row;
    draw_rows(0.3, options.key_lengths, 0, kv_len);
    draw_rows(0.15, options.query_lengths, 0, q_len);
    draw_rows(0.15, options.left_padding, 0, kv_len / 2);
    draw_rows(0.1, options.prefix_lengths, 0, kv_len);
    if (random.chance(0.1)) options.chunk = random.integer(1, kv_len);
    if (random.chance(0.1)) draw_documents(random);
    if (random.chance(0.15)) {
      const Index most = random.pick<Index>({0, 1, 7, 20, 600});
      options.relative_bias = random.array<double>({heads, 2 * most + 1});
      for (double& x : options.relative_bias.data) x = static_cast<double>(static_cast<float>(x));
    }
    while (options.masks.size() < 3 && random.chance(0.4)) {
      std::vector<Index> shape = {batch, heads, q_len, kv_given};
      for (Index& extent : shape) {
        if (random.chance(0.4)) extent = 1;
      }
      const Kind kind = random.pick<Kind>({Kind::keep, Kind::drop, Kind::add});
      const double masked = random.pick<double>({0.05, 0.3, 0.9});
      Array<double> values = random.bits(shape, kind == Kind::keep ? 1 - masked : masked);
      if (kind == Kind::add) {
        // Rounded to T, so that all references add the same numbers.
        for (double& x : values.data) {
          x = x != 0 ? -std::numeric_limits<double>::infinity()
                     : static_cast<double>(static_cast<float>(2 * random.normal()));
        }
      }
      options.masks.push_back({kind, values});
    }
    for (Index h = 0; h < heads; ++h) {
      options.alibi_slopes.push_back(std::exp2(-static_cast<double>(h + 1) / 2));
      options.sinks.push_back(static_cast<double>(static_cast<T>(random.normal())));
    }
    if (random.chance(0.8)) options.alibi_slopes.clear();
    if (random.chance(0.8)) options.sinks.clear();
    for (double& slope : options.alibi_slopes) slope = static_cast<double>(static_cast<T>(slope));
    const auto numbers_of_float = [&](const std::vector<Index>& shape, double scale) {
      return random.array<float>(shape, scale).template as<double>();
    };
    if (options.alibi_slopes.empty() && random.chance(0.1)) {
      options.batch_alibi_slopes = numbers_of_float({batch, heads}, 0.2);
    }
    if (random.chance(0.15)) options.qv = numbers_of_float({batch, heads, q_len, v.extent(3)}, 1);
    options.mean_of_masked_row = options.first_key == 0 && random.chance(0.3);
    if (random.chance(0.2)) options.softcap = random.pick<double>({0.5, 5, 30});
    if (random.chance(0.2)) {
      options.dropout = random.pick<double>({0.1, 0.5, 0.97});
      options.seed = static_cast<std::uint64_t>(random.integer(0, Index{1} << 40));
    }
  }
};

/// The library's results for contiguous inputs.
template <class T>
ReferenceResult<T> run_library(const AttentionDraw<T>& draw, const attn::Execution& execution) {
  const auto [batch, heads, q_len, kv_len] = draw.scores();
  ReferenceResult<T> result{.y = Array<T>({batch, heads, q_len, draw.v.extent(3)}),
                            .weights = Array<T>({batch, heads, q_len, kv_len}),
                            .lse = Array<T>({batch, heads, q_len}),
                            .average = Array<T>({batch, q_len, kv_len}),
                            .column_sums = Array<T>({batch, heads, kv_len}),
                            .max_logits = Array<T>({batch, heads})};
  const LibraryOptions<T> library(draw.options);
  attn::AttentionOptions<T> options = library.get();
  options.weights = result.weights.template view<4>();
  options.lse = result.lse.template view<3>();
  options.average_weights = result.average.template view<3>();
  options.column_sums = result.column_sums.template view<3>();
  options.max_logits = result.max_logits.template view<2>();
  options.execution = execution;
  attn::scaled_dot_product_attention(draw.q.template view<4>(), draw.k.template view<4>(),
                                     draw.v.template view<4>(), result.y.template view<4>(),
                                     options);
  return result;
}

template <class T>
bool same_bits(const ReferenceResult<T>& a, const ReferenceResult<T>& b) {
  return same_bits(a.y, b.y) && same_bits(a.weights, b.weights) && same_bits(a.lse, b.lse) &&
         same_bits(a.average, b.average) && same_bits(a.column_sums, b.column_sums) &&
         same_bits(a.max_logits, b.max_logits);
}

}  // namespace attn_test
