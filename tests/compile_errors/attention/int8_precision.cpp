// error: include attn/attention.hpp or attn/attention/sdpa.hpp
#include <attn/attention/options.hpp>

attn::AttentionOptions<float> quantized() { return {.precision = attn::AttentionPrecision::int8}; }
