// Attention: scaled_dot_product_attention, options, masks, functors, KV caches.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/block_mask.hpp"
#include "attn/attention/cached_attention.hpp"
#include "attn/attention/explain.hpp"
#include "attn/attention/functors.hpp"
#include "attn/attention/key_range.hpp"
#include "attn/attention/kv_cache.hpp"
#include "attn/attention/linear_attention.hpp"
#include "attn/attention/mask.hpp"
#include "attn/attention/merge_states.hpp"
#include "attn/attention/options.hpp"
#include "attn/attention/paths/part_products.hpp"
#include "attn/attention/relative_bias.hpp"
#include "attn/attention/sdpa.hpp"
#include "attn/attention/sequence_masks.hpp"
#include "attn/attention/top_k_keys.hpp"
#include "attn/attention/tree_mask.hpp"
#include "attn/kernels.hpp"
