// error: deleted function
#include <attn/attn.hpp>

auto f(const Eigen::MatrixXf& x) { return attn::view_of(Eigen::MatrixXf(x * x)); }
