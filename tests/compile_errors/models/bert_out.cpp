// error: Bert: out must have the element type of the model
#include <attn/models.hpp>

void f(const attn::Bert<float>& model, const attn::Tensor2<int>& ids, attn::Tensor3<double>& out) {
  model.forward(ids, out);
}
