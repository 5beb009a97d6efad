// error: address of stack memory associated with local variable 'sinks' returned
// flags: -Werror=return-stack-address
#include <attn/attention.hpp>

attn::AttentionOptions<float> f() {
  const attn::Tensor1<float> sinks({2});
  return {.sinks = sinks};
}
