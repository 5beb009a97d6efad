// KnownTemplate: which text of a chat template has which format.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "attn/text/chat_formats.hpp"
#include "attn/text/template_text.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Templates too long to compare in full, by fingerprint() of normal_template(); those of Qwen 2.5
/// and Ministral 3 are taken without their default system messages.
struct KnownTemplate {
  std::uint64_t fingerprint;
  const ChatFormat& format;
};
inline constexpr KnownTemplate kKnownTemplates[] = {
    {0xB10B89673137865D, kChatMl},         // Qwen 2.5
    {0x84061E8C2501E1CF, kChatMl},         // of its smaller models
    {0x511F5C5648D2045A, kChatMl},         // Qwen 3 of July 2025, which does not think
    {0x2C825B65CC75F133, kQwen3},          // Qwen 3
    {0x15EDE89C44D511BC, kQwen3},          // a later version
    {0x20BB8CE9EDFCA683, kQwen3Thinking},  // of July 2025, and Qwen3-Next
    {0x035F83DE84C841EB, kChatMl},         // Qwen3-Coder
    {0x66954363BC6B6A18, kChatMl},         // a later version
    {0x31A050217CFB8DFD, kStableCode},
    {0x29298CAB19035F0C, kOlmo31},
    {0xBC9E5A66EC0EB9B1, kOlmo3Thinking},
    {0xCEB6DA71FA6851BE, kSmolLm3},
    {0x05BEA495978C7D52, kSmolLm3Undated},
    {0xD9AFBF5BD37C8A7F, kGemma},  // Gemma 1 and 2
    {0xEAB1562BE78431C1, kGemma},  // Gemma 3 1B in some files, without system messages
    {0x60933F4C9D6F4865, kGemma3},
    {0x9A5A118BCD77C789, kLlama2},
    {0xD546F910F456DD97, kLlama31},
    {0x0D895D28719D87E0, kLlama32},
    {0x105DF38C89AF01D8, kLlamaNemotron},  // Llama 3.1 Nemotron
    {0x8BB9C3C64FB6E3B7, kPhi3},
    {0x3B6307939C2729E4, kPhi35},
    {0x0865903017B214B7, kPhi3Medium},
    {0x0B6A1E8EBB1EC584, kZephyr},
    {0xBB4524ED7672EE76, kMistral01},
    {0xDD39F833422AA4A9, kMistral02},
    {0x43BCA759783C354A, kMistral2024},  // 7B 0.2, of September 2024
    {0xD7C48F855631FB73, kMistral03},
    {0xB1B903F4C9C66DBF, kMistralNemo},
    {0x1E2371314C5B81E2, kMistralLarge2411},
    {0xC1F6FEEB7EDBF15C, kMixtral8x22},
    {0xB31714150B8A3D69, kMistralSmall},
    {0x2597565A1FBED25C, kMinistral3},  // Reasoning
    {0x03A20509C82DE841, kMinistral3},
    {0xDD441ACB21216D0E, kMinistral3Lenient},
    {0x96E97370723377FE, kFirstPhi4},
    {0xDD6E3562ABC5D331, kPhi4},
    {0xBE03E20C18FDE8E3, kPhi4Reasoning},
    {0xF78EF52ACEA4A8C2, kPhi4Mini},
    {0x1882F8065C1ABDF7, kPhi4MiniReasoning},
    {0x4E1232C6B0F73B6D, kCohere},  // Aya Expanse
    {0xA671CC3F959FA977, kCohere},  // Command R, Aya 23
    {0x822BB41C0E268078, kCohere},  // Command R in other files
    {0xCA5E5F47AE21E1B9, kCohere},  // Command R+
    {0xF959F09C1BCF3513, kCommandR7B},
    {0x84E4FB66B9AFC1F6, kCommandR7BArabic},
    {0x5BFA8CD3FE9A539E, kCommandR7B},  // Command A
    {0xEF1037F764B760EA, kTinyAya},
    {0x82A93FA88D8FB642, kDeepSeek2},
    {0x2AF07AA40E07A2EA, kDeepSeek3},
    {0x6559038118883AD3, kDeepSeek31},
    {0xB54C81ED5CA28168, kDeepSeekR1},
    {0xDA4E81BABFB7C1B1, kDeepSeekR1},  // its distilled models
    {0x097A9D28C5C7D874, kDeepSeekR1Unprompted},
    {0x2D4D4A39EF2FBE35, kDeepSeekR1Unprompted},  // its distilled models
    {0xCC65F7C2922E3B9E, kDeepSeekR1May},
    {0xF41CCB3BA725FF82, kGranite},
    {0xDB5E107105550E04, kGranite31},
    {0xE748490C1AAB21FF, kGranite31},  // Granite 3.2
    {0x0DF523E6500093BF, kGranite33},
    {0x7BEF45E2ABAF5B25, kFirstGranite33},
    {0x554A950B98AADB94, kGranite40},
    {0x2DDF5DB261983078, kGranite41},
    {0xF1308DB0F9B3BD01, kOlmo2},
    {0x32F6BBD105013119, kTulu3},
    {0x204142739E1F3AE5, kTulu3},  // Falcon 3
    {0x89516C455B08E3E6, kGlm4},
    {0x8AAD2D60CDDDDA30, kFirstGlm4},
    {0xCA03AA467637432B, kFirstGlm4},  // with tools of several kinds
    {0x3556E836E695FB4D, kLfm2},
    {0xF1088E130E409F5D, kLfm2},  // a later version
    {0x9EB6043DF6956BDE, kLfm25},
    {0xFE8345DE124E22FB, kLfm25},  // a later version
    {0x92C9A6512EAA9E32, kFirstLfm25},
    {0x8CAF0E95C881BD14, kFalcon2},
    {0xD21857E9C10DB3F2, kNemotron},
    {0x0DC824AE3945E448, kExaone4},
    {0x5026CB0A1319467C, kSeedOss},
    {0xBC8B256BB6137905, kGptOss},
};

