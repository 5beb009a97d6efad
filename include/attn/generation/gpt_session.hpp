// GptSession: a Gpt with the caches of one batch, for generate() and beam_search().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <tuple>

#include "attn/attention/cache/append_first.hpp"
#include "attn/generation/generate.hpp"
#include "attn/generation/generation_checks.hpp"
#include "attn/models/gpt.hpp"

ATTN_NAMESPACE_BEGIN

/// Incremental decoding with a Gpt, which must outlive the session. The constructor allocates the
/// memory of the caches.
///
///   GptSession<float> session(model, 1, 512);
///   const auto tokens = generate(session, prompt, {.max_new_tokens = 100});
template <class T>
class GptSession {
 public:
  using value_type = Accumulator<T>;  ///< of logits

  /// Allocates room for `capacity` tokens per row. `options` apply to every call; causal() is
  /// added. If their mask has a sliding window shorter than `capacity`, the session keeps only the
  /// keys in the window, and `capacity` is the window plus the tokens of one step; except where key
  /// lengths or an offset other than bottom_right move the window, or MaskedRow::mean needs masked
  /// values. `cache_element`: element type of the cache, see KvCacheOptions::element. Throws
  /// ValueError, also for a model without layers.
  GptSession(const Gpt<T>& model, index_t batch, index_t capacity,
             const AttentionOptions<Accumulator<T>>& options = {},
             std::optional<DType> cache_element = {})
      : model_(&model),
        options_(options),
        batch_(batch),
        caches_(make_caches(model, batch, capacity, options, cache_element)) {
    detail::check_has_layers("GptSession", caches_.size());
  }

  GptSession(const Gpt<T>&& model, index_t batch, index_t capacity,
             const AttentionOptions<Accumulator<T>>& options = {},
             std::optional<DType> cache_element = {}) = delete;  // the model would be destroyed

  /// A session of `batch` rows that all continue this one, of one row, with the same bits as
  /// `batch` sessions: n samples of one prompt, or n questions on one document. The keys of the
  /// tokens so far are stored once, and a step of few tokens reads them once for several rows: see
  /// KvCache::fork(). These tokens can only be removed together, by clear(). Throws ValueError for
  /// several rows here, a batch below 1, dropout, and options that hold tensors with an axis of
  /// rows, queries or keys.
  GptSession fork(index_t batch) const {
    check_forkable("GptSession::fork", "options");
    GptSession result(*model_, options_, batch);
    for (const KvCache<T>& cache : caches_) result.caches_.push_back(cache.fork(batch));
    return result;
  }
  /// Throws the errors of fork() that concern options, with these names of function and argument.
  void check_forkable(std::string_view function, std::string_view argument) const {
    detail::refuse_extents(function, argument, options_);
    if (options_.dropout.p > 0) {  // what it drops depends on the row
      throw ValueError(message(function, argument, "have no dropout",
                               "p = " + std::to_string(options_.dropout.p)));
    }
  }

  index_t batch() const { return batch_; }
  index_t vocab_size() const { return model_->vocab_size(); }
  const Gpt<T>& model() const { return *model_; }
  const AttentionOptions<Accumulator<T>>& options() const { return options_; }
  /// The keys and values of the tokens so far, one cache per layer; code that changes one must
  /// change all in the same way.
  std::span<KvCache<T>> caches() { return caches_; }
  std::span<const KvCache<T>> caches() const { return caches_; }

