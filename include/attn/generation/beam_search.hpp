// beam_search: the most likely continuations of a batch of prompts.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/generation/generate.hpp"
#include "attn/kernels/rows/softmax.hpp"

ATTN_NAMESPACE_BEGIN

struct BeamSearchOptions {
  index_t num_beams = 4;       ///< hypotheses per prompt; the session has as many rows per prompt
  index_t max_new_tokens = 0;  ///< per hypothesis, at least 1
  std::vector<index_t> stop_tokens = {};  ///< each ends a hypothesis and is its last token
  /// Length penalty alpha, at least 0; 0: none; larger values favour longer hypotheses.
  double length_penalty = 0.6;
  /// Called with the logits of each live hypothesis' next token, and with the prompt and the
  /// hypothesis' tokens. Only for sessions whose logits are float.
  LogitProcessor logit_processor = {};
  Execution execution = {};  ///< of the search; the session has its own
};

/// One continuation of a prompt.
struct Hypothesis {
  std::vector<index_t> tokens;  ///< without the prompt, with the stop token if there is one
  double log_probability;       ///< of all tokens given the prompt
  double score;                 ///< log_probability / ((5 + tokens) / 6)^alpha
};

namespace detail {

/// The search for one prompt. Live hypotheses are paths in a tree of tokens.
template <class T>
class BeamSearch {
 public:
  struct Beam {
    double log_probability;
    index_t node;    ///< its last token
    index_t parent;  ///< index of the live hypothesis of the previous step that this continues
  };

  explicit BeamSearch(const BeamSearchOptions& options)
      : options_(options), live_{{0, kRoot, 0}}, max_penalty_(penalty(options.max_new_tokens)) {}

  /// Live hypotheses, best first; none once the search has ended.
  const std::vector<Beam>& live() const { return live_; }
  index_t last_token(const Beam& beam) const {
    return nodes_[static_cast<std::size_t>(beam.node)].token;
  }
  /// All new tokens of a live hypothesis.
  std::vector<index_t> tokens(const Beam& beam) const {
    std::vector<index_t> result;
    for (index_t n = beam.node; n != kRoot; n = nodes_[static_cast<std::size_t>(n)].parent) {
      result.push_back(nodes_[static_cast<std::size_t>(n)].token);
    }
    std::reverse(result.begin(), result.end());
    return result;
  }
  /// Finished hypotheses, best first.
  std::vector<Hypothesis>& finished() { return finished_; }

  /// Adds one token. Shape: log_probabilities (num_beams or more, vocab_size), of the next token of
  /// each live hypothesis.
  void advance(TensorView2<const T> log_probabilities) {
    choose(log_probabilities);
    if (candidates_.empty()) {
      throw ValueError(message("beam_search", "the model's logits of live hypotheses",
                               "leave at least one token", "-inf everywhere"));
    }
    ++length_;
    std::vector<Beam> next;
    for (const Candidate& candidate : candidates_) {
      const bool stops = std::ranges::count(options_.stop_tokens, candidate.token) > 0;
      if (!stops && std::ssize(next) == options_.num_beams) continue;
      const index_t node = std::ssize(nodes_);
      nodes_.push_back({candidate.token, live_[static_cast<std::size_t>(candidate.beam)].node});
      const Beam beam{candidate.log_probability, node, candidate.beam};
      if (stops) {
        finish(beam);
      } else {
        next.push_back(beam);
      }
    }
    live_ = std::move(next);
    if (length_ == options_.max_new_tokens) {
      for (const Beam& beam : live_) finish(beam);
    }
    if (length_ == options_.max_new_tokens || cannot_improve()) live_.clear();
  }

 private:
  static constexpr index_t kRoot = -1;

  struct Candidate {
    double log_probability;
    index_t beam, token;

    /// The more likely first; a strict order, so that the result is unique.
    friend bool operator<(const Candidate& a, const Candidate& b) {
      if (a.log_probability != b.log_probability) return a.log_probability > b.log_probability;
      return a.beam != b.beam ? a.beam < b.beam : a.token < b.token;
    }
  };
  struct Node {
    index_t token, parent;
  };

  /// candidates_ = the best 2 num_beams continuations, best first: even if num_beams of them end,
  /// num_beams others stay live.
  void choose(TensorView2<const T> log_probabilities) {
    const auto max_candidates = static_cast<std::size_t>(2 * options_.num_beams);
    candidates_.clear();  // a heap with the worst on top
    for (index_t beam = 0; beam < std::ssize(live_); ++beam) {
      for (index_t token = 0; token < log_probabilities.extent(1); ++token) {
        const auto added = static_cast<double>(log_probabilities(beam, token));
        if (std::isnan(added)) {
          throw ValueError(message("beam_search",
                                   "the model's logits of beam " + std::to_string(beam),
                                   "be finite or -inf", "NaN or +inf"));
        }
        if (std::isinf(added)) continue;
        const Candidate candidate{live_[static_cast<std::size_t>(beam)].log_probability + added,
                                  beam, token};
        if (candidates_.size() == max_candidates) {
          if (!(candidate < candidates_.front())) continue;
          std::pop_heap(candidates_.begin(), candidates_.end());
          candidates_.pop_back();
        }
        candidates_.push_back(candidate);
        std::push_heap(candidates_.begin(), candidates_.end());
      }
    }
    std::sort_heap(candidates_.begin(), candidates_.end());
  }

  double penalty(index_t length) const {
    return std::pow((5 + static_cast<double>(length)) / 6, options_.length_penalty);
  }

