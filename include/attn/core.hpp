// Door of core: views and tensors over memory, their shapes and errors; no Eigen.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/buffer.hpp"
#include "attn/core/config.hpp"
#include "attn/core/element.hpp"
#include "attn/core/error.hpp"
#include "attn/core/shape.hpp"
#include "attn/core/tensor.hpp"
#include "attn/core/view.hpp"
