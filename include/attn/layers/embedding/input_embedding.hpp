// InputEmbedding: word, position and segment embeddings with a norm.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "attn/layers/embedding/embedding.hpp"
#include "attn/layers/embedding/positions.hpp"
#include "attn/layers/linear.hpp"
#include "attn/layers/norm.hpp"

ATTN_NAMESPACE_BEGIN

enum class Positions { none, sinusoidal, learned };

struct InputEmbeddingOptions {
  index_t vocab_size = 0;                 ///< ids are 0 .. vocab_size - 1
  index_t d_model = 0;                    ///< features of a token
  Positions positions = Positions::none;  ///< position embedding
  index_t max_positions = 0;              ///< of sinusoidal and learned positions
  SinusoidalForm sinusoidal_form = SinusoidalForm::interleaved;  ///< of sinusoidal positions
  index_t position_offset = 0;  ///< rows of the position table before position 0 (RoBERTa: 2)
  /// RoBERTa: tokens with id position_offset - 1 are padding: they use row position_offset - 1 of
  /// the position table and are not counted in the positions of other tokens. With sinusoidal
  /// positions, this row is 0.
  bool skip_padding = false;
  index_t num_token_types = 0;   ///< segments (BERT); 0: none
  bool scale = false;            ///< multiply word embeddings by sqrt(d_model), before positions
  double factor = 1;             ///< further factor of word embeddings, before positions
  bool norm = false;             ///< layer norm of the sum
  bool norm_bias = true;         ///< of the norm
  double layer_norm_eps = 1e-5;  ///< epsilon of the norm
  double dropout = 0;            ///< of the sum, only in calls that save for backward

  /// The factor of word embeddings.
  template <class T>
  T word_factor() const {
    return static_cast<T>(factor) * (scale ? std::sqrt(static_cast<T>(d_model)) : T{1});
  }
};

/// Options of one forward call.
struct InputEmbeddingCall {
  index_t first_position = 0;  ///< position of column 0, without position_ids
  /// (batch, seq); -n: n rows before position 0.
  TensorView2<const index_t> position_ids = {};
  /// Starts of packed sequences, as in AttentionOptions: positions restart at each; column 0 is
  /// token first_position of the packed tokens.
  TensorView1<const index_t> cu_seqlens = {};
  TensorView2<const index_t> token_type_ids = {};  ///< (batch, seq); 0 if not given
  Execution execution = {};                        ///< threads, scratch and instruction set
};

/// ids (batch, seq) of any integer type to (batch, seq, d_model).
template <class T>
class InputEmbedding {
 public:
  InputEmbedding() = default;
  explicit InputEmbedding(const InputEmbeddingOptions& options)
      : words(options.vocab_size, options.d_model), options_(options) {
    if (options.positions == Positions::none && options.position_offset != 0) {
      throw ValueError(message("InputEmbedding", "position_offset", "be 0 without positions",
                               std::to_string(options.position_offset)));
    }
    if (options.skip_padding && options.position_offset < 1) {
      throw ValueError(message("InputEmbedding", "position_offset",
                               "be at least 1 with skip_padding",
                               std::to_string(options.position_offset)));
    }
    if (options.positions != Positions::none && options.max_positions < 1) {
      throw ValueError(message("InputEmbedding", "max_positions", "be at least 1 with positions",
                               std::to_string(options.max_positions)));
    }
    if (options.positions != Positions::none) {
      const index_t rows = options.max_positions, before = options.position_offset;
      if (before < 0 || before > (std::numeric_limits<index_t>::max)() - rows) {
        throw ValueError(message("InputEmbedding", "position_offset",
                                 "lie in 0 .. 2^63 - 1 - max_positions", std::to_string(before)));
      }
      positions = Embedding<T>(before + rows, options.d_model);
    }
    if (options.positions == Positions::sinusoidal) {
      sinusoidal_positions(positions.weight, 10000, options.sinusoidal_form);
      if (options.skip_padding) {
        std::fill_n(&positions.weight(options.position_offset - 1, 0), options.d_model, T{});
      }
    }
    if (options.num_token_types > 0) {
      token_types = Embedding<T>(options.num_token_types, options.d_model);
    }
    if (options.norm) {
      norm = LayerNorm<T>(options.d_model, options.layer_norm_eps, options.norm_bias);
    }
  }

  const InputEmbeddingOptions& options() const { return options_; }

  template <TensorLike Ids>
  Tensor3<T> operator()(const Ids& ids, const InputEmbeddingCall& call = {}) const {
    ATTN_ASSERT_IDS(Ids, "InputEmbedding: ids");
    const auto from = detail::view_as<const detail::id_t<Ids>, 2>(ids);
    auto out = Tensor3<T>::uninitialized({from.extent(0), from.extent(1), options_.d_model});
    forward(from, out, call);
    return out;
  }

