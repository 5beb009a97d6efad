// libFuzzer: tangents of attention, with and without lists of keys, from the fuzzer's bytes. On every
// instruction set they lie within rounding of nested loops.
#include <cstdlib>
#include <iostream>

#include "support/draws/gather_draw.hpp"
#include "support/draws/jvp_draw.hpp"
#include "support/isas.hpp"
#include "support/tolerance.hpp"

namespace {

using namespace attn_test;

/// Calls add(options) for options that the reference does not have.
template <class Draw, class Add>
void compare(Random& random, const Draw& call, const Add& add) {
  const auto tangents = draw_tangents(random, call);
  const auto exact = reference_jvp(call.q, call.k, call.v, call.options, tangents);
  const double bound = 1e-12 * (1 + exact.largest);
  const LibraryOptions<double> library(call.options);
  for (const attn::Isa isa : available_isas()) {
    attn::AttentionOptions<double> options = library.get();
    options.execution.isa = isa;
    add(options);
    const JvpRun<double> got = call_jvp(call, tangents, options);
    const std::string found = difference(got.d_y, exact.d_y, bound, isa, "d_y") +
                              difference(got.d_lse, exact.d_lse, bound, isa, "d_lse");
    if (found.empty()) continue;
    std::cerr << call.text() << ": " << found << '\n';
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Random random(std::span(data, size));
  if (random.chance(0.4)) {
    const GatherDraw<double> call(random, 8000);
    compare(random, call, [&](auto& options) { call.add_lists(options); });
  } else {
    compare(random, AttentionDraw<double>(random, 8000), [](auto&) {});
  }
  return 0;
}
