// libFuzzer: any keys of a GGUF file, any tokenizer.json and any table of characters give a clear
// error or a tokenizer that encodes and decodes any bytes; any chat template is recognised or
// refused.
//
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -Iinclude -Itests
//       tests/fuzz/tokenizer_fuzz.cpp -lutf8proc -o tokenizer_fuzz && ./tokenizer_fuzz
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "attn/models/gguf/tokenizer.hpp"
#include "attn/models/pretrained/tokenizer.hpp"

#include "support/files/gguf_bytes.hpp"

namespace {

using attn_test::gguf_key;
using attn_test::gguf_number;
using attn_test::gguf_text;

constexpr std::uint32_t kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9;

template <class List, class Encode>
std::string gguf_array(std::uint32_t type, const List& list, Encode&& encode) {
  std::string bytes = gguf_number(type) + gguf_number(std::uint64_t{std::size(list)});
  for (const auto& value : list) bytes += encode(value);
  return bytes;
}

std::string sample_sentencepiece() {
  const std::string_view tokens[] = {"<unk>",  "<s>", "</s>", "<0x0A>", "<0x61>",
                                     "\u2581", "a",   "b",    "ab",     "\u2581ab",
                                     "\u00e9", "<t>", "c",    "abc",    "\u2581\u2581"};
  const float scores[] = {0, 0, 0, 0, 0, -9, -8, -7, -1, -2, -6, 0, -5, -3, -4};
  const std::int32_t kinds[] = {2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1, 4, 1, 1, 1};
  std::string header =
      gguf_key("tokenizer.ggml.model", kString, gguf_text("llama")) +
      gguf_key("tokenizer.ggml.tokens", kArray, gguf_array(kString, tokens, gguf_text)) +
      gguf_key("tokenizer.ggml.scores", kArray, gguf_array(kFloat32, scores, gguf_number<float>)) +
      gguf_key("tokenizer.ggml.token_type", kArray,
               gguf_array(kInt32, kinds, gguf_number<std::int32_t>)) +
      gguf_key("tokenizer.ggml.bos_token_id", kUint32, gguf_number(std::uint32_t{1})) +
      gguf_key("tokenizer.ggml.eos_token_id", kUint32, gguf_number(std::uint32_t{2})) +
      gguf_key("tokenizer.ggml.unknown_token_id", kUint32, gguf_number(std::uint32_t{0})) +
      gguf_key("tokenizer.ggml.add_space_prefix", kBool, std::string(1, '\1')) +
      gguf_key("tokenizer.chat_template", kString,
               gguf_text("{{ bos_token }}{% for message in messages %}"));
  return attn_test::gguf_file(0, 9, header);
}

constexpr std::string_view kJson =
    R"({"added_tokens":[{"id":1,"content":"<s>","special":true,"normalized":false}],)"
    R"("normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},)"
    R"({"type":"Replace","pattern":{"String":" "},"content":"▁"}]},"pre_tokenizer":null,)"
    R"("decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},)"
    R"("content":" "},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},)"
    R"("model":{"type":"Unigram","unk_id":0,"byte_fallback":false,)"
    R"("vocab":[["<unk>",0],["<s>",0],["▁",-3.5],["a",-2],["b",-2.5],["ab",-3],["▁a",-3]]}})";

/// A table of one block of units, in which 'a' becomes "bc".
std::string sample_charsmap() {
  std::uint32_t units[256] = {1 << 10};  // to 1
  units[1 ^ 'a'] = 'a' | 1 << 8 | (1 ^ 'a' ^ 2) << 10;
  units[2] = 1u << 31 | 1;
  std::string bytes = gguf_number(std::uint32_t{sizeof units});
  for (const std::uint32_t unit : units) bytes += gguf_number(unit);
  return bytes + std::string("\0bc\0", 4);
}

void use(const attn::Tokenizer& tokenizer, std::string_view text) {
  for (const bool parse_special : {false, true}) {
    const auto ids = tokenizer.encode(text, parse_special);
    if (tokenizer.decode(ids).size() > 200 * text.size() + 200) std::abort();
  }
}

/// `sample` with some bytes replaced, at places that the input names.
std::string changed(std::string sample, const std::uint8_t* data, std::size_t size) {
  for (std::size_t at = 0; at + 3 <= size; at += 3) {
    const std::size_t place = (std::size_t{data[at]} << 8 | data[at + 1]) % sample.size();
    sample[place] = static_cast<char>(data[at + 2]);
  }
  return sample;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string gguf = sample_sentencepiece();
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    const attn_test::ExactBytes bytes(changed(gguf, data, size));
    const attn::GgufFile file(bytes.span());
    const attn::Tokenizer tokenizer = attn::gguf_tokenizer(file);
    use(tokenizer, input);
    const auto special = attn::gguf_special_tokens(file, tokenizer);
    static_cast<void>(attn::gguf_chat_template(file, tokenizer, special));
  } catch (const attn::IoError&) {
  } catch (const std::invalid_argument&) {
    // Most inputs are invalid.
  }
  try {
    const attn::ConfigFile file(changed(std::string(kJson), data, size), "tokenizer.json");
    use(attn::detail::tokenizer_of(file, 0), input);
  } catch (const attn::IoError&) {
  } catch (const std::invalid_argument&) {
  }
  try {
    static const std::string table = sample_charsmap();
    const attn::Charsmap charsmap(changed(table, data, size));
    if (charsmap(input).size() > 4 * input.size()) std::abort();
  } catch (const std::invalid_argument&) {
  }
  static_cast<void>(attn::ChatTemplate::recognise(input, "<s>", "</s>"));
  return 0;
}