  /// Throws ShapeError, and ValueError for an id or a position outside its table, before anything
  /// is written.
  template <TensorLike Ids, TensorLike Out>
  void forward(const Ids& ids, Out&& out, InputEmbeddingCall call = {}) const {
    ATTN_ASSERT_IDS(Ids, "InputEmbedding: ids");
    ATTN_ASSERT_OUTPUT(Out, T, 3, "InputEmbedding: out", "(batch, seq, d_model)", "the layer");
    const auto iv = detail::view_as<const detail::id_t<Ids>, 2>(ids);
    const auto ov = detail::view_as<T, 3>(out);
    const index_t batch = iv.extent(0), seq = iv.extent(1), dim = options_.d_model;
    const bool counts = (call.cu_seqlens || options_.skip_padding) && !call.position_ids;
    const index_t counted_rows = options_.skip_padding ? batch : 1;
    Scratch<index_t> counted(call.execution.scratch(), counts ? counted_rows * seq : 0);
    if (counts) {
      constexpr index_t kMax = (std::numeric_limits<index_t>::max)();
      if (call.first_position < 0 || call.first_position > kMax - seq) {
        throw ValueError(message("InputEmbedding", "first_position",
                                 "lie in 0 .. " + std::to_string(kMax - seq),
                                 std::to_string(call.first_position)));
      }
      check_starts(call.cu_seqlens, call.first_position + seq);
      for (index_t b = 0; b < (std::min)(counted_rows, batch); ++b) {
        count_positions(iv.select(0, b), call, counted.data() + b * seq);
      }
      call.position_ids = {counted.data(), {batch, seq}, {options_.skip_padding ? seq : 0, 1}};
    }
    const auto& types = call.token_type_ids;
    check_shape("InputEmbedding", "out", Shape<3>{batch, seq, dim}, ov.shape());
    detail::check_ids("InputEmbedding", "ids", iv, words.num_embeddings());
    if (positions.weight) check_positions(iv.shape(), call);
    if (options_.norm && dim > 1 && ov.stride(2) != 1) {
      throw_shape("InputEmbedding", "out",
                  "have innermost stride 1 with a norm (these are the strides)", ov.strides());
    }
    if (types) {
      check_shape("InputEmbedding", "token_type_ids", iv.shape(), types.shape());
      detail::check_ids("InputEmbedding", "token_type_ids", types, options_.num_token_types);
    }
    using Acc = Accumulator<T>;
    const Acc scale = options_.word_factor<Acc>();
    const auto* compressed = words.compressed();
    const bool is_widened = compressed != nullptr && !std::same_as<T, Acc>;
    const Scratch<Acc> widened(call.execution.scratch(), is_widened ? batch * seq * dim : 0);
    detail::for_rows(call.execution.threads(), batch * seq, dim, [&](index_t row) {
      const index_t b = row / seq, i = row % seq;
      const T* position =
          positions.weight
              ? &positions.weight(options_.position_offset + position_of(call, b, i), 0)
              : nullptr;
      const T* type =
          token_types.weight ? &token_types.weight(types ? types(b, i) : 0, 0) : nullptr;
      T* to = ov.at_index({b, i, 0});
      const index_t id = static_cast<index_t>(iv(b, i));
      const index_t step = ov.stride(2);
      const auto add = [&](const auto* word, index_t word_step) {
        for (index_t x = 0; x < dim; ++x) {
          Acc value = scale * word[x * word_step];
          if (position != nullptr) value += position[x];
          if (type != nullptr) value += type[x];
          to[x * step] = static_cast<T>(value);
        }
      };
      if (compressed == nullptr) return add(&words.weight(id, 0), 1);
      if constexpr (std::same_as<T, Acc>) {
        compressed->row(id, {to, {dim}, {step}});
        add(to, step);
      } else {
        Acc* const word = widened.data() + row * dim;
        compressed->row(id, {word, {dim}});
        add(word, 1);
      }
    });
    if (options_.norm) norm.forward(ov, ov, call.execution);
  }

  /// Positions of one row of tokens if there are no position_ids: used by forward() and its
  /// backward.
  template <class Id>
  void count_positions(const TensorView1<const Id>& tokens, const InputEmbeddingCall& call,
                       index_t* ids) const {
    if (options_.skip_padding) {
      detail::count_unpadded_positions(call.first_position, tokens, options_.position_offset - 1,
                                       call.cu_seqlens, ids);
    } else {
      detail::count_positions(call.first_position, tokens.extent(0), call.cu_seqlens, ids);
    }
  }

  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  Embedding<T> words, positions, token_types;
  LayerNorm<T> norm;

 private:
  static index_t position_of(const InputEmbeddingCall& call, index_t b, index_t i) {
    return call.position_ids ? call.position_ids(b, i) : call.first_position + i;
  }

  static void check_starts(const TensorView1<const index_t>& starts, index_t end) {
    for (index_t n = 0; n < starts.extent(0); ++n) {
      if (starts(n) >= 0 && starts(n) <= end) continue;
      throw ValueError(message("InputEmbedding", "cu_seqlens(" + std::to_string(n) + ")",
                               "lie in 0 .. " + std::to_string(end), std::to_string(starts(n))));
    }
  }

  void check_positions(const Shape<2>& shape, const InputEmbeddingCall& call) const {
    const index_t count = options_.max_positions;
    if (call.position_ids) {
      check_shape("InputEmbedding", "position_ids", shape, call.position_ids.shape());
      detail::check_ids("InputEmbedding", "position_ids", call.position_ids, count,
                        -options_.position_offset);
    } else if (call.first_position < 0 || call.first_position > count - shape[1]) {
      throw ValueError(message("InputEmbedding", "positions",
                               "lie in 0 .. " + std::to_string(count - 1),
                               std::to_string(call.first_position) + " and " +
                                   std::to_string(shape[1] - 1) + " after it"));
    }
  }

  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    self.words.visit_parameters(f.under("words."));
    if (f.is_of_weights()) return;  // the other tables are small
    if (self.options_.positions == Positions::learned) {
      self.positions.visit_parameters(f.under("positions."));
    }
    if (self.token_types.weight) self.token_types.visit_parameters(f.under("token_types."));
    if (self.options_.norm) self.norm.visit_parameters(f.under("norm."));
  }

  InputEmbeddingOptions options_;
};

ATTN_NAMESPACE_END
