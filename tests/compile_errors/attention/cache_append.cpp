// error: KvCache: v must have the element type of the cache
#include <attn/attention.hpp>

void f(attn::KvCache<float>& cache, const attn::Tensor4<float>& k, const attn::Tensor4<double>& v) {
  cache.append(k, v);
}
