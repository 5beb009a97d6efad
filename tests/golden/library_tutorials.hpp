// LibraryTutorials: the models of tutorial 003 as the library's modules, by the tutorial's names.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "golden/backend.hpp"
#include "golden/pytorch.hpp"

namespace attn_test {

/// A mask (q_len, kv_len), (batch, q_len, kv_len) or of rank 4.
inline ReferenceOptions keep(const Case& c, const std::string& name) {
  ReferenceOptions options;
  options.mean_of_masked_row = true;
  if (!c.has(name)) return options;
  Array<double> mask = c.load<double>(name);
  const std::size_t rank = mask.shape.size();
  if (rank < 2 || rank > 4) throw Unsupported("a mask of rank " + std::to_string(rank));
  while (mask.shape.size() < 4) {
    mask.shape.insert(mask.shape.begin() + (mask.shape.size() == 3 ? 1 : 0), 1);
  }
  options.masks.push_back({ReferenceOptions::Mask::Kind::keep, mask});
  return options;
}

class LibraryTutorials {
 public:
  LibraryTutorials(const LibraryBackend& backend, const Case& c) : backend_(backend), c_(c) {}

  /// 003's MultiHeadAttention: without bias, then residual and norm.
  Outputs<float> norm_attention() const {
    const auto q = c_.load<float>("q"), k = c_.load<float>("k"), v = c_.load<float>("v");
    attn::MultiHeadAttention<float> attention(
        layer_options(q.extent(2), "", "").attention_options());
    attn::LayerNorm<float> norm(q.extent(2), kEps);
    load_module(attention, c_, "", [](std::string_view name) { return attention_name(name); });
    load_module(norm, c_, "layer_norm.");
    Array<float> y(q.shape), weights({q.extent(0), heads(), q.extent(1), k.extent(1)});
    const LibraryOptions<float> mask(keep(c_, "mask"));
    attn::attention_sublayer<float>(attention, norm, false, q.view<3>(), k.view<3>(), v.view<3>(),
                                    y.view<3>(), call(mask, weights));
    return {{"y", y}, {"weights", weights}};
  }

  Outputs<float> feed_forward() const {
    const auto x = c_.load<float>("x");
    attn::FeedForward<float> module(
        {.d_model = x.extent(2), .dim_feedforward = c_.load<float>("w_1.weight").extent(0)});
    attn::LayerNorm<float> norm(x.extent(2), kEps);
    load_module(module, c_, "", [](std::string_view name) {
      return replaced(name, {{"linear1.", "w_1."}, {"linear2.", "w_2."}});
    });
    load_module(norm, c_, "layer_norm.");
    Array<float> y(x.shape);
    attn::feed_forward_sublayer<float>(module, norm, false, x.view<3>(), y.view<3>(),
                                       backend_.execution());
    return {{"y", y}};
  }

  Outputs<float> encoder_layer() const {
    const auto x = c_.load<float>("x");
    attn::EncoderLayer<float> layer(layer_options(x.extent(2), "slf_attn.", "pos_ffn."));
    load_module(layer, c_, "", [](std::string_view name) { return layer_name(name, false); });
    Array<float> weights({x.extent(0), heads(), x.extent(1), x.extent(1)});
    const LibraryOptions<float> mask(keep(c_, "mask"));
    return {{"y", to_array(layer(x.view<3>(), call(mask, weights)))}, {"weights", weights}};
  }

  Outputs<float> decoder_layer() const {
    const auto x = c_.load<float>("x"), enc = c_.load<float>("enc");
    attn::DecoderLayer<float> layer(layer_options(x.extent(2), "slf_attn.", "pos_ffn."));
    load_module(layer, c_, "", [](std::string_view name) { return layer_name(name, true); });
    Array<float> self({x.extent(0), heads(), x.extent(1), x.extent(1)});
    Array<float> cross({x.extent(0), heads(), x.extent(1), enc.extent(1)});
    const LibraryOptions<float> self_mask(keep(c_, "self_mask")),
        cross_mask(keep(c_, "cross_mask"));
    const auto y = layer(x.view<3>(), enc.view<3>(), call(self_mask, self),
                         {.memory = call(cross_mask, cross)});
    return {{"y", to_array(y)}, {"self_weights", self}, {"cross_weights", cross}};
  }