  /// Keeps the hypothesis if it is among the best num_beams.
  void finish(const Beam& beam) {
    Hypothesis hypothesis{{}, beam.log_probability, beam.log_probability / penalty(length_)};
    const auto is_better = [](const Hypothesis& a, const Hypothesis& b) {
      return a.score > b.score;
    };
    const auto at = std::upper_bound(finished_.begin(), finished_.end(), hypothesis, is_better);
    if (at - finished_.begin() == options_.num_beams) return;
    hypothesis.tokens = tokens(beam);
    finished_.insert(at, std::move(hypothesis));
    if (std::ssize(finished_) > options_.num_beams) finished_.pop_back();
  }

  /// True if no live hypothesis can become one of the best: its probability only decreases, and the
  /// penalty is at most that of the greatest length.
  bool cannot_improve() const {
    return live_.empty() ||
           (std::ssize(finished_) == options_.num_beams &&
            live_.front().log_probability / max_penalty_ <= finished_.back().score);
  }

  BeamSearchOptions options_;
  std::vector<Beam> live_;
  double max_penalty_;
  index_t length_ = 0;
  std::vector<Hypothesis> finished_;
  std::vector<Node> nodes_;
  std::vector<Candidate> candidates_;
};

}  // namespace detail

/// The best continuations of each prompt, best first, at most num_beams of them: sequences up to
/// the stop token or of max_new_tokens, by score. The search keeps the num_beams most likely
/// unfinished hypotheses, stores finished ones separately, and ends as soon as no unfinished one
/// can become one of the num_beams best finished ones.
///
/// Shapes: prompts (batch, prompt_len). The model's batch is batch * num_beams: rows b * num_beams
/// to (b + 1) * num_beams - 1 belong to prompt b, and must hold the same tokens before the call.
/// Throws ShapeError or ValueError before the model is called, and what its step() and reorder()
/// throw; ValueError if a logit is NaN or +inf, or if logits leave no live hypothesis of a prompt a
/// token. Source: Wu et al., "Google's neural machine translation system" (2016), section 7,
/// without coverage penalty.
template <CachedDecoder Model>
std::vector<std::vector<Hypothesis>> beam_search(Model& model, TensorView2<const index_t> prompts,
                                                 const BeamSearchOptions& options) {
  const index_t batch = prompts.extent(0), prompt_len = prompts.extent(1),
                beams = options.num_beams;
  detail::check_num_beams("beam_search", beams, batch);
  detail::check_generation("beam_search", "prompt_len", prompt_len, 1);
  detail::check_generation("beam_search", "max_new_tokens", options.max_new_tokens, 1);
  if (model.batch() != batch * beams) {
    throw ValueError(message("beam_search", "the model's batch",
                             "be batch * num_beams = " + std::to_string(batch * beams),
                             std::to_string(model.batch())));
  }
  if (!(options.length_penalty >= 0) || !std::isfinite(options.length_penalty)) {
    throw ValueError(message("beam_search", "length_penalty", "be finite and at least 0",
                             to_string(options.length_penalty)));
  }
  using Logit = typename Model::value_type;
  detail::check_logit_processor<Logit>("beam_search", options.logit_processor);
  if (batch > 0) detail::check_room("beam_search", model, prompt_len, options.max_new_tokens);
  using Search = detail::BeamSearch<Logit>;
  std::vector<Search> searches(static_cast<std::size_t>(batch), Search(options));
  Tensor2<index_t> repeated({batch * beams, prompt_len}), next({batch * beams, 1});
  Tensor1<index_t> rows({batch * beams});
  for (index_t row = 0; row < batch * beams; ++row) {
    for (index_t i = 0; i < prompt_len; ++i) repeated(row, i) = prompts(row / beams, i);
  }
  Tensor2<Logit> logits({batch * beams, model.vocab_size()});
  const auto process = [&](index_t b, const Search& search) {
    if constexpr (std::is_same_v<Logit, float>) {
      index_t row = b * beams;
      for (const auto& beam : search.live()) {
        std::vector<index_t> ids = search.tokens(beam);
        ids.insert(ids.begin(), &repeated(row, 0), &repeated(row, 0) + prompt_len);
        options.logit_processor(logits.view().select(0, row++), ids);
      }
    }
  };
  model.step(repeated, logits);
  while (true) {
    for (index_t b = 0; options.logit_processor && b < batch; ++b) {
      process(b, searches[static_cast<std::size_t>(b)]);
    }
    log_softmax(logits, logits, options.execution);
    bool is_any_left = false;
    for (index_t row = 0; row < batch * beams; ++row) rows(row) = row;
    for (index_t b = 0; b < batch; ++b) {
      Search& search = searches[static_cast<std::size_t>(b)];
      if (search.live().empty()) continue;
      search.advance(const_view(logits).slice(0, b * beams, (b + 1) * beams));
      index_t row = b * beams;
      for (const auto& beam : search.live()) {
        rows(row) = b * beams + beam.parent;
        next(row++, 0) = search.last_token(beam);
      }
      is_any_left = is_any_left || !search.live().empty();
    }
    if (!is_any_left) break;
    model.reorder(rows);
    model.step(next, logits);
  }
  std::vector<std::vector<Hypothesis>> result;
  for (Search& search : searches) result.push_back(std::move(search.finished()));
  return result;
}

/// Deleted: a session comes first, then ids.
template <class Model, TensorLike Prompts>
  requires(!detail::Generates<Model, Prompts>)
void beam_search(Model&, const Prompts&, const BeamSearchOptions&) {
  detail::assert_generates<Model, Prompts>();
}

ATTN_NAMESPACE_END
