// Single-pass updates of one parameter or gradient: Adam, SGD, squares, scaling.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/tensor.hpp"
#include "attn/kernels/backend.hpp"
#include "attn/simd/vec/vec.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// n elements of a parameter, of its gradient and of two moments.
template <class T>
struct AdamUpdate {
  index_t n;
  T* parameter;
  const T* gradient;
  T *moment1, *moment2;
  T gradient_scale;              ///< multiplies the gradient
  T beta1, beta2, rest1, rest2;  ///< rest = 1 - beta, rounded from double
  T step_size;                   ///< rate / (1 - beta1^t)
  T root_scale;                  ///< 1 / sqrt(1 - beta2^t)
  T eps;
  T kept;  ///< decoupled weight decay: parameter *= kept before the update
  T l2;    ///< L2 penalty: gradient += l2 * parameter
};

/// n elements; momentum may be nullptr.
template <class T>
struct SgdUpdate {
  index_t n;
  T* parameter;
  const T* gradient;
  T* momentum;
  T gradient_scale;
  T rate, mu, l2;
  bool first, nesterov;
};

/// The sum of squares of each chunk of n elements. In double, so that squares of floats do not
/// overflow; one sum per chunk, so that results do not depend on threads.
template <class T>
struct SquareSums {
  index_t n;
  const T* x;
  double* sums;  ///< of each chunk
};

/// n elements *= factor.
template <class T>
struct Scaling {
  index_t n;
  T* x;
  T factor;
};

/// Elements of one task.
inline constexpr index_t kUpdateChunk = index_t{1} << 14;

template <class In, class Acc>
struct Backend<family::Optimizers, In, Acc> {
  Kernel<AdamUpdate<In>> adam;
  Kernel<SgdUpdate<In>> sgd;
  Kernel<SquareSums<In>> square_sums;
  Kernel<Scaling<In>> scale;

  static constexpr std::uint64_t kLayout = layout_hash({sizeof(Backend),
                                                        offsetof(Backend, adam),
                                                        offsetof(Backend, sgd),
                                                        offsetof(Backend, square_sums),
                                                        offsetof(Backend, scale),
                                                        sizeof(AdamUpdate<In>),
                                                        offsetof(AdamUpdate<In>, n),
                                                        offsetof(AdamUpdate<In>, parameter),
                                                        offsetof(AdamUpdate<In>, gradient),
                                                        offsetof(AdamUpdate<In>, moment1),
                                                        offsetof(AdamUpdate<In>, moment2),
                                                        offsetof(AdamUpdate<In>, gradient_scale),
                                                        offsetof(AdamUpdate<In>, beta1),
                                                        offsetof(AdamUpdate<In>, beta2),
                                                        offsetof(AdamUpdate<In>, rest1),
                                                        offsetof(AdamUpdate<In>, rest2),
                                                        offsetof(AdamUpdate<In>, step_size),
                                                        offsetof(AdamUpdate<In>, root_scale),
                                                        offsetof(AdamUpdate<In>, eps),
                                                        offsetof(AdamUpdate<In>, kept),
                                                        offsetof(AdamUpdate<In>, l2),
                                                        sizeof(SgdUpdate<In>),
                                                        offsetof(SgdUpdate<In>, n),
                                                        offsetof(SgdUpdate<In>, parameter),
                                                        offsetof(SgdUpdate<In>, gradient),
                                                        offsetof(SgdUpdate<In>, momentum),
                                                        offsetof(SgdUpdate<In>, gradient_scale),
                                                        offsetof(SgdUpdate<In>, rate),
                                                        offsetof(SgdUpdate<In>, mu),
                                                        offsetof(SgdUpdate<In>, l2),
                                                        offsetof(SgdUpdate<In>, first),
                                                        offsetof(SgdUpdate<In>, nesterov),
                                                        sizeof(SquareSums<In>),
                                                        offsetof(SquareSums<In>, n),
                                                        offsetof(SquareSums<In>, x),
                                                        offsetof(SquareSums<In>, sums),
                                                        sizeof(Scaling<In>),
                                                        offsetof(Scaling<In>, n),
                                                        offsetof(Scaling<In>, x),
                                                        offsetof(Scaling<In>, factor)});
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/train/update.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
