// Kernels: matrix products, softmax, norms, activations, execution.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/tensor.hpp"
#include "attn/exec/execution.hpp"
#include "attn/exec/executor.hpp"
#include "attn/exec/workspace.hpp"
#include "attn/kernels/gemm/gemm.hpp"
#include "attn/kernels/rows/activation.hpp"
#include "attn/kernels/rows/convert.hpp"
#include "attn/kernels/rows/norm.hpp"
#include "attn/kernels/rows/softmax.hpp"
#include "attn/simd/isa.hpp"
