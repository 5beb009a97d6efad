// Whisper from Hugging Face folders.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/seq2seq/seq2seq_type.hpp"
#include "attn/models/whisper.hpp"

ATTN_NAMESPACE_BEGIN

/// Parameter names and storage of Whisper's files: load_state_dict(whisper, file, whisper_names()).
/// The convolutions' weights (d_model, channels, 3) have the memory layout of the linear layers'.
/// Keys have no bias there: a constant added to all scores of a query changes no weight.
inline LoadOptions whisper_names(const std::string& prefix = "model.") {
  LoadOptions names = bart_names(prefix);
  names.rename = [theirs = std::move(names.rename),
                  own = rename_by({{"conv1.", prefix + "encoder.conv1."},
                                   {"conv2.", prefix + "encoder.conv2."},
                                   {"tgt_embedding.words.", prefix + "decoder.embed_tokens."},
                                   {"generator.weight", "proj_out.weight"}}),
                  table = prefix + "encoder.embed_positions.weight"](std::string_view name) {
    return name == "positions" ? table : theirs(own(name));
  };
  names.ignore = {};
  names.reshape = {".conv1.weight", ".conv2.weight"};
  names.optional = {".k_proj.bias"};
  return names;
}

/// The options of Whisper for a config.json: model_type whisper. Throws what gpt_options_of()
/// throws.
inline WhisperOptions whisper_options_of(const ConfigFile& config,
                                         const PretrainedOptions& options = {}) {
  detail::check_model_type(config, {"whisper"});
  WhisperOptions result{.vocab_size = config.count("vocab_size"),
                        .num_mel_bins = config.count("num_mel_bins", 80),
                        .transformer = detail::bart_style_transformer(config, true),
                        .max_source_positions = config.count("max_source_positions", 1500),
                        .max_target_positions = config.count("max_target_positions", 448)};
  detail::check_only(config, "scale_embedding", false, "false");
  detail::check_only(config, "tie_word_embeddings", true, "true");
  for (const std::string_view key :
       {"apply_spec_augment", "classifier_proj_size", "forced_decoder_ids", "mask_feature_length",
        "mask_feature_min_masks", "mask_feature_prob", "mask_time_length", "mask_time_min_masks",
        "mask_time_prob", "median_filter_width", "use_weighted_layer_sum"}) {
    static_cast<void>(config.has(key));  // of training, other heads and generation
  }
  detail::check_config_read(config, options);
  return result;
}

namespace detail {

template <class T>
Whisper<T> whisper_from_folder(const std::filesystem::path& folder,
                               const PretrainedOptions& options) {
  const ConfigFile config(folder / "config.json");
  WhisperOptions model_options = whisper_options_of(config, options);
  const SafetensorsFolder file(folder);
  const TransformerOptions& t = model_options.transformer;
  check_elements(config, file, t.layer, t.num_encoder_layers + t.num_decoder_layers,
                 to_double(model_options.vocab_size) +
                     to_double(model_options.max_source_positions) +
                     to_double(model_options.max_target_positions) +
                     3 * (to_double(model_options.num_mel_bins) + to_double(t.layer.d_model)));
  LoadOptions names = whisper_names();
  const std::string table = "tgt_embedding.words.weight", head = names.rename("generator.weight");
  names = with_tied_table(std::move(names), file, table, {head});
  // As in other types, a head stored beside the table is used.
  model_options.tied = !file.contains(head) || names.rename(table) == head;
  return load_model<T, Whisper<T>>(model_options, file, names, options);
}

}  // namespace detail

ATTN_NAMESPACE_END
