// Every header with the macros of <windows.h> and warnings as errors, and calls of many kinds. The
// standard library comes first: it does not support such macros itself.
#include <bits/stdc++.h>

#define min(a, b) (((a) < (b)) ? (a) : (b))
#define max(a, b) (((a) > (b)) ? (a) : (b))
#define near
#define far
#define small char
#define interface struct
#define IN
#define OUT
#define OPTIONAL
#define CONST const
#define VOID void
#define TRUE 1
#define FALSE 0
#define ERROR 0
#define DELETE 0x00010000L
#define IGNORE 0

#include "every_header.hpp"

namespace {

template <class T>
T attend(const attn::Tensor4<T>& x, const attn::Tensor2<bool>& mask) {
  attn::Tensor4<T> out(x.shape()), d_x(x.shape());
  attn::Tensor3<T> lse({x.extent(0), x.extent(1), x.extent(2)});
  const attn::AttentionOptions<T> options{
      .mask = attn::keep_mask(mask), .softcap = 30, .dropout = {0.1, 1}, .lse = lse};
  const auto nearer = attn::score_mod([](auto s, int, int, int i, int j) { return s - T(i - j); });
  attn::scaled_dot_product_attention(x, x, x, out, options, nearer);
  attn::scaled_dot_product_attention_backward(out, x, x, x, out, lse, d_x, d_x, d_x, options);
  attn::softmax(x, out);
  attn::activate(attn::Activation::gelu, x, out);
  return attn::linear(out, attn::Tensor2<T>({4, 4}))(0, 0, 0, 0);
}

attn::index_t infer(const std::string& folder) {
  const auto gpt = attn::load_pretrained<attn::Gpt<float>>(folder);
  attn::GptSession<float> session(gpt, 1, 16);
  const attn::Tensor2<float> weight({2, 3});
  attn::save_safetensors(folder + "/copy", {{"weight", weight}});
  const attn::Tensor2<attn::index_t> prompt({1, 3});
  return static_cast<attn::index_t>(
      attn::generate(session, prompt, {.max_new_tokens = 2})[0].size());
}

attn::index_t talk(const std::string& path) {
  const attn::LanguageModel model(path);
  attn::GptSession<float> session(model.gpt(), 1, 64);
  const std::vector<attn::ChatMessage> messages = {{"user", "hello"}};
  attn::generate_text(model, session, model.encode_chat(messages), {});
  return static_cast<attn::index_t>(
      attn::explain(attn::Tensor4<float>(), attn::Tensor4<float>(), attn::Tensor4<float>())
          .text()
          .size());
}

}  // namespace

int main(int, char** arguments) {
  const std::string path = arguments[0];
  return static_cast<int>(max(infer(path), talk(path))) +
         static_cast<int>(min(attend<float>({}, {}), static_cast<float>(attend<double>({}, {}))));
}
