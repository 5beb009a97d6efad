// libFuzzer: shapes, strides, options and functors from the fuzzer's bytes. On every instruction
// set, the error of attention against double may be at most twice that of the naive formula.
#include <cstdlib>
#include <iostream>

#include "support/draws/attention_draw.hpp"
#include "support/draws/functor_draw.hpp"
#include "support/isas.hpp"
#include "support/placed.hpp"
#include "support/tolerance.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace attn_test;
  Random random(std::span(data, size));
  AttentionDraw<float> call(random, 20000);
  const FunctorDraw functors(random);
  const auto [batch, heads, q_len, kv_len] = call.scores();
  const Placed<float, 4> q(call.q, Layout<4>::any(random)), k(call.k, Layout<4>::any(random)),
      v(call.v, Layout<4>::any(random));
  const LibraryOptions<float> library(call.options);
  functors.tell(call.options);
  for (const attn::Isa isa : available_isas()) {
    ReferenceResult<float> got{Array<float>({batch, heads, q_len, call.v.extent(3)}),
                               Array<float>({batch, heads, q_len, kv_len}),
                               Array<float>({batch, heads, q_len})};
    attn::AttentionOptions<float> options = library.get();
    options.weights = got.weights.view<4>();
    options.lse = got.lse.view<3>();
    options.execution.isa = isa;
    functors.apply([&](const auto&... f) {
      attn::scaled_dot_product_attention(q.read(), k.read(), v.read(), got.y.view<4>(), options,
                                         f...);
    });
    const std::string found = attention_difference(got, call.q, call.k, call.v, call.options, isa);
    if (found.empty()) continue;
    std::cerr << call.text() << functors.text() << ", strides of k "
              << attn::to_string(k.view().strides()) << ": " << found << '\n';
    std::abort();
  }
  return 0;
}
