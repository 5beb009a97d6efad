// error: Epilogue<T, Rank>: T must be the element type of a
#include <attn/kernels.hpp>

void f(const attn::Tensor2<float>& a, attn::Tensor2<float>& c) {
  const attn::Epilogue<double> epilogue;
  attn::gemm(a, a, c, epilogue);
}
