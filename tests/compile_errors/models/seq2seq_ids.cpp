// error: Seq2SeqTransformer: src must have integers as elements
#include <attn/models.hpp>

auto f(const attn::Seq2SeqTransformer<float>& model, const attn::Tensor2<float>& src,
       const attn::Tensor2<int>& tgt) {
  return model(src, tgt);
}
