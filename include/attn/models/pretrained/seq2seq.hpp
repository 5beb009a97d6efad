// Seq2SeqTransformer from Hugging Face folders: the table of encoder-decoders' model types.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/seq2seq/bart.hpp"
#include "attn/models/pretrained/seq2seq/m2m_100.hpp"
#include "attn/models/pretrained/seq2seq/marian.hpp"
#include "attn/models/pretrained/seq2seq/mbart.hpp"
#include "attn/models/pretrained/seq2seq/pegasus.hpp"
#include "attn/models/pretrained/seq2seq/t5.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline constexpr std::span<const Seq2SeqType> kSeq2SeqTypes[] = {
    kBartTypes, kMbartTypes, kMarianTypes, kM2m100Types, kPegasusTypes, kT5Types};

/// The type of a folder. Throws ValueError if the table does not contain it.
inline const Seq2SeqType& seq2seq_type_of(const ConfigFile& config) {
  return type_of<Seq2SeqType>(config, kSeq2SeqTypes);
}

}  // namespace detail

/// The options of Seq2SeqTransformer for a config.json of an encoder-decoder: see load_pretrained()
/// for the model types. Padding is masked out in the source, and in the target unless targets begin
/// with the padding token. Throws what gpt_options_of() throws.
inline Seq2SeqOptions seq2seq_options_of(const ConfigFile& config,
                                         const PretrainedOptions& options = {}) {
  const Seq2SeqOptions result = detail::seq2seq_type_of(config).options(config);
  detail::check_config_read(config, options);
  return result;
}

/// The tokens that a folder's targets begin with: decoder_start_token_id, then forced_bos_token_id
/// if there is one, of generation_config.json if it has them, else of config.json. Throws IoError
/// for files that cannot be read, ValueError without decoder_start_token_id.
inline std::vector<index_t> target_start_of(const std::filesystem::path& folder) {
  const ConfigFile config(folder / "config.json");
  std::optional<ConfigFile> generation;
  if (exists(folder / "generation_config.json")) {
    generation.emplace(folder / "generation_config.json");
  }
  const auto file_of = [&](std::string_view key) -> const ConfigFile& {
    return generation && generation->has(key) ? *generation : config;
  };
  std::vector<index_t> result;
  for (const std::string_view key : {"decoder_start_token_id", "forced_bos_token_id"}) {
    const ConfigFile& file = file_of(key);
    if (result.empty() || file.has(key)) result.push_back(file.get<index_t>(key));
  }
  return result;
}

namespace detail {

template <class T>
Seq2SeqTransformer<T> seq2seq_from_folder(const std::filesystem::path& folder,
                                          const PretrainedOptions& options) {
  const ConfigFile config(folder / "config.json");
  check_activations<T>(config);
  Seq2SeqOptions model_options = seq2seq_options_of(config, options);
  const Seq2SeqType& type = seq2seq_type_of(config);
  const SafetensorsFolder file(folder);
  const TransformerOptions& t = model_options.transformer;
  // Like transformers, loads tables of sinusoidal positions that the file contains, except for
  // M2M100, which computes them.
  if (model_options.positions == Positions::sinusoidal && !model_options.skip_padding &&
      file.contains(concat(type.prefix, "encoder.embed_positions.weight"))) {
    model_options.positions = Positions::learned;
  }
  const bool has_positions = model_options.positions == Positions::learned;
  const double rows = static_cast<double>(model_options.src_vocab_size) +
                      (has_positions ? 2 * static_cast<double>(model_options.max_positions) : 0.0);
  check_elements(config, file, t.layer, t.num_encoder_layers + t.num_decoder_layers, rows);
  const std::string prefix(type.prefix), encoder = prefix + "encoder.embed_tokens.weight",
                                         decoder = prefix + "decoder.embed_tokens.weight";
  const std::string source = "src_embedding.words.weight", target = "tgt_embedding.words.weight";
  LoadOptions names = type.names(prefix);
  const bool shared = config.get<bool>("share_encoder_decoder_embeddings", true);
  if (shared) {
    names = with_tied_table(std::move(names), file, source, {encoder, decoder});
    names = with_tied_table(std::move(names), file, target, {decoder, encoder});
  } else {
    names.rename = [usual = std::move(names.rename), source, target, encoder,
                    decoder](std::string_view name) {
      return name == source ? encoder : name == target ? decoder : usual(name);
    };
  }
  if (model_options.tied) {
    if (shared) names = with_tied_table(std::move(names), file, source, {"lm_head.weight"});
    names = with_tied_table(std::move(names), file, target, {"lm_head.weight"});
  }
  // A head stored beside the table is used, whatever the config says: newer versions of
  // transformers write tie_word_embeddings = true for each T5, and do not tie tables that differ.
  if (file.contains("lm_head.weight") && names.rename(target) != "lm_head.weight") {
    model_options.tied = false;
  }
  return load_model<T, Seq2SeqTransformer<T>>(model_options, file, names, options);
}

}  // namespace detail

ATTN_NAMESPACE_END
