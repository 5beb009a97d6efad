// Core: tensors and views, shapes, printing, arithmetic and errors; no Eigen.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/arithmetic.hpp"
#include "attn/core/buffer.hpp"
#include "attn/core/compare.hpp"
#include "attn/core/config.hpp"
#include "attn/core/element.hpp"
#include "attn/core/error.hpp"
#include "attn/core/fill.hpp"
#include "attn/core/print.hpp"
#include "attn/core/ranking.hpp"
#include "attn/core/rearrange.hpp"
#include "attn/core/shape.hpp"
#include "attn/core/strides.hpp"
#include "attn/core/tensor.hpp"
#include "attn/core/view.hpp"
