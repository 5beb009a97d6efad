// Seq2SeqSession, WhisperSession: encoder-decoder models with the caches of one batch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "attn/generation/generation_checks.hpp"
#include "attn/models/seq2seq_transformer.hpp"
#include "attn/models/whisper.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Throws unless each of `batch` rows is replaced by a row of its source, which has num_beams rows.
inline void check_same_source(std::string_view function, TensorView1<const index_t> rows,
                              index_t batch, index_t num_beams) {
  check_shape(function, "rows", "(batch)", Shape<1>{batch}, rows.shape());
  for (index_t b = 0; b < batch; ++b) {
    const index_t first = b / num_beams * num_beams, last = first + num_beams - 1;
    if (rows(b) >= first && rows(b) <= last) continue;
    throw ValueError(message(
        function, "rows(" + std::to_string(b) + ")",
        "lie in " + std::to_string(first) + " .. " + std::to_string(last) + ", where its source is",
        std::to_string(rows(b))));
  }
}

/// Row b of the result is row b / times of x.
template <class T>
Tensor3<T> repeat_rows(const Tensor3<T>& x, index_t times) {
  auto repeated = Tensor3<T>::uninitialized({x.extent(0) * times, x.extent(1), x.extent(2)});
  for (index_t row = 0; row < repeated.extent(0); ++row) {
    copy(const_view(x).select(0, row / times), repeated.view().select(0, row));
  }
  return repeated;
}

}  // namespace detail

/// Incremental decoding with a Seq2SeqTransformer, which must outlive the session: generates the
/// target of given sources.
template <class T>
class Seq2SeqSession {
 public:
  using value_type = Accumulator<T>;  ///< of logits

  /// Encodes src (batch, src_len). Row b of the session decodes source b / num_beams, so that
  /// beam_search() has num_beams rows per source. Room for `capacity` tokens of the target. Throws
  /// ShapeError or ValueError, also for a model without decoder layers.
  template <TensorLike Src>
  Seq2SeqSession(const Seq2SeqTransformer<T>& model, const Src& src, index_t capacity,
                 index_t num_beams = 1, const Execution& execution = {})
      : model_(&model), execution_(execution), num_beams_(num_beams) {
    const auto sv = const_view(src);
    detail::check_num_beams("Seq2SeqSession", num_beams, sv.extent(0));
    const index_t batch = sv.extent(0), src_len = sv.extent(1),
                  dim = model.options().transformer.layer.d_model;
    auto encoded = Tensor3<T>::uninitialized({batch, src_len, dim});
    model.encode(src, encoded, execution);
    src_ = Tensor2<index_t>::uninitialized({batch * num_beams, src_len});
    for (index_t row = 0; row < batch * num_beams; ++row) {
      for (index_t i = 0; i < src_len; ++i)
        src_(row, i) = static_cast<index_t>(sv(row / num_beams, i));
    }
    memory_ = detail::repeat_rows(encoded, num_beams);
    caches_ = model.make_caches(batch * num_beams, capacity, src_len);
    if (model.options().tgt_pad_id()) {
      padding_ = Tensor2<bool>({batch * num_beams, capacity});
      reordered_ = padding_;
    }
    detail::check_has_layers("Seq2SeqSession", caches_.size());
  }

  template <TensorLike Src>
  Seq2SeqSession(const Seq2SeqTransformer<T>&& model, const Src& src, index_t capacity,
                 index_t num_beams = 1, const Execution& execution = {}) = delete;

  index_t batch() const { return src_.extent(0); }
  index_t vocab_size() const { return model_->options().tgt_vocab_size; }

  /// tokens (batch, n), n at least 1, to logits (batch, vocab_size). Throws ShapeError, and
  /// ValueError for ids outside the vocabulary and for full caches.
  void step(TensorView2<const index_t> tokens, TensorView2<Accumulator<T>> logits) {
    const index_t seen = caches_[0].self.length(), end = seen + tokens.extent(1);
    TensorView2<bool> padding;
    if (padding_ && end <= padding_.extent(1) && tokens.extent(0) == batch()) {
      find_padding(tokens, *model_->options().pad_id, padding_.view().slice(1, seen, end));
      padding = padding_.view().slice(1, 0, end);
    }
    model_->decode(tokens, memory_, src_, logits.unsqueeze(1), caches_, execution_, padding);
  }

