// LanguageModel from GGUF files of each architecture: tiny models as llama.cpp stores them, against
// transformers.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <numbers>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "attn/generation/generate_text.hpp"
#include "attn/io/gguf/writer.hpp"
#include "attn/io/rename.hpp"
#include "attn/io/safetensors/folder.hpp"
#include "attn/models/language_model.hpp"
#include "attn/models/pretrained.hpp"

#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"
#include "support/references/pretrained_goldens.hpp"

namespace attn {
namespace {

using attn_test::kPretrained;
using attn_test::TempFolder;
using Path = std::filesystem::path;

/// A folder of tests/data/pretrained/make.py converted to a GGUF file in memory.
class TinyGguf {
 public:
  TinyGguf(const std::string& name, std::string architecture)
      : golden(kPretrained / name / "golden.safetensors"), architecture_(std::move(architecture)) {
    const ConfigFile config(kPretrained / name / "config.json");
    const index_t heads = config.count("num_attention_heads"),
                  kv_heads = config.count("num_key_value_heads");
    const index_t head_dim = config.count("head_dim", config.count("hidden_size") / heads);
    metadata.set("general.architecture", architecture_);
    number("block_count", config.count("num_hidden_layers"));
    number("context_length", config.count("max_position_embeddings"));
    number("embedding_length", config.count("hidden_size"));
    number("feed_forward_length", config.count("intermediate_size", 24));
    if (config.has("num_experts_per_tok")) {
      const index_t hidden = config.count("intermediate_size");
      number("expert_count", config.count("num_local_experts", config.count("num_experts", 4)));
      number("expert_used_count", config.count("num_experts_per_tok"));
      number("expert_feed_forward_length", config.count("moe_intermediate_size", hidden));
    }
    number("attention.head_count", heads);
    if (architecture_ == "lfm2") {  // layers 1 and 3 are convolutions
      const auto heads_of = static_cast<std::int32_t>(kv_heads);
      set("attention.head_count_kv", std::vector<std::int32_t>{heads_of, 0, heads_of, 0});
      number("shortconv.l_cache", config.count("conv_L_cache"));
    } else {
      number("attention.head_count_kv", kv_heads);
    }
    number("attention.key_length", head_dim);
    number("attention.value_length", head_dim);
    number("rope.dimension_count", head_dim);
    const char* epsilon = config.has("norm_eps") ? "norm_eps" : "rms_norm_eps";
    set("attention.layer_norm_rms_epsilon", static_cast<float>(config.get<double>(epsilon)));
    set("rope.freq_base", static_cast<float>(config.get<double>("rope_theta", 10000)));
    add_tokenizer(config.count("vocab_size"));

    const bool is_gemma2 = architecture_ == "gemma2";
    const bool has_norms_behind = is_gemma2 || architecture_ == "gemma3" ||
                                  architecture_ == "olmo2" || architecture_ == "gpt-oss" ||
                                  architecture_ == "qwen3next";  // before the experts

    const bool pairs_are_interleaved =
        architecture_ == "llama" || architecture_ == "granite" || architecture_ == "smollm3";
    if (is_gemma2) {
      set("attn_logit_softcapping",
          static_cast<float>(config.get<double>("attn_logit_softcapping")));
      set("final_logit_softcapping",
          static_cast<float>(config.get<double>("final_logit_softcapping")));
      number("attention.sliding_window", config.count("sliding_window"));
    }
    // The scale of queries is that of head_dim; GGUF files of Gemma do not contain it.
    const double scale =
        std::sqrt(static_cast<double>(head_dim) /
                  config.get<double>("query_pre_attn_scalar", static_cast<double>(head_dim)));

    const SafetensorsFolder folder(kPretrained / name);
    const detail::ExpertsFile file(folder, architecture_ == "gpt-oss"
                                               ? detail::kGptOssTypes[0].fused
                                               : detail::FusedExperts{});
    const auto rename = rename_by(
        {{"model.embed_tokens.", "token_embd."},
         {"lm_head.", "output."},
         {"model.norm.", "output_norm."},
         {"model.layers.", "blk."},
         {"self_attn.q_proj", "attn_q"},
         {"self_attn.k_proj", "attn_k"},
         {"self_attn.v_proj", "attn_v"},
         {"self_attn.o_proj", "attn_output"},
         {"self_attn.q_norm", "attn_q_norm"},
         {"self_attn.k_norm", "attn_k_norm"},
         {"self_attn.out_proj", "attn_output"},
         {"self_attn.q_layernorm", "attn_q_norm"},
         {"self_attn.k_layernorm", "attn_k_norm"},
         {".conv.", ".shortconv."},
         {"linear_attn.in_proj_qkvz", "ssm_in"},
         {"linear_attn.in_proj_ba", "ssm_ba"},
         {"linear_attn.conv1d", "ssm_conv1d"},
         {"linear_attn.dt_bias", "ssm_dt.bias"},
         {"linear_attn.A_log", "ssm_a"},
         {"linear_attn.norm", "ssm_norm"},
         {"linear_attn.out_proj", "ssm_out"},
         {"operator_norm", "attn_norm"},
         {"model.embedding_norm.", "token_embd_norm."},
         {"feed_forward.w1", "ffn_gate"},
         {"feed_forward.w2", "ffn_down"},
         {"feed_forward.w3", "ffn_up"},
         {"input_layernorm", "attn_norm"},
         {"post_attention_layernorm", has_norms_behind ? "post_attention_norm" : "ffn_norm"},
         {"pre_feedforward_layernorm", "ffn_norm"},
         {"post_feedforward_layernorm", "post_ffw_norm"},
         {"self_attn.sinks", "attn_sinks.weight"},
         {"self_attn.qkv_proj", "attn_qkv"},
         {"mlp.shared_expert_gate.", "ffn_gate_inp_shexp."},
         {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
         {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
         {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
         {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
         {"mlp.gate.", "ffn_gate_inp."},
         {"mlp.router.", "ffn_gate_inp."},
         {"self_attn.q_a_proj", "attn_q_a"},
         {"self_attn.q_a_layernorm", "attn_q_a_norm"},
         {"self_attn.q_b_proj", "attn_q_b"},
         {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
         {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
         {"self_attn.kv_b_proj", "attn_kv_b"},
         {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
         {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
         {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
         {"mlp.gate_up_proj", "ffn_up"},
         {"mlp.gate_proj", "ffn_gate"},
         {"mlp.up_proj", "ffn_up"},
         {"mlp.down_proj", "ffn_down"}});
    for (const std::string& theirs : file.names()) {
      const std::string ours = rename(theirs);
      std::vector<index_t> shape = file.shape(theirs);
      std::vector<float> values(static_cast<std::size_t>(size_of(shape)));
      if (shape.size() == 1) {
        file.load(theirs, TensorView1<float>(values.data(), {shape[0]}));
      } else if (shape.size() == 3) {  // a convolution, (channels, 1, width)
        file.load(theirs, TensorView3<float>(values.data(), {shape[0], shape[1], shape[2]}));
        shape.erase(shape.begin() + 1);
      } else {
        file.load(theirs, TensorView2<float>(values.data(), {shape[0], shape[1]}));
      }
      const bool adds_one = architecture_.starts_with("gemma") || architecture_ == "qwen3next";
      if (adds_one && ours.find("_norm.") != ours.npos && ours.find("ssm_norm") == ours.npos) {
        for (float& value : values) value += 1;
      }
      if (ours.ends_with(".ssm_a"))
        for (float& value : values) value = -std::exp(value);
      if (ours.find(".attn_q.") != ours.npos)
        for (float& value : values) value = static_cast<float>(value * scale);
      if (pairs_are_interleaved && ours.find(".attn_q.") != ours.npos)
        interleave(values, heads, head_dim);
      if (pairs_are_interleaved && ours.find(".attn_k.") != ours.npos)
        interleave(values, kv_heads, head_dim);
      const std::size_t experts = theirs.find(".mlp.experts.");
      if (experts == theirs.npos) {
        add(ours, shape, values);
      } else if (theirs.find(".mlp.experts.0.") != theirs.npos) {
        add_experts(file, theirs, ours.substr(0, ours.find(".mlp")));
      }
    }
  }

  void add(const std::string& name, std::vector<index_t> shape, const std::vector<float>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    add(name, std::move(shape), GgufType::F32, {bytes.begin(), bytes.end()});
  }
  void add(const std::string& name, std::vector<index_t> shape, GgufType type,
           std::vector<std::byte> bytes) {
    tensors_.push_back({name, std::move(shape), type, std::move(bytes)});
  }
  /// Replaces the numbers of a tensor.
  void put(const std::string& name, const std::vector<float>& values) {
    for (TinyTensor& tensor : tensors_)
      if (tensor.name == name) std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  }
  /// Splits the joint matrix of keys and values of latent attention, as newer files do.
  void split_latent_heads(index_t heads, index_t head_dim, index_t head_dim_v, index_t rank) {
    for (TinyTensor& tensor : std::vector<TinyTensor>(tensors_)) {
      const std::size_t at = tensor.name.find("_kv_b.");
      if (at == tensor.name.npos) continue;
      std::vector<float> all(tensor.bytes.size() / sizeof(float)), k, v;
      std::memcpy(all.data(), tensor.bytes.data(), tensor.bytes.size());
      const auto from = [&](index_t h, index_t row, index_t i) {
        return all[static_cast<std::size_t>((h * (head_dim + head_dim_v) + row) * rank + i)];
      };
      for (index_t h = 0; h < heads; ++h) {
        for (index_t i = 0; i < rank; ++i) {
          for (index_t row = 0; row < head_dim; ++row) k.push_back(from(h, row, i));
        }
        for (index_t row = head_dim; row < head_dim + head_dim_v; ++row) {
          for (index_t i = 0; i < rank; ++i) v.push_back(from(h, row, i));
        }
      }
      std::erase_if(tensors_, [&](const TinyTensor& one) { return one.name == tensor.name; });
      const std::string block = tensor.name.substr(0, at);
      add(block + "_k_b.weight", {heads, rank, head_dim}, k);
      add(block + "_v_b.weight", {heads, head_dim_v, rank}, v);
    }
  }
  /// Splits the projections of the gated delta rule, as newer files do; gates may become F16.
  void split_delta(index_t heads, index_t key_dim, index_t values, bool in_f16) {
    for (TinyTensor& tensor : std::vector<TinyTensor>(tensors_)) {
      const std::size_t at = tensor.name.find(".ssm_in.");
      if (at == tensor.name.npos) continue;
      const index_t width = tensor.shape[1], rows = 2 * (key_dim + values);
      const auto all = floats(tensor);
      std::vector<float> qkv, gate;
      const auto add_rows = [&](std::vector<float>& to, index_t begin, index_t count) {
        for (index_t h = 0; h < heads; ++h) {
          const auto from = all.begin() + (h * rows + begin) * width;
          to.insert(to.end(), from, from + count * width);
        }
      };
      add_rows(qkv, 0, key_dim);
      add_rows(qkv, key_dim, key_dim);
      add_rows(qkv, 2 * key_dim, values);
      add_rows(gate, 2 * key_dim + values, values);
      std::erase_if(tensors_, [&](const TinyTensor& one) { return one.name == tensor.name; });
      const std::string block = tensor.name.substr(0, at);
      add(block + ".attn_qkv.weight", {heads * (2 * key_dim + values), width}, qkv);
      const std::string name = block + ".attn_gate.weight";
      if (in_f16) {
        const std::vector<float16> rounded(gate.begin(), gate.end());
        const auto bytes = std::as_bytes(std::span(rounded));
        add(name, {heads * values, width}, GgufType::F16, {bytes.begin(), bytes.end()});
      } else {
        add(name, {heads * values, width}, gate);
      }
    }
  }
  /// Rounds the rows of gates in the joint projections of the gated delta rule to F16.
  void round_delta_gates(index_t key_dim, index_t values) {
    for (TinyTensor& tensor : tensors_) {
      if (tensor.name.find(".ssm_in.") == tensor.name.npos) continue;
      const index_t width = tensor.shape[1], rows = 2 * (key_dim + values);
      auto all = floats(tensor);
      for (index_t n = 0; n < std::ssize(all); ++n) {
        float& value = all[static_cast<std::size_t>(n)];
        if (n / width % rows >= 2 * key_dim + values) value = static_cast<float>(float16(value));
      }
      std::memcpy(tensor.bytes.data(), all.data(), tensor.bytes.size());
    }
  }
  /// Stores the experts' matrices as MXFP4 blocks, which hold the same numbers.
  void put_experts_in_mxfp4() {
    for (TinyTensor& tensor : tensors_) {
      if (!tensor.name.ends_with("_exps.weight")) continue;
      std::vector<float> values(static_cast<std::size_t>(size_of(tensor.shape)));
      std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
      tensor.type = GgufType::MXFP4;
      tensor.bytes.clear();
      for (std::size_t begin = 0; begin < values.size(); begin += 32) {
        const std::span<const float> block(values.data() + begin, 32);
        append_mxfp4(block, tensor.bytes);
      }
    }
  }
  template <class T>
  void set(std::string_view key, const T& value) {
    metadata.set(architecture_ + "." + std::string(key), value);
  }
  void number(std::string_view key, index_t value) { set(key, static_cast<std::uint32_t>(value)); }

  Path save() const {
    std::vector<NamedGgufTensor> list;
    for (const TinyTensor& tensor : tensors_) {
      list.push_back({tensor.name, {tensor.type, tensor.shape, tensor.bytes}});
    }
    save_gguf(folder_ / "model.gguf", metadata, list);
    return folder_ / "model.gguf";
  }

  GgufMetadata metadata;
  SafetensorsFile golden;

 private:
  struct TinyTensor {
    std::string name;
    std::vector<index_t> shape;
    GgufType type;
    std::vector<std::byte> bytes;
  };

  static std::vector<float> floats(const TinyTensor& tensor) {
    std::vector<float> values(tensor.bytes.size() / sizeof(float));
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    return values;
  }

  /// Stores 32 numbers, each a number of MXFP4 times a power of two.
  static void append_mxfp4(std::span<const float> block, std::vector<std::byte>& to) {
    for (int exponent = 255; exponent >= 0; --exponent) {
      const float scale = detail::mxfp4_scale(static_cast<std::byte>(exponent));
      std::vector<std::size_t> codes;
      for (const float value : block) {
        const auto at = std::ranges::find_if(
            detail::kMxfp4Values, [&](std::int8_t code) { return scale * code == value; });
        if (at == detail::kMxfp4Values.end()) break;
        codes.push_back(static_cast<std::size_t>(at - detail::kMxfp4Values.begin()));
      }
      if (codes.size() != 32) continue;
      to.push_back(static_cast<std::byte>(exponent));
      for (std::size_t i = 0; i < 16; ++i) {
        to.push_back(static_cast<std::byte>(codes[i] | codes[i + 16] << 4));
      }
      return;
    }
    ADD_FAILURE() << "no block of MXFP4";
  }

  /// Joins a tensor of all experts; `first` is the name for expert 0.
  template <class File>
  void add_experts(const File& file, const std::string& first, const std::string& block) {
    const std::vector<index_t> shape = file.shape(first);
    std::vector<float> all;
    const std::size_t at = first.find(".0.", first.find(".mlp.")) + 1;
    index_t count = 0;
    for (std::string name = first; file.contains(name);
         name.replace(at, 1, std::to_string(count))) {
      const std::size_t begin = all.size();
      all.resize(begin + static_cast<std::size_t>(size_of(shape)));
      if (shape.size() == 1) {
        file.load(name, TensorView1<float>(all.data() + begin, {shape[0]}));
      } else {
        file.load(name, TensorView2<float>(all.data() + begin, {shape[0], shape[1]}));
      }
      ++count;
    }
    std::vector<index_t> whole{count};
    whole.insert(whole.end(), shape.begin(), shape.end());
    const std::string kind = first.find("gate_proj") != first.npos ? "gate"
                             : first.find("up_proj") != first.npos ? "up"
                                                                   : "down";
    add(block + ".ffn_" + kind + "_exps" + first.substr(first.rfind('.')), whole, all);
  }

  /// Interleaves the rows of the first and second half of each head.
  static void interleave(std::vector<float>& values, index_t heads, index_t head_dim) {
    const std::vector<float> from = values;
    const index_t width = std::ssize(values) / (heads * head_dim), half = head_dim / 2;
    for (index_t h = 0; h < heads; ++h) {
      for (index_t row = 0; row < head_dim; ++row) {
        const index_t source = h * head_dim + row % 2 * half + row / 2;
        std::copy_n(from.begin() + source * width, width,
                    values.begin() + (h * head_dim + row) * width);
      }
    }
  }

  void add_tokenizer(index_t count) {
    std::vector<std::string> tokens;
    for (index_t id = 0; id < count; ++id) tokens.push_back("t" + std::to_string(id));
    metadata.set("tokenizer.ggml.model", std::string("gpt2"));
    metadata.set("tokenizer.ggml.pre", std::string("qwen2"));
    metadata.set("tokenizer.ggml.tokens", tokens);
    metadata.set("tokenizer.ggml.merges", std::vector<std::string>{});
  }

  std::string architecture_;
  std::vector<TinyTensor> tensors_;
  TempFolder folder_;
};

/// Logits of both prompts within 1e-4 of the largest, and greedily decoded tokens.
void check(const TinyGguf& tiny) {
  for (const bool pack : {true, false}) {
    const LanguageModel model(tiny.save(), {.pack = pack});
    for (const std::string key : {"a", "b"}) {
      const auto list = tiny.golden.load<index_t, 1>("ids_" + key);
      const TensorView2<const index_t> ids(list.data(), {1, list.size()});
      const auto expected = tiny.golden.load<float, 2>("logits_" + key);
      // A few dozen float roundings.
      EXPECT_LT(attn_test::relative_difference(model.gpt()(ids), expected), 1e-5);
      const auto tokens = tiny.golden.load<index_t, 1>("greedy_" + key);
      GptSession<float> session(model.gpt(), 1, ids.size() + tokens.size());
      EXPECT_EQ(generate(session, ids, {.max_new_tokens = tokens.size()})[0],
                std::vector<index_t>(tokens.elements().begin(), tokens.elements().end()));
    }
  }
}

TEST(GgufArchitectures, LlamaWithFrequencyFactors) {
  TinyGguf tiny("llama", "llama");
  // Llama 3's scaling by 8 of a model trained on 16 positions, as converters write it.
  std::vector<float> factors;
  for (const double frequency : {1.0, 0.01}) {
    const double turns = 16 * frequency / (2 * std::numbers::pi);
    const double smooth = std::clamp((turns - 1) / (4 - 1), 0.0, 1.0);
    factors.push_back(static_cast<float>(1 / ((1 - smooth) / 8 + smooth)));
  }
  tiny.add("rope_freqs.weight", {2}, factors);
  check(tiny);
}

TEST(GgufArchitectures, LlamaWithYarnAndBiases) {
  TinyGguf tiny("llama_yarn", "llama");
  tiny.set("rope.scaling.type", std::string("yarn"));
  tiny.set("rope.scaling.factor", 4.0f);
  tiny.number("rope.scaling.original_context_length", 16);
  check(tiny);
}

TEST(GgufArchitectures, MistralWithWindowAndLinearScaling) {
  TinyGguf tiny("mistral", "llama");
  tiny.number("attention.sliding_window", 5);
  tiny.set("rope.scaling.type", std::string("linear"));
  tiny.set("rope.scaling.factor", 2.0f);
  check(tiny);
}

TEST(GgufArchitectures, Qwen2WithAWindowInTheSecondLayer) {
  TinyGguf tiny("qwen2", "qwen2");
  tiny.number("attention.sliding_window", 4);
  tiny.set("attention.sliding_window_pattern", std::vector<bool>{false, true});
  check(tiny);
}

TEST(GgufArchitectures, Qwen3) { check(TinyGguf("qwen3", "qwen3")); }

TEST(GgufArchitectures, Gemma) { check(TinyGguf("gemma", "gemma")); }

// Windows in every other layer, norms after sublayers, capped scores and logits.
TEST(GgufArchitectures, Gemma2) { check(TinyGguf("gemma2", "gemma2")); }

// Windows in the first layer, with a rotary base of their own; norms of queries and keys.
TEST(GgufArchitectures, Gemma3) {
  TinyGguf tiny("gemma3_text", "gemma3");
  tiny.number("attention.sliding_window", 4);
  tiny.set("attention.sliding_window_pattern", std::uint32_t{2});
  tiny.set("rope.freq_base", 1e6f);
  tiny.set("attention.scale", 1 / std::sqrt(10.0f));  // after the norm of queries
  tiny.set("rope.scaling.type", std::string("linear"));
  tiny.set("rope.scaling.factor", 8.0f);
  check(tiny);
}

TEST(GgufArchitectures, Olmo2) { check(TinyGguf("olmo2", "olmo2")); }

// A window in the first layer, whose rotary embedding is not scaled.
TEST(GgufArchitectures, Olmo3) {
  TinyGguf tiny("olmo3", "olmo2");
  tiny.number("attention.sliding_window", 4);
  tiny.set("attention.sliding_window_pattern", std::vector<bool>{true, false});
  tiny.set("rope.scaling.type", std::string("yarn"));
  tiny.set("rope.scaling.factor", 4.0f);
  tiny.number("rope.scaling.original_context_length", 16);
  check(tiny);
}

TEST(GgufArchitectures, KeysOfRotaryEmbeddingsByKindOfLayer) {
  TinyGguf gemma("gemma3_text", "gemma3");
  gemma.number("attention.sliding_window", 4);
  gemma.set("attention.sliding_window_pattern", std::uint32_t{2});
  gemma.set("rope.scaling.attn_factor", 1.5f);
  const LanguageModel gemma_model(gemma.save());
  for (const auto& rotary : gemma_model.gpt().options().rotary) {
    EXPECT_EQ(rotary->scaling.attention_factor, 1.5);
  }
  // OLMo 3 without a pattern: every fourth layer has no window, and there are two layers.
  TinyGguf olmo("olmo2", "olmo2");
  olmo.number("attention.sliding_window", 4);
  EXPECT_EQ(LanguageModel(olmo.save()).gpt().options().windows, (std::vector<index_t>{3, 3, -1}));
  // Granite's switch.
  TinyGguf granite("granite", "granite");
  for (const bool rotates : {true, false}) {
    granite.set("rope.scaling.finetuned", rotates);
    const LanguageModel model(granite.save());
    EXPECT_EQ(model.gpt().options().layer.attention.rotary.has_value(), rotates);
  }
}

TEST(GgufArchitectures, Granite) {
  TinyGguf tiny("granite", "granite");
  tiny.set("attention.scale", 0.4f);
  tiny.set("embedding_scale", 3.0f);
  tiny.set("residual_scale", 0.3f);
  tiny.set("logit_scale", 2.0f);
  check(tiny);
}

// The fourth of five layers has no rotary embedding.
TEST(GgufArchitectures, SmolLm3) {
  TinyGguf tiny("smollm3", "smollm3");
  tiny.set("rope.freq_base", 2e6f);
  check(tiny);
}

TEST(GgufArchitectures, Qwen3Moe) { check(TinyGguf("qwen3_moe", "qwen3moe")); }

/// Sinks, biases, clamped units; the matrices of experts in floats and in MXFP4.
TEST(GgufArchitectures, GptOss) {
  for (const bool is_mxfp4 : {false, true}) {
    TinyGguf tiny(is_mxfp4 ? "gpt_oss_mxfp4" : "gpt_oss", "gpt-oss");
    tiny.set("rope.freq_base", 100.0f);
    tiny.set("rope.scaling.type", std::string("yarn"));
    tiny.set("rope.scaling.factor", 4.0f);
    tiny.number("rope.scaling.original_context_length", 64);
    tiny.number("attention.sliding_window", 4);
    if (is_mxfp4) tiny.put_experts_in_mxfp4();
    check(tiny);
  }
}

/// A softmax router without and a sigmoid router with a correction of the choice; sizes and
/// matrices of heads as in older and in newer files.
TEST(GgufArchitectures, Deepseek2) {
  for (const char* name : {"deepseek_v2", "deepseek_v3"}) {
    const bool is_v3 = name == std::string("deepseek_v3");
    TinyGguf tiny(name, "deepseek2");
    tiny.number("attention.head_count_kv", is_v3 ? 1 : 4);
    tiny.number("attention.key_length", is_v3 ? 12 + 4 : 6 + 4);
    tiny.number("attention.value_length", is_v3 ? 12 : 5);
    tiny.number("attention.kv_lora_rank", 12);
    tiny.number("rope.dimension_count", 4);
    tiny.set("rope.scaling.type", std::string("yarn"));
    tiny.set("rope.scaling.factor", 4.0f);
    tiny.number("rope.scaling.original_context_length", 16);
    tiny.set("rope.scaling.yarn_log_multiplier", 0.07f);
    tiny.number("leading_dense_block_count", 1);
    tiny.number("expert_shared_count", 2);
    tiny.number("expert_group_count", 2);
    tiny.number("expert_group_used_count", 1);
    tiny.set("expert_weights_scale", 1.5f);
    if (is_v3) {
      tiny.number("attention.q_lora_rank", 8);
      tiny.number("attention.key_length_mla", 6 + 4);
      tiny.number("attention.value_length_mla", 5);
      tiny.set("expert_weights_norm", true);
      tiny.number("expert_gating_func", 2);
      tiny.split_latent_heads(4, 6, 5, 12);
    }
    check(tiny);
    const auto fails = [&](std::string_view part) {
      EXPECT_TRUE(attn_test::contains(
          attn_test::error_of<ValueError>([&] { LanguageModel model(tiny.save()); }), part));
    };
    for (const char* key : {"attention.scale", "attn_logit_softcapping"}) {
      tiny.set(key, 0.0f);
      check(tiny);
      tiny.set(key, 2.0f);
      fails(std::string(key) + "\" must be 0 or missing; found another value");
      tiny.set(key, 0.0f);
    }
    tiny.number("expert_gating_func", 3);
    fails("be 1 (softmax) or 2 (sigmoid); found 3");
    tiny.set("rope.scaling.attn_factor", 2.0f);
    fails("rope.scaling.attn_factor\" must be 1 or missing");
    tiny.number("rope.dimension_count", 10);
    fails("be less than the size of a head, 10; found 10");
  }
}

TEST(GgufArchitectures, Qwen2Moe) {
  TinyGguf tiny("qwen2_moe", "qwen2moe");
  tiny.number("expert_shared_feed_forward_length", 20);
  check(tiny);
}

TEST(GgufArchitectures, Phi3) {
  TinyGguf tiny("phi3", "phi3");
  tiny.number("attention.sliding_window", 5);
  check(tiny);
}

// The second prompt is beyond the trained length.
TEST(GgufArchitectures, Phi3WithLongrope) {
  TinyGguf tiny("phi3_longrope", "phi3");
  tiny.number("rope.scaling.original_context_length", 28);
  tiny.set("rope.scaling.attn_factor",
           static_cast<float>(std::sqrt(1 + std::log(64 / 28.0) / std::log(28.0))));
  tiny.add("rope_factors_short.weight", {2}, {1, 1.5});
  tiny.add("rope_factors_long.weight", {2}, {1, 4});
  check(tiny);
}

TEST(GgufArchitectures, Lfm2) {
  check(TinyGguf("lfm2_old", "lfm2"));
  const auto error = [](TinyGguf& tiny) {
    return attn_test::error_of<ValueError>([&] { LanguageModel model(tiny.save()); });
  };
  TinyGguf tiny("lfm2_old", "lfm2");
  tiny.set("attention.head_count_kv", std::vector<std::int32_t>{2, 0, 1, 0});
  EXPECT_TRUE(attn_test::contains(error(tiny), "be the same for all layers with attention"));
  tiny.set("attention.head_count_kv", std::vector<std::int32_t>{2, 0, 2});
  EXPECT_TRUE(attn_test::contains(error(tiny), "be one per layer, 4; found 3"));
  TinyGguf wide("lfm2_old", "lfm2");  // refused before memory is allocated
  wide.set("shortconv.l_cache", std::uint32_t{1} << 24);
  EXPECT_TRUE(attn_test::contains(
      attn_test::error_of<ShapeError>([&] { LanguageModel model(wide.save()); }),
      "shortconv.conv"));
  TinyGguf llama("llama", "llama");
  llama.set("attention.head_count_kv", std::vector<std::int32_t>{2, 0});
  EXPECT_TRUE(attn_test::contains(error(llama), "be the same for all layers with attention"));
}

struct TinyQwen3Next : TinyGguf {
  TinyQwen3Next() : TinyGguf("qwen3_next", "qwen3next") {
    number("rope.dimension_count", 4);
    number("expert_shared_feed_forward_length", 20);
    number("full_attention_interval", 3);
    number("ssm.conv_kernel", 3);
    number("ssm.state_size", 6);
    number("ssm.group_count", 2);
    number("ssm.time_step_rank", 4);
    number("ssm.inner_size", 20);
  }
};

/// Layers with the gated delta rule, with projections as in older and in newer files.
TEST(GgufArchitectures, Qwen3Next) {
  TinyQwen3Next tiny;
  check(tiny);
  tiny.split_delta(2, 6, 10, false);
  check(tiny);
  tiny.number("full_attention_interval", 4);
  tiny.set("attention.recurrent_layers", std::vector<bool>{true, true, false});
  check(tiny);
}

TEST(GgufArchitectures, Qwen3NextWithGatesOfAnotherType) {
  TinyQwen3Next older, newer;
  older.round_delta_gates(6, 10);
  newer.split_delta(2, 6, 10, true);
  const auto list = older.golden.load<index_t, 1>("ids_a");
  const TensorView2<const index_t> ids(list.data(), {1, list.size()});
  const auto logits = [&](const TinyGguf& tiny) { return LanguageModel(tiny.save()).gpt()(ids); };
  EXPECT_EQ(attn_test::relative_difference(logits(newer), logits(older).view().select(0, 0)), 0);
}

/// Rows of quantised blocks stay as they are, in the order of the joint projection.
TEST(GgufArchitectures, ProjectionsOfTheGatedDeltaRuleKeepTheirBlocks) {
  const GatedDeltaOptions options = {
      .num_key_heads = 2, .num_value_heads = 4, .key_dim = 3, .value_dim = 2};
  constexpr std::size_t kRow = 34;  // a block of Q8_0
  const auto rows_from = [&](int first, index_t count) {
    std::vector<std::byte> rows;
    for (index_t n = 0; n < count; ++n) rows.insert(rows.end(), kRow, std::byte(first + n));
    return rows;
  };
  const std::vector<std::byte> qkv = rows_from(0, 20), gate = rows_from(100, 8);
  std::vector<std::byte> memory;
  const GgufTensor joint = detail::gguf_delta_projection(
      {GgufType::Q8_0, {20, 32}, qkv}, {GgufType::Q8_0, {8, 32}, gate}, options, memory);
  EXPECT_EQ(joint.type, GgufType::Q8_0);
  EXPECT_EQ(joint.shape, (std::vector<index_t>{28, 32}));
  std::vector<int> order;
  for (std::size_t n = 0; n < joint.bytes.size(); n += kRow)
    order.push_back(static_cast<int>(joint.bytes[n]));
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 6, 7,  8,  12, 13, 14, 15, 100, 101, 102, 103,
                                     3, 4, 5, 9, 10, 11, 16, 17, 18, 19, 104, 105, 106, 107}));
}

TEST(GgufArchitectures, KeysAndTensorsOfTheGatedDeltaRuleAreChecked) {
  const auto fails = [](const auto& change, std::string_view part) {
    TinyQwen3Next tiny;
    change(tiny);
    std::string error;
    try {
      LanguageModel model(tiny.save());
    } catch (const std::exception& e) {
      error = e.what();
    }
    EXPECT_TRUE(attn_test::contains(error, part));
  };
  const auto sets = [](std::string_view key, index_t value) {
    return [=](TinyGguf& tiny) { tiny.number(key, value); };
  };
  fails(sets("ssm.time_step_rank", 5), "be a multiple of ssm.group_count = 2; found 5");
  fails(sets("ssm.inner_size", 21), "be a multiple of ssm.time_step_rank = 4; found 21");
  fails(sets("ssm.conv_kernel", 1), "be at least 2; found 1");
  fails(sets("ssm.state_size", 1 << 24), "ssm_in");
  fails(sets("nextn_predict_layers", 1), "nextn_predict_layers");
  fails(
      [](TinyGguf& tiny) {
        tiny.set("attention.recurrent_layers", std::vector<bool>{true, false});
      },
      "be one per layer, 3; found 2");
  fails([](TinyGguf& tiny) { tiny.split_delta(2, 6, 9, false); }, "attn_qkv");
  fails(
      [](TinyGguf& tiny) {
        tiny.put("blk.1.ssm_a", {-1, -2, 0, -3});
      },
      "blk.1.ssm_a must be negative; found 0");
}

TEST(GgufArchitectures, Olmoe) { check(TinyGguf("olmoe", "olmoe")); }

// As in Gemma's files: SentencePiece, turn marks as control tokens, and a template with them.
TEST(GgufArchitectures, Gemma2FromTextToText) {
  TinyGguf tiny("gemma2", "gemma2");
  std::vector<std::string> tokens = {"<unk>",         "<bos>",  "<eos>", "<start_of_turn>",
                                     "<end_of_turn>", "\u2581", "\n",    "\u2581hi"};
  std::vector<std::int32_t> kinds = {2, 3, 3, 3, 3, 1, 1, 1};
  for (char letter = 'a'; letter <= 'z'; ++letter) tokens.emplace_back(1, letter);
  for (std::size_t id = 0; id < 10; ++id) tokens.push_back("<0xC" + std::to_string(id) + ">");
  kinds.resize(8 + 26, 1);
  kinds.resize(tokens.size(), 6);
  while (tokens.size() < 96) tokens.push_back("t" + std::to_string(tokens.size()));
  kinds.resize(96, 1);
  std::vector<float> scores;
  for (std::size_t id = 0; id < 96; ++id) scores.push_back(-static_cast<float>(id));
  tiny.metadata.set("tokenizer.ggml.model", std::string("llama"));
  tiny.metadata.set("tokenizer.ggml.tokens", tokens);
  tiny.metadata.set("tokenizer.ggml.scores", scores);
  tiny.metadata.set("tokenizer.ggml.token_type", kinds);
  tiny.metadata.set("tokenizer.ggml.bos_token_id", std::uint32_t{1});
  tiny.metadata.set("tokenizer.ggml.eos_token_id", std::uint32_t{2});
  tiny.metadata.set("tokenizer.ggml.add_space_prefix", false);
  std::ifstream file(ATTN_TEST_DATA_DIR "/chat_templates/cases.json");
  for (const nlohmann::json& one : nlohmann::json::parse(file)) {
    if (one.at("name") == "gemma")
      tiny.metadata.set("tokenizer.chat_template", one.at("template").get<std::string>());
  }
  const LanguageModel model(tiny.save());
  // Texts begin with <bos> if the file has no key for it.
  EXPECT_EQ(model.encode_raw("a b"), (std::vector<index_t>{1, 8, 5, 9}));
  EXPECT_EQ(model.encode_raw("z hi<eos>"), (std::vector<index_t>{1, 33, 5, 15, 16, 2}));
  const std::vector<ChatMessage> messages = {{"user", "hi<eos>"}};
  const std::vector<index_t> ids = model.encode_chat(messages);
  EXPECT_EQ(model.tokenizer().decode(ids, false), "user\nhieos\nmodel\n");
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 3), 2);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 2), 0);
  EXPECT_EQ(model.end_tokens(), (std::vector<index_t>{2, 4}));
  GptSession<float> session(model.gpt(), 1, 64);
  const GeneratedText answer = generate_text(model, session, ids, {.max_new_tokens = 10});
  EXPECT_EQ(answer.ids.size(), 10u);
  EXPECT_FALSE(answer.text.empty());
}

TEST(GgufArchitectures, Gemma2WithoutAKeyHasItsWindow) {
  TinyGguf tiny("gemma2", "gemma2");
  const LanguageModelOptions without{.ignore_keys = {"attention.sliding_window"}};
  EXPECT_EQ(LanguageModel(tiny.save(), without).gpt().options().windows,
            (std::vector<index_t>{4095, -1}));
  tiny.number("attention.sliding_window", 0);
  EXPECT_TRUE(LanguageModel(tiny.save()).gpt().options().windows.empty());
}

TEST(GgufArchitectures, WindowsByANumberLeaveOutTheLastOfEachPeriod) {
  TinyGguf tiny("qwen2", "qwen2");
  tiny.number("attention.sliding_window", 4);
  tiny.number("attention.sliding_window_pattern", 3);
  EXPECT_EQ(LanguageModel(tiny.save()).gpt().options().windows, (std::vector<index_t>{3, 3, -1}));
}

}  // namespace
}  // namespace attn
