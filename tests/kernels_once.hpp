// Keeps the tests from compiling the kernels again in each file: their instances live in kernels_once.cpp.
//
// CMake includes this file first into every test. It names the doors behind which the instruction sets lie; a door that
// is missing here costs time only, about five seconds for each file that uses it.
#pragma once

#include "attn/attn.hpp"

#define ATTN_TEST_KERNELS(declare, T)                                                            \
  declare template void forward<T>(const AttentionProblem<T>&);                                  \
  declare template void gemm<T>(const GemmProblem<T>&, const Execution&);                        \
  declare template index_t packed_size<T>(index_t, index_t, const Execution&);                   \
  declare template void pack_weights<T>(TensorView2<const T>, T*, const Execution&);             \
  declare template void softmax_rows<T>(TensorView2<const T>, TensorView2<T>, const Execution&); \
  declare template void activate<T>(Activation, index_t, T*, const Execution&);                  \
  declare template void layer_norm_rows<T>(TensorView2<const T>, const T*, const T*, T,          \
                                           TensorView2<T>, const Execution&);

ATTN_NAMESPACE_BEGIN
namespace detail {
#if !defined(ATTN_TEST_KERNELS_HERE)
ATTN_TEST_KERNELS(extern, float)
ATTN_TEST_KERNELS(extern, double)
#endif
}  // namespace detail
ATTN_NAMESPACE_END
