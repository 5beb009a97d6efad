// Training: backward, losses, optimizers, schedules, batches, checkpoints.
// SPDX-License-Identifier: Apache-2.0
#pragma once

// In layer order, the table of contents. attn/attn.hpp does not include this header. Checkpoints
// need a JSON parser.
// clang-format off
#include "attn/models.hpp"
#include "attn/kernels/rows/column_sums.hpp"              // sums over rows: gradients of biases
#include "attn/kernels/rows/activation_backward.hpp"
#include "attn/kernels/rows/norm_backward.hpp"
#include "attn/kernels/rows/softmax_backward.hpp"
#include "attn/kernels/losses/loss.hpp"                   // cross_entropy, mse_loss
#include "attn/kernels/losses/contrastive_loss.hpp"       // InfoNCE over cosines
#include "attn/kernels/losses/cosine_loss.hpp"            // similar and dissimilar pairs
#include "attn/attention/linear_attention_backward.hpp"   // linear attention
#include "attn/attention/sdpa_backward.hpp"               // attention, from its output and lse
#include "attn/attention/jvp/sdpa_jvp.hpp"                    // attention and its tangent
#include "attn/attention/jvp/sdpa_backward_jvp.hpp"           // tangents of its gradients
#include "attn/kernels/rows/row_jvp.hpp"                  // tangents, forward-mode derivatives
#include "attn/kernels/rows/row_backward_jvp.hpp"         // tangents of gradients
#include "attn/kernels/losses/loss_jvp.hpp"
#include "attn/kernels/losses/loss_backward_jvp.hpp"
#include "attn/layers/module/saved.hpp"                   // what forward saves
#include "attn/layers/layer_stack_backward.hpp"           // Linear to Transformer
#include "attn/layers/embedding/input_embedding_backward.hpp"
#include "attn/models/bert_backward.hpp"
#include "attn/models/gpt_backward.hpp"
#include "attn/models/gpt_jvp.hpp"                        // tangents of Linear to Gpt
#include "attn/models/gpt_hessian.hpp"                    // Hessian-vector products
#include "attn/models/seq2seq_transformer_backward.hpp"
#include "attn/train/initialize.hpp"                      // PyTorch's initial parameters
#include "attn/train/parameters.hpp"                      // parameters, gradients, groups
#include "attn/train/clipping.hpp"                        // the norm of all gradients
#include "attn/train/loss_scale.hpp"                      // for float16
#include "attn/train/optimizer.hpp"                       // Sgd, Adam, AdamW
#include "attn/train/lora.hpp"                            // low-rank adapters of weights
#include "attn/train/schedule.hpp"                        // learning rates by step
#include "attn/train/batches.hpp"                         // examples in a drawn order
#include "attn/train/checkpoint.hpp"                      // stop and go on with the same bits
// clang-format on
