// error: load_state_dict(module, file): the first must be a module
#include <attn/io.hpp>
#include <attn/layers.hpp>

void f(const attn::Linear<float>& layer, const attn::SafetensorsFile& file) {
  attn::load_state_dict(layer, file);
}
