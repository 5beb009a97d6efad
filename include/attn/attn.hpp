// attn: tensors, attention and Transformer layers on CPUs. This front door is the table of contents.
//
//   attn::Tensor4<float> q({1, 8, 128, 64}), k = q, v = q;  // (batch, heads, seq, dim)
//   attn::Tensor4<float> y = attn::scaled_dot_product_attention(q, k, v, {.mask = attn::causal()});
//
// Weights come from files by attn/io.hpp, which needs a JSON parser and is not included here.
#pragma once

// core: views and tensors, errors, the meeting point with Eigen
#include "attn/core/buffer.hpp"
#include "attn/core/config.hpp"
#include "attn/core/eigen.hpp"
#include "attn/core/error.hpp"
#include "attn/core/shape.hpp"
#include "attn/core/tensor.hpp"
#include "attn/core/view.hpp"

// exec and simd: who runs a call, with what memory, on which instruction set
#include "attn/exec/executor.hpp"
#include "attn/exec/workspace.hpp"
#include "attn/simd/isa.hpp"

// kernels: numeric functions that know nothing of attention
#include "attn/kernels/activation.hpp"
#include "attn/kernels/execution.hpp"
#include "attn/kernels/gemm.hpp"
#include "attn/kernels/norm.hpp"
#include "attn/kernels/softmax.hpp"

// attention: masks, options, functors, scaled_dot_product_attention, caches; linear_attention
#include "attn/attention/explain.hpp"
#include "attn/attention/functors.hpp"
#include "attn/attention/key_range.hpp"
#include "attn/attention/kv_cache.hpp"
#include "attn/attention/linear_attention.hpp"
#include "attn/attention/mask.hpp"
#include "attn/attention/merge_states.hpp"
#include "attn/attention/options.hpp"
#include "attn/attention/relative_bias.hpp"
#include "attn/attention/sdpa.hpp"

// layers: what a Transformer is made of, by PyTorch's names
#include "attn/layers/beam_search.hpp"
#include "attn/layers/bert.hpp"
#include "attn/layers/decoder.hpp"
#include "attn/layers/decoder_layer.hpp"
#include "attn/layers/decoding_session.hpp"
#include "attn/layers/embedding.hpp"
#include "attn/layers/encoder.hpp"
#include "attn/layers/encoder_layer.hpp"
#include "attn/layers/feed_forward.hpp"
#include "attn/layers/generation.hpp"
#include "attn/layers/gpt.hpp"
#include "attn/layers/head_projections.hpp"
#include "attn/layers/heads.hpp"
#include "attn/layers/input_embedding.hpp"
#include "attn/layers/layer_stack.hpp"
#include "attn/layers/linear.hpp"
#include "attn/layers/multi_head_attention.hpp"
#include "attn/layers/norm.hpp"
#include "attn/layers/output_projection.hpp"
#include "attn/layers/padding.hpp"
#include "attn/layers/parameter_visitor.hpp"
#include "attn/layers/positions.hpp"
#include "attn/layers/rotary.hpp"
#include "attn/layers/sampling.hpp"
#include "attn/layers/seq2seq_transformer.hpp"
#include "attn/layers/sublayer.hpp"
#include "attn/layers/transformer.hpp"
