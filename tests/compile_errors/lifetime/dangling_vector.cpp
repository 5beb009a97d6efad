// error: temporary whose address is used as value of member of local variable 'options'
// flags: -Werror=dangling
#include <vector>

#include <attn/attention.hpp>

bool f() {
  const attn::AttentionOptions<float> options{.sinks = std::vector<float>(1)};
  return static_cast<bool>(options.sinks);
}
