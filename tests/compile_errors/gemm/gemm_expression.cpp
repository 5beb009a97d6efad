// error: an Eigen expression has no elements to view: give its .eval() a name
#include <attn/attn.hpp>

void f(const Eigen::MatrixXf& x, Eigen::MatrixXf& y) { attn::gemm(x + x, x, y); }
