// Models: Gpt, Bert, Vit, Clip, Seq2SeqTransformer, Whisper.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers.hpp"
#include "attn/models/bert.hpp"
#include "attn/models/clip.hpp"
#include "attn/models/gpt.hpp"
#include "attn/models/seq2seq_transformer.hpp"
#include "attn/models/vit.hpp"
#include "attn/models/whisper.hpp"
