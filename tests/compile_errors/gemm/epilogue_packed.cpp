// error: Epilogue<T, Rank>: T must be the element type of a
#include <attn/kernels.hpp>

void f(const attn::Tensor2<float>& a, const attn::PackedWeights<float>& b,
       attn::Tensor2<float>& c) {
  const attn::Epilogue<double> epilogue;
  attn::gemm(a, b, c, epilogue);
}
