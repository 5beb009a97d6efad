// Attention, training and models over several ranks: threads or MPI processes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

// In layer order, the table of contents. Included separately: attn/distributed/mpi.hpp, which alone
// needs MPI, and attn/distributed/sharded_checkpoint.hpp, which needs a JSON parser.
// clang-format off
#include "attn/distributed/communicator.hpp"        // what attn needs of a group of processes
#include "attn/distributed/local_ranks.hpp"         // ranks that are threads of one process
#include "attn/distributed/context_layout.hpp"      // which tokens each rank holds
#include "attn/distributed/agreement.hpp"           // all ranks throw, or none
#include "attn/distributed/context_call.hpp"        // checks of a call, equal on all ranks
#include "attn/distributed/context_plan.hpp"        // chunks of keys, and who needs them
#include "attn/distributed/context_chunks.hpp"      // a rank's rows over chunks of keys
#include "attn/distributed/context_attention.hpp"   // attention over tokens on several ranks
#include "attn/distributed/head_exchange.hpp"       // exchanges tokens for heads
#include "attn/distributed/context_attention_backward.hpp"
#include "attn/distributed/parameter_parts.hpp"     // a part of the parameters on each rank
#include "attn/distributed/tree_stack.hpp"          // sums in a fixed binary tree
#include "attn/distributed/gradient_tree.hpp"       // gradients of micro-batches, in a fixed order
#include "attn/distributed/sharded_optimizer.hpp"   // a part of the state on each rank
#include "attn/distributed/gathered_weight.hpp"     // products cut by outputs
#include "attn/distributed/shard_plan.hpp"          // a rank's part of each layer
#include "attn/distributed/shard.hpp"               // a model on several ranks
// clang-format on
