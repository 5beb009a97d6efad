// save_state_dicts FOLDER: writes a file for each kind of PyTorch module, for state_dicts.py.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

#include "attn/io/state_dict.hpp"
#include "attn/layers/transformer.hpp"

#include "support/references/reference_transformer.hpp"

namespace {

using namespace attn;

constexpr TransformerLayerOptions kLayer{.d_model = 8, .nhead = 2, .dim_feedforward = 12};

/// The metadata name the class of torch.nn and hold its arguments as JSON.
template <class Module, class Options>
void save(const std::filesystem::path& folder, const std::string& name, const Options& options,
          const std::string& torch_class, const std::string& arguments) {
  attn_test::Random random(1);
  Module module(options);
  attn_test::randomize(module, random);
  save_state_dict(
      folder / (name + ".safetensors"), module,
      {.metadata = {{"format", "pt"}, {"class", torch_class}, {"arguments", arguments}}});
}

template <class Module>
void save_attention(const std::filesystem::path& folder, const std::string& name,
                    const MultiHeadAttentionOptions& options, const std::string& arguments) {
  save<Module>(folder, name, options, "MultiheadAttention", arguments);
}

void save_all(const std::filesystem::path& folder) {
  using Attention = MultiHeadAttention<float>;
  save_attention<Attention>(folder, "attention", {.embed_dim = 8, .num_heads = 2},
                            R"({"embed_dim": 8, "num_heads": 2})");
  save_attention<Attention>(folder, "attention_without_bias",
                            {.embed_dim = 8, .num_heads = 2, .bias = false},
                            R"({"embed_dim": 8, "num_heads": 2, "bias": false})");
  save_attention<Attention>(
      folder, "attention_of_widths",
      {.embed_dim = 8, .num_heads = 2, .kdim = 3, .vdim = 5, .add_bias_kv = true},
      R"({"embed_dim": 8, "num_heads": 2, "kdim": 3, "vdim": 5, "add_bias_kv": true})");

  const std::string layer = R"("d_model": 8, "nhead": 2, "dim_feedforward": 12)";
  TransformerLayerOptions without_bias = kLayer;
  without_bias.bias = false;
  const std::string layer_without_bias = "{" + layer + R"(, "bias": false})";
  save<EncoderLayer<float>>(folder, "encoder_layer", kLayer, "TransformerEncoderLayer",
                            "{" + layer + "}");
  save<EncoderLayer<float>>(folder, "encoder_layer_without_bias", without_bias,
                            "TransformerEncoderLayer", layer_without_bias);
  save<DecoderLayer<float>>(folder, "decoder_layer", kLayer, "TransformerDecoderLayer",
                            "{" + layer + "}");
  save<DecoderLayer<float>>(folder, "decoder_layer_without_bias", without_bias,
                            "TransformerDecoderLayer", layer_without_bias);

  const std::string stack = "{" + layer + R"(, "num_layers": 3, "norm": )";
  const TransformerStackOptions plain{.num_layers = 3, .layer = kLayer};
  const TransformerStackOptions normed{.num_layers = 3, .layer = kLayer, .norm = true};
  save<Encoder<float>>(folder, "encoder", plain, "TransformerEncoder", stack + "false}");
  save<Encoder<float>>(folder, "encoder_with_norm", normed, "TransformerEncoder", stack + "true}");
  save<Decoder<float>>(folder, "decoder", plain, "TransformerDecoder", stack + "false}");
  save<Decoder<float>>(folder, "decoder_with_norm", normed, "TransformerDecoder", stack + "true}");
  const std::string counts = R"(, "num_encoder_layers": 1, "num_decoder_layers": 2})";
  save<Transformer<float>>(
      folder, "transformer",
      TransformerOptions{.layer = kLayer, .num_encoder_layers = 1, .num_decoder_layers = 2},
      "Transformer", "{" + layer + counts);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: save_state_dicts FOLDER\n");
    return 2;
  }
  try {
    save_all(argv[1]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "save_state_dicts: %s\n", error.what());
    return 1;
  }
}
