// attn: tensors, attention and Transformer layers on CPUs; all but training, files and text.
// SPDX-License-Identifier: Apache-2.0
//
//   attn::Tensor4<float> q({1, 8, 128, 64}), k = q, v = q;  // (batch, heads, seq, dim)
//   attn::Tensor4<float> y = attn::scaled_dot_product_attention(q, k, v, {.mask = attn::causal()});
//
// Each room has a door of its own, which includes the rooms below it and leaves out Eigen. Weights
// come from files by attn/io.hpp, which needs a JSON parser and is not included here.
#pragma once

// In layer order.
// clang-format off
#include "attn/core.hpp"        // views and tensors, errors
#include "attn/core/eigen.hpp"  // Eigen's matrices as views, and views as Eigen's maps
#include "attn/kernels.hpp"     // gemm, softmax, norms, activations; how a call runs
#include "attn/attention.hpp"   // scaled_dot_product_attention, options, caches; linear_attention
#include "attn/layers.hpp"      // what a Transformer is made of
#include "attn/models.hpp"      // Gpt, Bert, Seq2SeqTransformer
#include "attn/generation.hpp"  // sampling, generate, beam_search, sessions
// clang-format on

#include "attn/implementation.hpp"  // nothing, but in a file that defines ATTN_IMPLEMENTATION
