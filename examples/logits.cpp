// logits: prints what the model in a Hugging Face folder computes.
//
//   logits tests/data/pretrained/qwen3 --ids 5,7,9 --tokens 5     (a Qwen3 of two layers)
//   logits vit-base-patch16-224 --pixels cat.npy --json           (channels, height, width)
//   logits whisper-tiny --features speech.npy --tokens 20         (num_mel_bins, frames)

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "attn/attn.hpp"
#include "attn/io.hpp"
#include "attn/models/pretrained.hpp"

#include "support/command_line.hpp"
#include "support/json.hpp"
#include "support/printable.hpp"

namespace {

using attn::index_t;
using examples::Json;

struct Options {
  std::string folder;
  std::vector<index_t> ids, decoder_ids;
  std::optional<std::string> pixels, features;
  std::optional<index_t> tokens;
  bool json = false;
};

attn::TensorView2<const index_t> row_of(const std::vector<index_t>& ids) {
  return {ids.data(), {1, std::ssize(ids)}};
}

// The numbers at one position of x (1, seq, n).
Json numbers(const attn::Tensor3<float>& x, index_t position) {
  Json result = Json::array();
  for (index_t i = 0; i < x.extent(2); ++i) result.push_back(x(0, position, i));
  return result;
}
Json last(const attn::Tensor3<float>& x) { return numbers(x, x.extent(1) - 1); }

template <class Session>
std::vector<index_t> generated(Session& session, const std::vector<index_t>& prompt,
                               index_t tokens) {
  return attn::generate(session, row_of(prompt), {.max_new_tokens = tokens})[0];
}

void add_decoder(const Options& o, Json& result) {
  const auto model = attn::load_pretrained<attn::Gpt<float>>(o.folder);
  result["logits"] = last(model(row_of(o.ids)));
  if (!o.tokens) return;
  const index_t capacity = std::ssize(o.ids) + std::min(*o.tokens, model.options().max_positions);
  attn::GptSession<float> session(model, 1, capacity);
  result["generated"] = generated(session, o.ids, *o.tokens);
}

void add_encoder(const Options& o, Json& result) {
  const auto model = attn::load_pretrained<attn::Bert<float>>(o.folder);
  const attn::Tensor3<float> hidden = model(row_of(o.ids));
  result["hidden"] = last(hidden);
  result["first"] = numbers(hidden, 0);
}

void add_translation(const Options& o, Json& result) {
  const auto model = attn::load_pretrained<attn::Seq2SeqTransformer<float>>(o.folder);
  result["logits"] = last(model(row_of(o.ids), row_of(o.decoder_ids)));
  if (!o.tokens) return;
  attn::Seq2SeqSession<float> session(model, row_of(o.ids), std::ssize(o.decoder_ids) + *o.tokens);
  result["generated"] = generated(session, o.decoder_ids, *o.tokens);
}

// An array with Rank axes, from one that may lack the batch axis, or has a batch of one.
template <int Rank>
attn::Tensor<float, Rank> read_one(const std::string& path, const std::string& what) {
  const attn::NpyArray array(path);
  if (array.shape().size() == Rank - 1) {
    const auto one = array.load<float, Rank - 1>();
    return attn::Tensor<float, Rank>(one.view().unsqueeze(0));
  }
  if (array.shape().size() != Rank || array.shape()[0] != 1) {
    throw std::runtime_error(path + " must hold one " + what + "; found " +
                             attn::to_string(array.shape()));
  }
  return array.load<float, Rank>();
}

void add_picture(const Options& o, Json& result) {
  const auto pixels = read_one<4>(*o.pixels, "picture (channels, height, width)");
  const auto model = attn::load_pretrained<attn::Vit<float>>(o.folder);
  const attn::Tensor3<float> hidden = model(pixels);
  result["hidden"] = last(hidden);
  result["first"] = numbers(hidden, 0);
  if (model.options().num_labels == 0) return;
  result["logits"] = last(attn::Tensor3<float>(model.classify(pixels).view().unsqueeze(0)));
}

// Adds the vectors of picture and text, and their similarity.
void add_comparison(const Options& o, Json& result) {
  const auto pixels = read_one<4>(*o.pixels, "picture (channels, height, width)");
  const auto model = attn::load_pretrained<attn::Clip<float>>(o.folder);
  const attn::Tensor2<float> image = model.embed_images(pixels),
                             text = model.embed_texts(row_of(o.ids)),
                             logits = model.similarities(image, text);
  result["image"] = last(attn::Tensor3<float>(image.view().unsqueeze(0)));
  result["text"] = last(attn::Tensor3<float>(text.view().unsqueeze(0)));
  result["logits"] = last(attn::Tensor3<float>(logits.view().unsqueeze(0)));
}

void add_speech(const Options& o, Json& result) {
  const auto features = read_one<3>(*o.features, "spectrogram (num_mel_bins, frames)");
  const auto model = attn::load_pretrained<attn::Whisper<float>>(o.folder);
  result["logits"] = last(model(features, row_of(o.decoder_ids)));
  if (!o.tokens) return;
  const index_t capacity =
      std::ssize(o.decoder_ids) + std::min(*o.tokens, model.options().max_target_positions);
  attn::WhisperSession<float> session(model, features, capacity);
  result["generated"] = generated(session, o.decoder_ids, *o.tokens);
}

void print_table(const Json& result) {
  for (const auto& [key, value] : result.items()) {
    std::string line = key;
    line.resize(12, ' ');
    if (value.is_string()) {
      line += examples::printable(value.get<std::string>());
    } else if (value.front().is_number_integer()) {
      for (const Json& id : value) line += (&id == &value.front() ? "" : " ") + id.dump();
    } else {
      const auto largest = std::max_element(value.begin(), value.end());
      line += examples::counted(value.size(), "number") + ", the largest " + largest->dump() +
              " at " + std::to_string(largest - value.begin()) + ":";
      for (std::size_t i = 0; i < std::min<std::size_t>(4, value.size()); ++i) {
        line += ' ' + value[i].dump();
      }
      if (value.size() > 4) line += " ..";
    }
    std::cout << line << '\n';
  }
}

void run(Options o) {
  if (o.folder.empty()) throw examples::UsageError("a folder is needed; see --help");
  constexpr index_t kMostTokens = index_t{1} << 20;
  if (o.tokens > kMostTokens) {
    throw examples::UsageError("--tokens must be at most " + std::to_string(kMostTokens) +
                               "; found " + std::to_string(*o.tokens));
  }
  const attn::ConfigFile config(std::filesystem::path(o.folder) / "config.json");
  const std::string type = config.get<std::string>("model_type");
  const attn::PretrainedModel model = attn::pretrained_model_of(config);
  const bool sees = model == attn::PretrainedModel::vit,
             compares = model == attn::PretrainedModel::clip,
             hears = model == attn::PretrainedModel::whisper,
             encodes = model == attn::PretrainedModel::bert,
             translates = model == attn::PretrainedModel::seq2seq_transformer;
  const auto refuse = [&](bool is_given, const std::string& option, const std::string& kinds) {
    if (!is_given) return;
    throw examples::UsageError(option + " is for " + kinds + "; found model_type " + type);
  };
  if (!o.ids.empty() + o.pixels.has_value() + o.features.has_value() > (compares ? 2 : 1)) {
    throw examples::UsageError("--ids, --pixels and --features must not be given together");
  }
  refuse(o.pixels && !sees && !compares, "--pixels", "models of pictures");
  refuse(o.features && !hears, "--features", "models of speech");
  refuse(!o.ids.empty() && (sees || hears), "--ids", "models of text");
  refuse(!o.decoder_ids.empty() && !translates && !hears, "--decoder-ids",
         "translation models and models of speech");
  refuse(o.tokens && (sees || encodes || compares), "--tokens", "models that generate text");
  if ((sees || compares) && !o.pixels)
    throw examples::UsageError("--pixels is needed for a model of pictures");
  if (hears && !o.features) {
    throw examples::UsageError("--features is needed for a model of speech");
  }

  Json result;
  result["model_type"] = type;
  if (!sees && !hears) {
    if (o.ids.empty()) o.ids = {1, 2, 3};
    result["ids"] = o.ids;
  }
  if (translates || hears) {
    if (o.decoder_ids.empty()) o.decoder_ids = attn::target_start_of(o.folder);
    result["decoder_ids"] = o.decoder_ids;
  }
  switch (model) {
    case attn::PretrainedModel::gpt:
      add_decoder(o, result);
      break;
    case attn::PretrainedModel::bert:
      add_encoder(o, result);
      break;
    case attn::PretrainedModel::vit:
      add_picture(o, result);
      break;
    case attn::PretrainedModel::clip:
      add_comparison(o, result);
      break;
    case attn::PretrainedModel::seq2seq_transformer:
      add_translation(o, result);
      break;
    case attn::PretrainedModel::whisper:
      add_speech(o, result);
      break;
  }
  if (o.json) {
    std::cout << result.dump() << '\n';
  } else {
    print_table(result);
  }
}

// Adds an option that takes tokens, such as 1,2,3.
void add_ids(CLI::App& app, const std::string& name, std::vector<index_t>& ids,
             const std::string& description) {
  const auto read = [name, &ids](const CLI::results_t& words) {
    ids.clear();
    for (const std::string& word : words) {
      ids.push_back(examples::read_number(name, word, index_t{0}));
    }
    return true;
  };
  app.add_option(name, read, description)
      ->delimiter(',')
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->allow_extra_args(false)  // followed by FOLDER
      ->type_name("IDS");
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Prints what FOLDER, a model as Hugging Face's transformers saves it, computes: the logits\n"
      "of the last position, or the hidden states of the last and of the first position.");
  app.footer(
      "Decoders print the logits, models of translation and speech those of the decoder. Encoders\n"
      "print hidden states. Models of pictures print both, or hidden states without a classifier;\n"
      "models of pictures and texts the vectors of both and their similarity.\n"
      "In the repository: tests/data/pretrained/qwen3");
  add_ids(app, "--ids", options.ids, "The tokens that the model reads; 1,2,3 if not given");
  app.add_option("--pixels", options.pixels,
                 "A preprocessed picture (channels, height, width) of numpy")
      ->type_name("FILE.npy");
  app.add_option(
         "--features", options.features,
         "A spectrogram (num_mel_bins, frames) of numpy, of transformers' feature extractor")
      ->type_name("FILE.npy");
  add_ids(
      app, "--decoder-ids", options.decoder_ids,
      "The first tokens of a translation or of speech; those that the folder names if not given");
  examples::add_number<index_t>(app, "--tokens", options.tokens, 1,
                                "Number of tokens to generate; end tokens do not stop it");
  app.add_flag("--json", options.json, "Print one JSON object");
  app.add_option("FOLDER", options.folder, "The model's folder");
  return examples::run_program(app, "logits", argc, argv, [&] { run(options); });
}