  /// tokens (batch, n), n at least 1, to logits (batch, vocab_size). Throws ShapeError, and
  /// ValueError for ids outside the vocabulary and for full caches.
  void step(TensorView2<const index_t> tokens, TensorView2<Accumulator<T>> logits) {
    model_->forward(tokens, logits.unsqueeze(1), options_, caches_);
  }
  /// As step(), with the logits of every token (batch, n, vocab_size).
  void step(TensorView2<const index_t> tokens, TensorView3<Accumulator<T>> logits) {
    check_shape("GptSession::step", "logits", "(batch, n, vocab_size)",
                Shape<3>{tokens.extent(0), tokens.extent(1), vocab_size()}, logits.shape());
    model_->forward(tokens, logits, options_, caches_);
  }
  /// Processes a tree of tokens in one step: token i of tokens (batch, n) follows token parents(i),
  /// in -1 .. i - 1, where -1 stands for the tokens so far; logits (batch, n, vocab_size) are those
  /// after each token. While depths are less than max_decode_tokens(), each token has, bit for bit,
  /// the logits of a session that holds its path alone. Call keep_path(n, path) before any other
  /// step. Recurrent layers store a state for each token, in memory that grows with the largest
  /// tree. Throws ShapeError, and ValueError for other parents, ids outside the vocabulary, full
  /// caches, options that hold an axis of queries or keys, dropout and caches with a window; the
  /// session then stays unchanged.
  void step_tree(TensorView2<const index_t> tokens, TensorView1<const index_t> parents,
                 TensorView3<Accumulator<T>> logits) {
    check_shape("GptSession::step_tree", "logits", "(batch, n, vocab_size)",
                Shape<3>{tokens.extent(0), tokens.extent(1), vocab_size()}, logits.shape());
    model_->forward_tree(tokens, logits, options_, caches_, parents);
  }
  /// Keeps the tokens at `path`, increasing indices into the last n tokens, those of step_tree(),
  /// and removes the others of these n. Throws ValueError for the reasons of KvCache::keep_path().
  void keep_path(index_t n, TensorView1<const index_t> path) {
    // A recurrent layer keeps the states of the last tree only.
    const auto limited = std::find_if(caches_.begin(), caches_.end(),
                                      [&](const auto& cache) { return !cache.can_keep_path(n); });
    if (limited != caches_.end()) limited->keep_path(n, path);
    for (KvCache<T>& cache : caches_) cache.keep_path(n, path);
  }
  /// Steps several sessions of one model, each of one row and any length: session i processes token
  /// i of tokens (n), and row i of logits (n, vocab_size) receives its logits. Each row has the
  /// bits of a step of its own, but weights are read once for all rows. Uses the execution of the
  /// first session. Throws ShapeError; ValueError unless all sessions have the same model, one row,
  /// and the same options, instruction set and matmul_precision; options must not hold tensors with
  /// an axis of rows, queries or keys; ValueError for ids outside the vocabulary and full caches.
  /// On error all sessions stay unchanged.
  static void step_together(std::span<GptSession* const> sessions,
                            TensorView1<const index_t> tokens, TensorView2<Accumulator<T>> logits) {
    const index_t n = std::ssize(sessions);
    check_shape("GptSession::step_together", "tokens", "(n)", Shape<1>{n}, tokens.shape());
    if (n == 0) return;
    const GptSession& first = *sessions[0];
    std::vector<std::span<KvCache<T>>> conversations;
    for (GptSession* session : sessions) {
      detail::refuse_extents("GptSession::step_together", "options", session->options_);
      if (session->model_ != first.model_ || session->batch_ != 1 ||
          !have_equal_options(session->options_, first.options_)) {
        throw ValueError(
            message("GptSession::step_together", "sessions",
                    "be of one model, of one row, and have the same options, instruction set "
                    "and matmul_precision",
                    "others"));
      }
      conversations.emplace_back(session->caches_);
    }
    first.model_->forward_rows(tokens.unsqueeze(1), logits.unsqueeze(1), first.options_,
                               conversations);
  }
  /// The maximal number of tokens per row in the next step for which each token has, bit for bit,
  /// the logits of a step of its own and can be removed again (with recurrent layers only after
  /// step_tree()). It exceeds 1 because products, and attention on the decode path, have the same
  /// bits for any number of rows. It is 1 if options mask or forget keys, or if rotary angles
  /// depend on the length.
  index_t max_decode_tokens() const {
    if (!may_split_steps()) return 1;
    index_t max_tokens = (std::max)(room(), index_t{1});
    for (const auto& layer : model_->blocks.layers) {
      if (layer.is_recurrent()) {  // any number; a tree needs memory for so many states
        max_tokens = (std::min)(max_tokens, detail::kMaxDecodeRows);
        continue;
      }
      if (layer.latent_attn) {
        const index_t heads = layer.latent_attn.num_all_heads();
        max_tokens = (std::min)({max_tokens, layer.latent_attn.max_absorbed_queries(),
                                 detail::max_decode_queries(heads, length() + 1)});
        continue;
      }
      const MultiHeadAttentionOptions& o = layer.self_attn.options();
      if (o.window >= 0)
        max_tokens = (std::min)(max_tokens, (std::max)(o.window + 1 - length(), index_t{1}));
      max_tokens = (std::min)(
          max_tokens, detail::max_decode_queries(o.num_heads / o.num_kv_heads, length() + 1));
    }
    return max_tokens;
  }