  /// Number of target tokens that further steps can take: limited by the caches and by the model's
  /// positions.
  index_t room() const {
    const KvCache<T>& cache = caches_[0].self;
    const index_t left = cache.options().capacity - cache.length();
    const InputEmbeddingOptions& embedding = model_->tgt_embedding.options();
    if (embedding.positions == Positions::none) return left;
    return (std::min)(left, embedding.max_positions - cache.length());
  }

  /// See KvCache::reorder(). Rows may only be replaced by rows of the same source: throws
  /// ValueError otherwise.
  void reorder(TensorView1<const index_t> rows) {
    detail::check_same_source("Seq2SeqSession::reorder", rows, batch(), num_beams_);
    for (DecoderLayerCache<T>& cache : caches_) cache.self.reorder(rows);
    if (!padding_) return;
    for (index_t b = 0; b < batch(); ++b) {
      copy(const_view(padding_).select(0, rows(b)), reordered_.view().select(0, b));
    }
    std::swap(padding_, reordered_);
  }

 private:
  const Seq2SeqTransformer<T>* model_;
  Execution execution_;
  index_t num_beams_;
  Tensor2<index_t> src_;
  Tensor3<T> memory_;
  Tensor2<bool> padding_, reordered_;  ///< true where a target token is padding (batch, capacity)
  std::vector<DecoderLayerCache<T>> caches_;
};

/// Incremental decoding with a Whisper, which must outlive the session: generates the text of given
/// features.
template <class T>
class WhisperSession {
 public:
  using value_type = Accumulator<T>;  ///< of logits

  /// Encodes features (batch, num_mel_bins, frames). Row b of the session decodes features
  /// b / num_beams, so that beam_search() has num_beams rows per sound. Room for `capacity` tokens
  /// of the text. Throws ShapeError or ValueError, also for a model without decoder layers.
  template <TensorLike Features>
  WhisperSession(const Whisper<T>& model, const Features& features, index_t capacity,
                 index_t num_beams = 1, const Execution& execution = {})
      : model_(&model), execution_(execution), num_beams_(num_beams) {
    const Tensor3<T> encoded = model.encode(features, execution);
    detail::check_num_beams("WhisperSession", num_beams, encoded.extent(0));
    memory_ = detail::repeat_rows(encoded, num_beams);
    caches_ = model.make_caches(memory_.extent(0), capacity, memory_.extent(1));
    detail::check_has_layers("WhisperSession", caches_.size());
  }

  template <TensorLike Features>
  WhisperSession(const Whisper<T>&& model, const Features& features, index_t capacity,
                 index_t num_beams = 1, const Execution& execution = {}) = delete;

  index_t batch() const { return memory_.extent(0); }
  index_t vocab_size() const { return model_->options().vocab_size; }

  /// tokens (batch, n), n at least 1, to logits (batch, vocab_size). Throws ShapeError, and
  /// ValueError for ids outside the vocabulary and for full caches.
  void step(TensorView2<const index_t> tokens, TensorView2<Accumulator<T>> logits) {
    model_->decode(tokens, memory_, logits.unsqueeze(1), caches_, execution_);
  }

  /// Number of tokens that further steps can take: limited by the caches and by the model's
  /// positions.
  index_t room() const {
    const KvCache<T>& cache = caches_[0].self;
    return (std::min)(cache.options().capacity, model_->options().max_target_positions) -
           cache.length();
  }

  /// See KvCache::reorder(). Rows may only be replaced by rows of the same features: throws
  /// ValueError otherwise.
  void reorder(TensorView1<const index_t> rows) {
    detail::check_same_source("WhisperSession::reorder", rows, batch(), num_beams_);
    for (DecoderLayerCache<T>& cache : caches_) cache.self.reorder(rows);
  }

 private:
  const Whisper<T>* model_;
  Execution execution_;
  index_t num_beams_;
  Tensor3<T> memory_;
  std::vector<DecoderLayerCache<T>> caches_;
};

ATTN_NAMESPACE_END
