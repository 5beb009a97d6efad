// Generation: sampling, greedy decoding, beam search, speculative decoding, sessions, speech.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/generation/beam_search.hpp"
#include "attn/generation/decoding_session.hpp"
#include "attn/generation/draft.hpp"
#include "attn/generation/generate.hpp"
#include "attn/generation/gpt_session.hpp"
#include "attn/generation/guided_session.hpp"
#include "attn/generation/logits.hpp"
#include "attn/generation/sampling.hpp"
#include "attn/generation/transcribe.hpp"
#include "attn/models.hpp"
