// error: temporary whose address is used as value of local variable 'view'
// flags: -Werror=dangling
#include <attn/attn.hpp>

float f(const Eigen::MatrixXf& x) {
  const attn::TensorView2<const float> view = Eigen::MatrixXf(x * x);
  return view(0, 0);
}