  /// The least number of tokens per row with which every step takes the tiled path: a prompt in
  /// steps of at least so many tokens has the bits of one step. None if there is no such number,
  /// for the reasons of max_decode_tokens(), with AttentionPrecision::int8 and with recurrent
  /// layers, which keep no state of a prompt's beginning.
  std::optional<index_t> min_prefill_tokens() const {
    if (!may_split_steps() || options_.precision == AttentionPrecision::int8) return std::nullopt;
    index_t min_tokens = 1;
    for (const auto& layer : model_->blocks.layers) {
      if (layer.is_recurrent()) return std::nullopt;
      index_t max_other_path = detail::kMaxDecodeRows;
      if (layer.latent_attn) {
        max_other_path = (std::max)(max_other_path, layer.latent_attn.max_absorbed_queries());
      } else {
        const MultiHeadAttentionOptions& o = layer.self_attn.options();
        max_other_path /= o.num_heads / o.num_kv_heads;
      }
      if (max_other_path == (std::numeric_limits<index_t>::max)()) return std::nullopt;
      min_tokens = (std::max)(min_tokens, max_other_path + 1);
    }
    return min_tokens;
  }

  /// Whether the same steps have the same bits in both sessions: the same model and element of
  /// caches, and equal options, which hold no tensors with an axis of rows, queries or keys.
  bool has_bits_of(const GptSession& other) const {
    const auto of = [](const GptSession& x) {
      return std::tuple(x.model_, *x.caches_[0].options().element, x.caches_[0].options().window);
    };
    return of(*this) == of(other) && have_equal_options(options_, other.options_) &&
           detail::option_with_extents(options_).empty() &&
           detail::option_with_extents(other.options_).empty();
  }

  /// Appends the first n tokens of another session, with has_bits_of(other), without computing
  /// them. Throws ValueError unless `other` holds them, and for the reasons of
  /// KvCache::append_stored().
  void copy_beginning(const GptSession& other, index_t n) {
    for (std::size_t i = 0; i < caches_.size(); ++i)
      detail::append_first(caches_[i], other.caches_[i], n);
  }

  /// See KvCache::reorder().
  void reorder(TensorView1<const index_t> rows) {
    for (KvCache<T>& cache : caches_) cache.reorder(rows);
  }

  /// Forgets all tokens.
  void clear() {
    for (KvCache<T>& cache : caches_) cache.clear();
  }

  /// Number of tokens per row so far.
  index_t length() const { return caches_[0].length(); }
  /// The maximal number of tokens per row that the caches hold.
  index_t capacity() const { return caches_[0].options().capacity; }
  /// Number of tokens per row that further steps can take: limited by the caches and by the model's
  /// positions. A session that forgets keys outside a window takes any number, but not in one step.
  index_t room() const {
    index_t room = (std::numeric_limits<index_t>::max)();
    const InputEmbeddingOptions& embedding = model_->embedding.options();
    if (caches_[0].options().window == 0) room = capacity() - length();
    if (embedding.positions != Positions::none) {
      room = (std::min)(room, embedding.max_positions - length());
    }
    for (const auto& layer : model_->blocks.layers) {
      const std::optional<RotaryOptions>& rotary = layer.rotary();
      if (rotary) room = (std::min)(room, rotary->max_positions - length());
    }
    return room;
  }
  /// Removes all but the first `length` tokens. Throws ValueError for the reasons of
  /// KvCache::truncate(), and then leaves the session unchanged.
  void truncate_to(index_t length) {
    // A recurrent layer keeps fewer states than an attention layer keeps keys.
    const auto limited = std::find_if(caches_.begin(), caches_.end(), [&](const auto& cache) {
      return !cache.can_truncate_to(length);
    });
    if (limited != caches_.end()) limited->truncate_to(length);
    for (KvCache<T>& cache : caches_) cache.truncate_to(length);
  }
  /// Whether truncate_to() succeeds.
  bool can_truncate_to(index_t length) const {
    return std::all_of(caches_.begin(), caches_.end(),
                       [&](const KvCache<T>& cache) { return cache.can_truncate_to(length); });
  }

