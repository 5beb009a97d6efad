// GuidedSession: classifier-free guidance and contrastive decoding, by the logits of two sessions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <limits>

#include "attn/generation/generate.hpp"
#include "attn/kernels/rows/softmax.hpp"

ATTN_NAMESPACE_BEGIN

struct GuidanceOptions {
  double scale = 1;  ///< of the difference of log-probabilities, at least 0; 1: the session alone
  /// Masks out tokens whose probability in the session is below this share of the largest one, in
  /// [0, 1]; 0: none
  double plausibility = 0;
  /// The prompts (batch, n), not empty, of the other session, which replace the tokens of the first
  /// step() and must stay valid until then. Not given: both sessions get the same prompts.
  TensorView2<const index_t> other_prompts = {};
};

/// A CachedDecoder, for generate() and beam_search(), of two sessions that process the same tokens.
/// With log-probabilities c of `session` and u of `other`, its logits are u + scale (c - u). A
/// token that `session` masks out (-inf) stays masked out; one that only `other` masks out gets c.
///
/// Classifier-free guidance: two sessions of one model, `other_prompts` without the condition, or
/// with what is to be avoided. Contrastive decoding: `other` of a smaller model with the same
/// vocabulary, scale 1 + beta, plausibility 0.1. Keeps references to both sessions, which nothing
/// else may step meanwhile. The prompts of generate() must have one length if other_prompts are
/// given.
///
/// Throws ValueError for an option out of range and for one session given twice, ShapeError if the
/// sessions differ in batch or vocabulary. Sources: Sanchez et al., "Stay on topic with
/// classifier-free guidance" (2023); Li et al., "Contrastive decoding" (2023); O'Brien and Lewis,
/// "Contrastive decoding improves reasoning" (2023).
template <CachedDecoder Session, CachedDecoder Other = Session>
class GuidedSession {
 public:
  using value_type = typename Session::value_type;

  GuidedSession(Session& session, Other& other, const GuidanceOptions& options)
      : session_(&session),
        other_(&other),
        options_(options),
        others_({session.batch(), session.vocab_size()}) {
    check_shape("GuidedSession", "other", "(batch, vocab_size) of session",
                Shape<2>{session.batch(), session.vocab_size()},
                Shape<2>{other.batch(), other.vocab_size()});
    const auto check = [](bool good, std::string_view argument, std::string_view expected,
                          double found) {
      if (!good) throw ValueError(message("GuidedSession", argument, expected, to_string(found)));
    };
    check(options.scale >= 0 && std::isfinite(options.scale), "scale", "be finite and at least 0",
          options.scale);
    check(options.plausibility >= 0 && options.plausibility <= 1, "plausibility", "lie in [0, 1]",
          options.plausibility);
    if constexpr (std::is_same_v<Session, Other>) {
      if (&session == &other) {
        throw ValueError(message("GuidedSession", "other", "be another session", "the same"));
      }
    }
    // An empty tensor has no elements to point to, but its rows.
    if (options.other_prompts || options.other_prompts.extent(0) > 0) {
      const index_t length = options.other_prompts.extent(1);
      check_shape("GuidedSession", "other_prompts", "(batch, n)", Shape<2>{batch(), length},
                  options.other_prompts.shape());
      detail::check_generation("GuidedSession", "the length of other_prompts", length, 1);
    }
  }

  index_t batch() const { return session_->batch(); }
  index_t vocab_size() const { return session_->vocab_size(); }
  /// The smaller room() of the two sessions; that of `session` alone until other_prompts are read.
  index_t room() const {
    const index_t room = detail::room_of(*session_);
    return options_.other_prompts ? room : (std::min)(room, detail::room_of(*other_));
  }

  /// Shapes: tokens (batch, n), logits (batch, vocab_size). Throws ValueError, before either
  /// session is stepped, if one has no room; then what step() of the sessions throws.
  void step(TensorView2<const index_t> tokens, TensorView2<value_type> logits) {
    const auto other_tokens = options_.other_prompts ? options_.other_prompts : tokens;
    check_room("session", detail::room_of(*session_), tokens.extent(1));
    check_room("other", detail::room_of(*other_), other_tokens.extent(1));
    session_->step(tokens, logits);
    other_->step(other_tokens, others_.view());
    options_.other_prompts = {};
    log_softmax(logits, logits);
    log_softmax(others_, others_);
    for (index_t b = 0; b < batch(); ++b) {
      guide(logits.select(0, b), others_.view().select(0, b));
    }
  }

  void reorder(TensorView1<const index_t> rows) {
    session_->reorder(rows);
    other_->reorder(rows);
  }

 private:
  using OtherLogit = typename Other::value_type;

  static void check_room(std::string_view argument, index_t room, index_t tokens) {
    if (tokens <= room) return;
    throw ValueError(message("GuidedSession::step", argument,
                             "have room for " + to_string(tokens) + " tokens",
                             "room for " + to_string(room)));
  }

  /// c = u + scale (c - u), in place; both are log-probabilities.
  void guide(TensorView1<value_type> c, TensorView1<const OtherLogit> u) const {
    constexpr double kMaskedOut = -std::numeric_limits<double>::infinity();
    const double least = static_cast<double>(c(argmax(c))) + std::log(options_.plausibility);
    for (index_t i = 0; i < c.extent(0); ++i) {
      const auto of_session = static_cast<double>(c(i)), of_other = static_cast<double>(u(i));
      double guided = of_other + options_.scale * (of_session - of_other);
      if (of_other == kMaskedOut) guided = of_session;
      if (of_session == kMaskedOut || of_session < least) guided = kMaskedOut;
      c(i) = static_cast<value_type>(guided);
    }
  }

  Session* session_;
  Other* other_;
  GuidanceOptions options_;
  Tensor2<OtherLogit> others_;
};

ATTN_NAMESPACE_END