/// A format that was recognised.
struct FoundFormat {
  ChatFormat format = {};
  std::string own_system = {};  ///< the default system message in the template's text
};

/// The default system message in a canonical text, escaped: the text between `before` and `end` if
/// `behind` follows. Strings within an expression do not count.
inline std::string_view own_system(std::string_view normal, std::string_view before,
                                   std::string_view end, std::string_view behind) {
  const std::size_t at = normal.find(before);
  if (at == normal.npos) return {};
  const auto text = string_at(normal, at + before.size());
  if (!text || !text->ends_with(end)) return {};
  const std::size_t next = at + before.size() + text->size();
  if (!normal.substr(next).starts_with(behind)) return {};
  return text->substr(0, text->size() - end.size());
}

/// The format of a canonical text in the table.
inline std::optional<FoundFormat> find_known(std::string normal) {
  // Qwen 2.5 or Ministral 3.
  std::string own(own_system(normal, "{%else%}{{'<|im_start|>system\n", "<|im_end|>\n",
                             "'}}{%endif%}{%endif%}"));
  if (own.empty())
    own = own_system(normal, "{%setdefault_system_message='", "", "'%}{{bos_token}}");
  for (std::size_t one = 0; !own.empty() && (one = normal.find(own, one)) != normal.npos;)
    normal.erase(one, own.size());
  const std::uint64_t hash = fingerprint(normal);
  for (const KnownTemplate& known : kKnownTemplates)
    if (known.fingerprint == hash) return FoundFormat{known.format, unescaped(own)};
  return std::nullopt;
}
/// ChatML, with or without a default system message.
inline std::optional<FoundFormat> find_chat_ml(std::string_view normal) {
  FoundFormat found{.format = kChatMl};
  found.format.roles = ChatRoles::any;
  const auto drop = [&](std::string_view prefix) {
    if (!normal.starts_with(prefix)) return false;
    normal.remove_prefix(prefix.size());
    return true;
  };
  drop("{%ifnotadd_generation_promptisdefined%}{%setadd_generation_prompt=false%}{%endif%}");
  if (drop("{{bos_token}}")) found.format.begin = "{bos}";
  if (!drop("{%formessageinmessages%}")) return std::nullopt;
  if (drop("{%ifloop.firstandmessages[0]['role']!='system'%}{{'<|im_start|>system\n")) {
    constexpr std::string_view kBehind = "<|im_end|>\n'}}{%endif%}";
    const std::string_view own = own_system(normal, "", "<|im_end|>\n", "'}}{%endif%}");
    if (own.empty()) return std::nullopt;
    found.own_system = unescaped(own);
    normal.remove_prefix(own.size() + kBehind.size());
  }
  if (normal !=
      "{{'<|im_start|>'+message['role']+'\n'+message['content']+'<|im_end|>'+'\n'}}{%endfor%}"
      "{%ifadd_generation_prompt%}{{'<|im_start|>assistant\n'}}{%endif%}") {
    return std::nullopt;
  }
  return found;
}
/// Llama 3's template; it writes the beginning of an answer always, or only if asked for.
inline std::optional<FoundFormat> find_llama3(std::string_view normal) {
  constexpr std::string_view kMessages =
      "{%setloop_messages=messages%}{%formessageinloop_messages%}{%setcontent='<|start_"
      "header_id|>'"
      "+message['role']+'<|end_header_id|>\n\n'+message['content']|trim+'<|eot_id|>'%}"
      "{%ifloop.index0==0%}{%setcontent=bos_token+content%}{%endif%}{{content}}{%endfor%}";
  if (!normal.starts_with(kMessages)) return std::nullopt;
  normal.remove_prefix(kMessages.size());
  const std::string prompt = "{{'<|start_header_id|>assistant<|end_header_id|>\n\n'}}";
  if (normal != prompt && normal != "{%ifadd_generation_prompt%}" + prompt + "{%endif%}")
    return std::nullopt;
  FoundFormat found{.format = kLlama3};
  found.format.roles = ChatRoles::any;
  return found;
}

/// The format of a template's text, if it is known.
inline std::optional<FoundFormat> find_format(std::string_view text) {
  const std::string normal = normal_template(text);
  if (auto found = find_known(normal)) return found;
  if (auto found = find_chat_ml(normal)) return found;
  return find_llama3(normal);
}

}  // namespace detail

ATTN_NAMESPACE_END