 private:
  GptSession(const Gpt<T>& model, const AttentionOptions<Accumulator<T>>& options, index_t batch)
      : model_(&model), options_(options), batch_(batch) {}

  /// Whether tokens may have the same bits however they are split into steps: options neither mask
  /// nor forget keys, and rotary angles do not depend on the length.
  bool may_split_steps() const {
    Mask mask = options_.mask;
    mask.causal = false;
    AttentionOptions<Accumulator<T>> others = options_;
    others.batch_alibi_slopes = {};  // of rows, which all tokens of a step share
    if (!detail::option_with_extents(others).empty()) return false;
    const bool masks = mask.num_dense > 0 || mask.has_intervals() || options_.dropout.p > 0 ||
                       options_.offset.kind != QueryOffset::Kind::bottom_right;
    if (masks || caches_[0].options().window > 0) return false;
    return std::ranges::none_of(model_->blocks.layers, [](const auto& layer) {
      const std::optional<RotaryOptions>& rotary = layer.rotary();
      return rotary && depends_on_length(rotary->scaling.kind);
    });
  }

  /// Whether all options that the bits depend on are equal, for options without an axis of rows,
  /// queries or keys.
  static bool have_equal_options(const AttentionOptions<Accumulator<T>>& a,
                                 const AttentionOptions<Accumulator<T>>& b) {
    const auto of = [](const AttentionOptions<Accumulator<T>>& o) {
      return std::tuple(o.mask.causal, o.mask.left, o.mask.right, o.mask.chunk, o.scale, o.softcap,
                        o.offset.kind, o.offset.value, o.first_key, o.masked_row, o.dropout.p,
                        o.dropout.seed, o.precision, o.execution.instruction_set(),
                        o.execution.matmul_precision_used());
    };
    return of(a) == of(b) && detail::is_same_view(a.alibi_slopes, b.alibi_slopes) &&
           detail::is_same_view(a.relative_bias, b.relative_bias) &&
           detail::is_same_view(a.sinks, b.sinks);
  }

  static std::vector<KvCache<T>> make_caches(const Gpt<T>& model, index_t batch, index_t capacity,
                                             const AttentionOptions<Accumulator<T>>& options,
                                             std::optional<DType> element) {
    AttentionOptions<Accumulator<T>> causal_options = options;
    causal_options.mask = options.mask & causal();
    for (const auto& layer : model.blocks.layers) {
      if (layer.is_recurrent()) detail::check_recurrent_options(causal_options);
    }
    const bool moves =
        options.mask.key_lengths || options.offset.kind != QueryOffset::Kind::bottom_right;
    index_t window = options.mask.left;
    if (window >= capacity || moves || options.masked_row != MaskedRow::zero) {
      window = 0;  // all
    } else if (window == 0) {
      // A window of 0 would keep all keys, so the cache keeps one key that no query sees; this
      // needs one more place.
      window = 1;
      capacity = (std::min)(capacity, Mask::kUnbounded) + 1;
    }
    return model.make_caches(batch, capacity, window, element);
  }

  const Gpt<T>* model_;
  AttentionOptions<Accumulator<T>> options_;
  index_t batch_;
  std::vector<KvCache<T>> caches_;
};

ATTN_NAMESPACE_END
