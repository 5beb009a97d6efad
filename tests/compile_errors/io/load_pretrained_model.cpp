// error: load_pretrained<Model>: Model must be Gpt<T>, Bert<T>, Vit<T> or Seq2SeqTransformer<T>
#include <attn/models/pretrained.hpp>

auto f() { return attn::load_pretrained<attn::Linear<float>>("folder"); }
