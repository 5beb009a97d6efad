// error: temporary whose address is used as value of member of local variable 'options'
// flags: -Werror=dangling
#include <attn/attention.hpp>

bool f() {
  const attn::AttentionOptions<float> options{.sinks = attn::Tensor1<float>({1}).view()};
  return static_cast<bool>(options.sinks);
}
