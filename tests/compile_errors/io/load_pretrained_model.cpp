// error: load_pretrained<Model>: Model must be Gpt<T>, Bert<T>, Vit<T>, Clip<T>, Seq2SeqTransformer<T> or Whisper<T>
#include <attn/models/pretrained.hpp>

auto f() { return attn::load_pretrained<attn::Linear<float>>("folder"); }
