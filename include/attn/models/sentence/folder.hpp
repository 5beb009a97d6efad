// Pooling and prompts of a sentence-transformers folder, pooling of a GGUF file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

#include "attn/models/sentence/tokenizer.hpp"

ATTN_NAMESPACE_BEGIN

/// Pooling of the hidden states of a line to one vector.
enum class Pooling {
  mean,  ///< mean of all tokens, including special tokens
  cls,   ///< the first token: [CLS], or `<s>`
};

struct SentenceEncoderOptions {
  Pooling pooling = Pooling::mean;  ///< how token vectors are combined
  bool normalize = false;           ///< normalise vectors to length 1
  bool include_prompt = true;       ///< include the prompt's tokens in the mean
  /// Maximum tokens of a line, including prompt and special tokens; longer lines are truncated.
  index_t max_tokens = 512;
  std::map<std::string, std::string> prompts = {};  ///< prompts by name
  std::string default_prompt = {};  ///< name of the prompt used by default; empty: none
};

namespace detail {

/// A subfolder named in a file: "" or "1_Pooling".
inline std::filesystem::path module_folder(const std::filesystem::path& folder,
                                           const ConfigFile& module) {
  const auto name = module.get<std::string>("path", "");
  const bool leaves = name.find_first_of("\\:") != name.npos || name.find('\0') != name.npos ||
                      name.starts_with('/') || name.find("..") != name.npos;
  if (leaves) module.fail("path", "be a subfolder of the model's folder", quote(name));
  return folder / name;
}

/// Accepts "sentence_transformers.models.Pooling" as Pooling; its package differs between versions.
inline std::string module_kind(const ConfigFile& module) {
  const auto type = module.get<std::string>("type");
  return type.substr(type.rfind('.') + 1);
}

inline Pooling pooling_of(const ConfigFile& config) {
  std::vector<std::string> modes;
  for (const std::string& key : config.keys()) {
    constexpr std::string_view kOld = "pooling_mode_";  // versions before 6 have a key for each
    if (key == "pooling_mode") {
      modes.push_back(config.get<std::string>(key));
    } else if (key.starts_with(kOld) && config.get<bool>(key)) {
      const std::string mode = key.substr(kOld.size());
      modes.push_back(mode == "mean_tokens" ? "mean" : mode == "cls_token" ? "cls" : mode);
    }
  }
  if (modes.size() == 1 && modes[0] == "mean") return Pooling::mean;
  if (modes.size() == 1 && modes[0] == "cls") return Pooling::cls;
  config.fail("pooling_mode", "be mean or cls", list_text(modes, "modes"));
}

/// The contents of a folder: settings, and the folders of the modules that have weights.
struct SentenceFolder {
  SentenceEncoderOptions options;
  std::filesystem::path transformer;
  std::vector<std::filesystem::path> dense;
};

inline void read_modules(const std::filesystem::path& folder, SentenceFolder& result) {
  std::error_code error;
  // Without the list: the mean of the transformer's output, the default of sentence-transformers.
  if (!std::filesystem::exists(folder / "modules.json", error)) return;
  const auto modules = ConfigFile::list(folder / "modules.json");
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const std::string kind = module_kind(modules[i]);
    const bool fits = i < 2 ? kind == (i == 0 ? "Transformer" : "Pooling")
                            : !result.options.normalize && (kind == "Dense" || kind == "Normalize");
    if (!fits) {
      modules[i].fail("type",
                      "be Transformer, Pooling, any number of Dense and optionally Normalize, in "
                      "this order",
                      quote(kind));
    }
    const std::filesystem::path path = module_folder(folder, modules[i]);
    if (i == 0) {
      result.transformer = path;
    } else if (i == 1) {
      const ConfigFile config(path / "config.json");
      result.options.pooling = pooling_of(config);
      result.options.include_prompt = config.get<bool>("include_prompt", true);
    } else if (kind == "Dense") {
      result.dense.push_back(path);
    } else {
      result.options.normalize = true;
    }
  }
  if (modules.size() < 2) {
    throw ValueError(message("SentenceEncoder", quote(detail::utf8(folder / "modules.json")),
                             "list a Transformer and a Pooling",
                             concat(modules.size(), " modules")));
  }
}

inline void read_prompts(const std::filesystem::path& folder, SentenceEncoderOptions& options) {
  const ConfigFile config = config_if_there(folder / "config_sentence_transformers.json");
  if (config.has("prompts")) {
    const ConfigFile prompts = config.object("prompts");
    for (const std::string& name : prompts.keys()) {
      options.prompts[name] = prompts.get<std::string>(name);
    }
  }
  options.default_prompt = config.get<std::string>("default_prompt_name", "");
  if (!options.default_prompt.empty() && !options.prompts.contains(options.default_prompt)) {
    config.fail("default_prompt_name", "be one of the prompts", quote(options.default_prompt));
  }
}

inline SentenceFolder sentence_folder_of(const std::filesystem::path& folder) {
  SentenceFolder result{.options = {}, .transformer = folder, .dense = {}};
  read_modules(folder, result);
  SentenceEncoderOptions& options = result.options;
  const std::filesystem::path& transformer = result.transformer;
  read_prompts(folder, options);
  const ConfigFile limits = config_if_there(transformer / "sentence_bert_config.json"),
                   tokenizer = config_if_there(transformer / "tokenizer_config.json"),
                   config(transformer / "config.json");
  check_only(limits, "do_lower_case", false, "false");
  // Older files of NomicBERT call it n_positions.
  options.max_tokens =
      config.count("max_position_embeddings", config.count("n_positions", options.max_tokens));
  if (limits.has("max_seq_length")) {
    options.max_tokens = (std::min)(options.max_tokens, limits.count("max_seq_length"));
  } else if (tokenizer.has("model_max_length")) {
    // "No limit" is written as 1e30.
    const auto most = tokenizer.get<double>("model_max_length");
    if (most < static_cast<double>(options.max_tokens)) {
      options.max_tokens = tokenizer.count("model_max_length");
    }
  }
  if (options.max_tokens < 2) {
    throw ValueError(message("SentenceEncoder", quote(detail::utf8(folder)),
                             "accept at least 2 tokens, [CLS] and [SEP]",
                             std::to_string(options.max_tokens)));
  }
  return result;
}

/// The pooling and the longest text of a GGUF file.
inline SentenceEncoderOptions gguf_sentence_options(const GgufFile& file,
                                                    const PretrainedOptions& given) {
  const GgufKeys keys(file, concat(file.get<std::string_view>("general.architecture"), "."),
                      "SentenceEncoder", given.ignore_keys);
  SentenceEncoderOptions options{.max_tokens = keys.count("context_length")};
  const auto type = keys.get<std::uint32_t>("pooling_type", 1);
  if (type != 1 && type != 2) {
    keys.fail("pooling_type", "be 1 (mean) or 2 (the first token)", std::to_string(type));
  }
  options.pooling = type == 2 ? Pooling::cls : Pooling::mean;
  return options;
}

}  // namespace detail

ATTN_NAMESPACE_END