  Outputs<float> transformer() const {
    const auto src = c_.load<std::int64_t>("src"), trg = c_.load<std::int64_t>("trg");
    const auto table = c_.load<float>("pos_table");
    const Index dim = table.extent(1);
    const auto rows = [&](const char* name) { return c_.load<float>(name).extent(0); };
    const auto layers = c_.required<Index>("n_layers");
    // Field by field: g++ 12 warns falsely about a rotary optional in nested braces.
    attn::Seq2SeqOptions options;
    options.src_vocab_size = rows("src_word_emb.weight");
    options.tgt_vocab_size = rows("trg_word_emb.weight");
    options.transformer.layer = layer_options(dim, "enc.0.slf_attn.", "enc.0.pos_ffn.");
    options.transformer.num_encoder_layers = options.transformer.num_decoder_layers = layers;
    options.transformer.norm = false;
    options.max_positions = table.extent(0);
    options.scale_embedding = false;
    options.embedding_norm = true;
    options.pad_id = c_.attribute<Index>("pad_idx").value_or(0);
    options.masked_row = attn::MaskedRow::mean;
    attn::Seq2SeqTransformer<float> module(options);
    load_module(module, c_, "", [](std::string_view name) { return transformer_name(name); });
    Array<float> memory({src.extent(0), src.extent(1), dim});
    module.encode(src.view<2>(), memory.view<3>(), backend_.execution());
    return {{"encoder_output", memory},
            {"pos_table", to_array(module.src_embedding.positions.weight)},
            {"logits", to_array(module(src.view<2>(), trg.view<2>(), backend_.execution()))}};
  }

 private:
  static constexpr double kEps = 1e-6;

  Index heads() const { return c_.required<Index>("n_head"); }

  /// Options with the sizes of the weights under the two prefixes.
  attn::TransformerLayerOptions layer_options(Index d_model, const std::string& attention,
                                              const std::string& feed_forward) const {
    const auto width = [&](const std::string& name) {
      return c_.has(name) ? c_.load<float>(name).extent(0) : 0;
    };
    return {.d_model = d_model,
            .nhead = heads(),
            .dim_feedforward = width(feed_forward + "w_1.weight"),
            .layer_norm_eps = kEps,
            .attention = {.bias = false,
                          .head_dim = width(attention + "w_qs.weight") / heads(),
                          .head_dim_v = width(attention + "w_vs.weight") / heads(),
                          .separate_in_proj = true}};
  }

  attn::AttentionOptions<float> call(const LibraryOptions<float>& mask,
                                     Array<float>& weights) const {
    attn::AttentionOptions<float> options = mask.get();
    options.weights = weights.view<4>();
    options.execution = backend_.execution();
    return options;
  }

  using Names = std::vector<std::pair<std::string_view, std::string_view>>;

  /// The name with the first text of each pair replaced by the second.
  static std::string replaced(std::string_view name, const Names& names) {
    std::string result(name);
    for (const auto& [ours, theirs] : names) {
      const std::size_t at = result.find(ours);
      if (at != result.npos) result.replace(at, ours.size(), theirs);
    }
    return result;
  }

  static std::string attention_name(std::string_view name) {
    return replaced(name, {{"q_proj_weight", "w_qs.weight"},
                           {"k_proj_weight", "w_ks.weight"},
                           {"v_proj_weight", "w_vs.weight"},
                           {"out_proj.weight", "fc.weight"}});
  }

  static std::string layer_name(std::string_view name, bool decoder) {
    Names names{{"self_attn.", "slf_attn."},
                {"multihead_attn.", "enc_attn."},
                {"linear1.", "pos_ffn.w_1."},
                {"linear2.", "pos_ffn.w_2."},
                {"norm1.", "slf_attn.layer_norm."},
                {"norm2.", decoder ? "enc_attn.layer_norm." : "pos_ffn.layer_norm."},
                {"norm3.", "pos_ffn.layer_norm."}};
    return replaced(attention_name(name), names);
  }

  static std::string transformer_name(std::string_view name) {
    const bool decoder = name.starts_with("transformer.decoder.");
    if (decoder || name.starts_with("transformer.encoder.")) {
      return replaced(layer_name(name, decoder), {{"transformer.encoder.layers.", "enc."},
                                                  {"transformer.decoder.layers.", "dec."}});
    }
    return replaced(name, {{"src_embedding.words.", "src_word_emb."},
                           {"tgt_embedding.words.", "trg_word_emb."},
                           {"src_embedding.norm.", "enc_norm."},
                           {"tgt_embedding.norm.", "dec_norm."},
                           {"generator.", "trg_word_prj."}});
  }

  const LibraryBackend& backend_;
  const Case& c_;
};

}  // namespace attn_test
