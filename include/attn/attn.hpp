// attn: tensors, attention, layers and models on CPUs; all but training, files, text, many ranks.
// SPDX-License-Identifier: Apache-2.0
//
//   attn::Tensor4<float> q({1, 8, 128, 64}), k = q, v = q;  // (batch, heads, seq, dim)
//   attn::Tensor4<float> y = attn::scaled_dot_product_attention(q, k, v, {.mask = attn::causal()});
//
// Each header below can be included alone: it includes the layers that it uses, but not Eigen.
// attn/train.hpp, attn/io.hpp (needs a JSON parser), attn/text.hpp and attn/distributed.hpp are not
// included here. docs/contributing.md says where a mask, layer or instruction set is added.
#pragma once

// In layer order.
// clang-format off
#include "attn/core.hpp"        // views and tensors, errors
#include "attn/core/eigen.hpp"  // Eigen's matrices as views, and views as Eigen's maps
#include "attn/kernels.hpp"     // gemm, softmax, norms, activations; how a call runs
#include "attn/attention.hpp"   // scaled_dot_product_attention, masks, caches; linear_attention
#include "attn/layers.hpp"      // linear, heads, attention modules, encoders, decoders
#include "attn/models.hpp"      // Gpt, Bert, Vit, Clip, Seq2SeqTransformer, Whisper
#include "attn/generation.hpp"  // sampling, generate, beam_search, sessions
// clang-format on

#include "attn/implementation.hpp"  // empty unless ATTN_IMPLEMENTATION is defined
