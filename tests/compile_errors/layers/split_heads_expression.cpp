// error: an Eigen expression has no elements to view: give its .eval() a name
#include <attn/attn.hpp>

auto f(const Eigen::MatrixXf& x) { return attn::split_heads(x * x, 2); }
