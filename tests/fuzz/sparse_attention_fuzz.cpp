// libFuzzer: lists of keys, trees of drafts and block masks, with options from the fuzzer's bytes. On
// every instruction set, the error of attention against double may be at most twice that of the
// naive formula.
#include <cstdlib>
#include <iostream>

#include "attn/attention/block_mask.hpp"
#include "attn/attention/tree_mask.hpp"

#include "support/draws/functor_draw.hpp"
#include "support/draws/gather_draw.hpp"
#include "support/isas.hpp"
#include "support/tolerance.hpp"

namespace {

using namespace attn_test;

/// Calls add(options) for options that the reference does not have.
template <class Draw, class Add, class... Functors>
void compare(const Draw& call, const std::string& text, const Add& add,
             const Functors&... functors) {
  const auto [batch, heads, q_len, kv_len] = call.scores();
  const LibraryOptions<float> library(call.options);
  for (const attn::Isa isa : available_isas()) {
    ReferenceResult<float> got{Array<float>({batch, heads, q_len, call.v.extent(3)}),
                               {},
                               Array<float>({batch, heads, q_len})};
    attn::AttentionOptions<float> options = library.get();
    options.lse = got.lse.view<3>();
    options.execution.isa = isa;
    add(options);
    attn::scaled_dot_product_attention(call.q.template view<4>(), call.k.template view<4>(),
                                       call.v.template view<4>(), got.y.view<4>(), options,
                                       functors...);
    const std::string found = attention_difference(got, call.q, call.k, call.v, call.options, isa);
    if (found.empty()) continue;
    std::cerr << call.text() << text << ": " << found << '\n';
    std::abort();
  }
}

/// The mask itself, or blocks of it.
template <class F>
void compare_mask(Random& random, AttentionDraw<float>& call, const std::string& text,
                  const attn::detail::MaskMod<F>& mask) {
  call.options.mask_mod = mask.f;
  if (random.chance(0.4))
    return compare(
        call, text, [](auto&) {}, mask);
  attn::Shape<4> shape = call.scores();
  shape[3] += call.options.first_key;
  const attn::BlockMask blocks(mask, shape,
                               {.q_block = random.pick<Index>({1, 8, 64, 128}),
                                .kv_block = random.pick<Index>({1, 16, 64, 128})});
  compare(
      call, text + " as a block mask", [](auto&) {}, blocks);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Random random(std::span(data, size));
  const Index kind = random.integer(0, 3);
  if (kind == 0) {
    const GatherDraw<float> call(random, 8000);
    compare(call, "", [&](auto& options) { call.add_lists(options); });
    return 0;
  }
  AttentionDraw<float> call(random, 8000);
  const Index tokens = call.q.extent(2), past = call.options.first_key + call.k.extent(2) - tokens;
  if (kind == 1 && past >= 0) {
    attn::Tensor1<Index> parents({tokens});
    for (Index i = 0; i < tokens; ++i) parents(i) = random.integer(-1, i - 1);
    compare_mask(random, call, ", tree", attn::tree_mask(parents, past));
  } else if (kind == 2) {
    const MaskSome some{static_cast<int>(random.integer(2, 9))};
    compare_mask(random, call, ", some pairs", attn::mask_mod(some));
  } else {
    const LaterSquares squares{static_cast<int>(random.integer(1, 100))};
    compare_mask(random, call, ", squares", attn::mask_mod(squares));
  }
  return 0;
}
