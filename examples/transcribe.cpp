// transcribe: prints the text of speech and its times, by a Whisper model.
//
//   ffmpeg -i speech.mp3 -ar 16000 speech.wav
//   transcribe whisper-base speech.wav                     (the folder of openai/whisper-base)
//   transcribe whisper-base speech.wav --language de --translate

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "attn/attn.hpp"
#include "attn/models/pretrained.hpp"
#include "attn/models/pretrained/tokenizer.hpp"

#include "support/command_line.hpp"
#include "support/printable.hpp"
#include "support/sound.hpp"

namespace {

using attn::index_t;

struct Options {
  std::string folder, sound, language = "en";
  bool translate = false;
};

index_t id_of(const attn::Tokenizer& tokenizer, const std::string& text) {
  const auto id = tokenizer.token(text);
  if (!id) throw std::runtime_error("the model has no token " + text);
  return *id;
}

// Ids stored under a key of generation_config.json, or of config.json.
std::vector<index_t> ids_of(const std::filesystem::path& folder, std::string_view key) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    if (!exists(folder / name)) continue;
    const attn::ConfigFile config(folder / name);
    if (config.has(key)) return config.indices(key);
  }
  return {};
}

bool is_multilingual(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "generation_config.json";
  return !exists(path) || attn::ConfigFile(path).get<bool>("is_multilingual", true);
}

std::string clock(double seconds) {
  const int hundredths = static_cast<int>(std::lround(seconds * 100));
  char text[32];
  std::snprintf(text, sizeof text, "%02d:%02d.%02d", hundredths / 6000, hundredths / 100 % 60,
                hundredths % 100);
  return text;
}

void run(const Options& o) {
  if (o.folder.empty() || o.sound.empty()) {
    throw examples::UsageError("a folder and a sound file are needed; see --help");
  }
  const std::vector<float> samples = examples::read_sound(o.sound);
  const auto model = attn::load_pretrained<attn::Whisper<float>>(o.folder);
  const attn::Tokenizer tokenizer =
      attn::pretrained_tokenizer(o.folder, model.options().vocab_size);
  attn::TranscribeOptions options{.prompt = {id_of(tokenizer, "<|startoftranscript|>")},
                                  .end = id_of(tokenizer, "<|endoftext|>"),
                                  .no_timestamps = id_of(tokenizer, "<|notimestamps|>"),
                                  .suppress = ids_of(o.folder, "suppress_tokens"),
                                  .begin_suppress = ids_of(o.folder, "begin_suppress_tokens")};
  if (is_multilingual(o.folder)) {
    options.prompt.push_back(id_of(tokenizer, "<|" + o.language + "|>"));
    options.prompt.push_back(id_of(tokenizer, o.translate ? "<|translate|>" : "<|transcribe|>"));
  } else if (o.translate || o.language != "en") {
    throw examples::UsageError("this model knows English only");
  }
  for (const attn::TranscribedSegment& segment : attn::transcribe(model, samples, options)) {
    const std::string text = tokenizer.decode(segment.tokens, false);
    std::cout << '[' << clock(segment.begin) << " - " << clock(segment.end) << ']'
              << (text.starts_with(' ') ? "" : " ") << examples::printable(text) << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Prints the text of FILE, speech at 16 kHz, with its times in minutes and seconds.");
  app.footer(
      "FOLDER holds config.json, generation_config.json, model.safetensors and tokenizer.json of "
      "a\n"
      "Whisper, such as openai/whisper-base of the Hub. In the repository:\n"
      "tests/data/pretrained/whisper, whose random weights know no language.");
  app.add_option("--language", options.language, "The language of the speech")
      ->type_name("CODE")
      ->capture_default_str();
  app.add_flag("--translate", options.translate, "Translate to English");
  app.add_option("FOLDER", options.folder, "The model's folder");
  app.add_option("FILE", options.sound, "WAV, FLAC or another format of libsndfile, at 16 kHz");
  return examples::run_program(app, "transcribe", argc, argv, [&] { run(options); });
}
