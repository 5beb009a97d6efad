// error: Vit: images must have 4 axes (batch, channels, height, width), has 3
#include <attn/models/vit.hpp>

auto f(const attn::Vit<float>& model, const attn::Tensor3<float>& image) {
  return model.classify(image);
}
