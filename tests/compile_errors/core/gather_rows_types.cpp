// error: gather_rows: rows must have integers as elements
#include <attn/core.hpp>

auto f(const attn::Tensor2<float>& x, const attn::Tensor1<float>& rows) {
  return attn::gather_rows(x, rows);
}
