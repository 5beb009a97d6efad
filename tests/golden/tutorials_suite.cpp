// Golden suite `tutorials`: the models of five tutorials as the library's modules.
//
// The names of a case's tensors determine its module. 004's weights are (in, out), all others (out,
// in). True keeps in masks. The tutorials fill masked scores with -1e9, so that a fully masked row
// is the mean of the values.
#include <cmath>

#include "golden/library_tutorials.hpp"

namespace attn_test {
namespace {

constexpr double kUnscaled = 1;

/// Transposes (in, out) to (out, in).
template <class T>
Array<T> transposed(const Array<T>& w) {
  Array<T> result({w.extent(1), w.extent(0)});
  for (Index i = 0; i < w.extent(0); ++i) {
    for (Index j = 0; j < w.extent(1); ++j) result(j, i) = w(i, j);
  }
  return result;
}

template <class T>
Array<T> batched(Array<T> x) {
  if (x.shape.size() == 2) x.shape.insert(x.shape.begin(), 1);
  return x;
}

template <class Backend>
class Tutorials {
 public:
  using T = typename Backend::T;

  Tutorials(const Backend& backend, const Case& c) : backend_(backend), c_(c) {}

  Outputs<T> run() const {
    if constexpr (std::is_same_v<Backend, LibraryBackend>) {
      const LibraryTutorials library(backend_, c_);
      if (c_.has("src_word_emb.weight")) return library.transformer();
      if (c_.has("enc_attn.w_qs.weight")) return library.decoder_layer();
      if (c_.has("slf_attn.w_qs.weight")) return library.encoder_layer();
      if (c_.has("w_1.weight")) return library.feed_forward();
      if (c_.has("w_qs.weight")) return library.norm_attention();
    } else {
      if (c_.has("src_word_emb.weight")) return transformer();
      if (c_.has("enc_attn.w_qs.weight")) return decoder();
      if (c_.has("slf_attn.w_qs.weight")) return encoder();
      if (c_.has("w_1.weight")) return {{"y", feed_forward("", load("x"))}};
      if (c_.has("w_qs.weight")) {
        const auto r = norm_attention("", load("q"), load("k"), load("v"), keep(c_, "mask"));
        return {{"y", r.y}, {"weights", r.weights}};
      }
    }
    if (c_.has("W_q.weight") || c_.has("linear_q") || c_.has("W_q") || c_.has("w_q"))
      return plain();
    if (c_.has("q") && c_.has("k") && c_.has("v")) return function();
    throw Unsupported("its tensors identify no known module");
  }

 private:
  Array<T> load(const std::string& name) const { return c_.load<T>(name); }
  Array<T> load_if(const std::string& name) const { return c_.load_if<T>(name); }
  double eps() const { return c_.attribute<double>("eps").value_or(1e-6); }

  Index heads() const {
    for (const char* key : {"num_heads", "n_head"}) {
      if (const auto n = c_.attribute<Index>(key)) return *n;
    }
    return 1;
  }

  Array<T> norm(const std::string& prefix, const Array<T>& x) const {
    return backend_.layer_norm(x, load(prefix + "weight"), load(prefix + "bias"), eps());
  }

  /// The modules of 000, 001, 002 and 004: projections, attention, an optional output projection.
  Outputs<T> plain() const {
    ReferenceHeads<T> p;
    p.num_heads = heads();
    ReferenceOptions options = keep(c_, "mask");
    if (c_.has("W_q.weight")) {
      p.wq = load("W_q.weight"), p.bq = load_if("W_q.bias");
      p.wk = load("W_k.weight"), p.bk = load_if("W_k.bias");
      p.wv = load("W_v.weight"), p.bv = load_if("W_v.bias");
      p.wo = load("W_o.weight"), p.bo = load_if("W_o.bias");
    } else if (c_.has("linear_q")) {
      p.wq = load("linear_q"), p.wk = load("linear_k"), p.wv = load("linear_v");
    } else {
      const std::string w = c_.has("W_q") ? "W_" : "w_";
      p.wq = transposed(load(w + "q")), p.wk = transposed(load(w + "k"));
      p.wv = transposed(load(w + "v"));
      // W_q joins all heads; each head is as wide as the input.
      if (w == "W_") p.num_heads = p.wq.extent(0) / p.wq.extent(1);
      options.scale = kUnscaled;
    }
    Outputs<T> outputs;
    for (const std::string n : {"", "1", "2"}) {  // x to y, x1 to y1, x2 to y2
      const std::string from = c_.has("x" + n) ? "x" + n : "q" + n;
      if (!c_.has(from)) continue;
      const Array<T> q = batched(load(from));
      const Array<T> k = c_.has("kv" + n)                ? batched(load("kv" + n))
                         : from[0] == 'q' && c_.has("k") ? batched(load("k"))
                                                         : q;
      const Array<T> v = from[0] == 'q' && c_.has("v") ? batched(load("v")) : k;
      const auto r = backend_.attention(p, q, k, v, options);
      outputs["y" + n] = r.y;
      outputs["weights" + n] = r.weights;
      if (c_.has("scores")) outputs["scores"] = scores(p, q, k);
    }
    return outputs;
  }

  /// q k^T of one head and one batch row, unscaled, as 004 prints it.
  Array<T> scores(const ReferenceHeads<T>& p, const Array<T>& q, const Array<T>& k) const {
    const Array<T> keys = backend_.linear(k, p.wk);
    return backend_.linear(backend_.linear(q, p.wq),
                           keys.reshaped({keys.extent(1), keys.extent(2)}));
  }

  /// attention_calculate of 004, whose heads are inputs.
  Outputs<T> function() const {
    const auto q = load("q"), k = load("k"), v = load("v");
    const ReferenceOptions options = keep(c_, "mask");
    ReferenceResult<T> r;
    if constexpr (std::is_same_v<Backend, LibraryBackend>) {
      r.y = Array<T>({q.extent(0), q.extent(1), q.extent(2), v.extent(3)});
      r.weights = Array<T>({q.extent(0), q.extent(1), q.extent(2), k.extent(2)});
      const LibraryOptions<T> library(options);
      attn::AttentionOptions<T> call = library.get();
      call.weights = r.weights.template view<4>();
      call.execution = backend_.execution();
      attn::scaled_dot_product_attention(q.template view<4>(), k.template view<4>(),
                                         v.template view<4>(), r.y.template view<4>(), call);
    } else {
      r = reference_attention(q, k, v, options, backend_.order);
    }
    return {{"y", r.y}, {"weights", r.weights}};
  }

  /// MultiHeadAttention of 003: without bias, followed by residual and norm.
  ReferenceResult<T> norm_attention(const std::string& prefix, const Array<T>& q, const Array<T>& k,
                                    const Array<T>& v, const ReferenceOptions& options) const {
    ReferenceHeads<T> p;
    p.num_heads = heads();
    p.wq = load(prefix + "w_qs.weight"), p.wk = load(prefix + "w_ks.weight");
    p.wv = load(prefix + "w_vs.weight"), p.wo = load(prefix + "fc.weight");
    auto r = backend_.attention(p, q, k, v, options, q);
    r.y = norm(prefix + "layer_norm.", r.y);
    return r;
  }

  Array<T> feed_forward(const std::string& prefix, const Array<T>& x) const {
    const FeedForwardWeights<T> w{.w1 = load(prefix + "w_1.weight"),
                                  .b1 = load_if(prefix + "w_1.bias"),
                                  .w2 = load(prefix + "w_2.weight"),
                                  .b2 = load_if(prefix + "w_2.bias")};
    return norm(prefix + "layer_norm.", backend_.feed_forward(w, x, x));
  }

  Outputs<T> encoder() const {
    const auto x = load("x");
    const auto r = norm_attention("slf_attn.", x, x, x, keep(c_, "mask"));
    return {{"y", feed_forward("pos_ffn.", r.y)}, {"weights", r.weights}};
  }

  Outputs<T> decoder() const {
    const auto x = load("x"), enc = load("enc");
    const auto self = norm_attention("slf_attn.", x, x, x, keep(c_, "self_mask"));
    const auto cross = norm_attention("enc_attn.", self.y, enc, enc, keep(c_, "cross_mask"));
    return {{"y", feed_forward("pos_ffn.", cross.y)},
            {"self_weights", self.weights},
            {"cross_weights", cross.weights}};
  }

  /// sin and cos, alternating, of position / 10000^(2 (j / 2) / dim).
  Array<T> position_table() const {
    Array<T> table = load("pos_table");
    for (Index p = 0; p < table.extent(0); ++p) {
      for (Index j = 0; j < table.extent(1); ++j) {
        const double power =
            2.0 * static_cast<double>(j / 2) / static_cast<double>(table.extent(1));
        const double angle = static_cast<double>(p) / std::pow(10000.0, power);
        table(p, j) = static_cast<T>(j % 2 == 0 ? std::sin(angle) : std::cos(angle));
      }
    }
    return table;
  }

  /// Word and position embeddings, then a norm before the first layer.
  Array<T> embed(const std::string& name, const Array<std::int64_t>& ids) const {
    Array<T> x = backend_.embedding(load(name + "_word_emb.weight"), ids);
    const Array<T> positions = load("pos_table");
    const Index dim = x.extent(2);
    for (Index i = 0; i < x.size(); ++i) {
      x.data.at(static_cast<std::size_t>(i)) +=
          positions.data.at(static_cast<std::size_t>(i % (ids.extent(1) * dim)));
    }
    return x;
  }

  /// A mask that keeps unpadded keys.
  ReferenceOptions not_padding(const Array<std::int64_t>& ids) const {
    const Index pad = c_.attribute<Index>("pad_idx").value_or(0);
    Array<double> mask({ids.extent(0), 1, 1, ids.extent(1)});
    std::transform(ids.data.begin(), ids.data.end(), mask.data.begin(),
                   [&](std::int64_t id) { return id != pad ? 1.0 : 0.0; });
    ReferenceOptions options;
    options.mean_of_masked_row = true;
    options.masks.push_back({ReferenceOptions::Mask::Kind::keep, mask});
    return options;
  }

  Outputs<T> transformer() const {
    const auto src = c_.load<std::int64_t>("src"), trg = c_.load<std::int64_t>("trg");
    const ReferenceOptions src_mask = not_padding(src);
    ReferenceOptions trg_mask = not_padding(trg);
    trg_mask.causal = true;
    Array<T> enc = norm("enc_norm.", embed("src", src));
    for (int n = 0; c_.has(layer("enc", n) + "slf_attn.w_qs.weight"); ++n) {
      const std::string prefix = layer("enc", n);
      enc = norm_attention(prefix + "slf_attn.", enc, enc, enc, src_mask).y;
      enc = feed_forward(prefix + "pos_ffn.", enc);
    }
    Array<T> dec = norm("dec_norm.", embed("trg", trg));
    for (int n = 0; c_.has(layer("dec", n) + "slf_attn.w_qs.weight"); ++n) {
      const std::string prefix = layer("dec", n);
      dec = norm_attention(prefix + "slf_attn.", dec, dec, dec, trg_mask).y;
      dec = norm_attention(prefix + "enc_attn.", dec, enc, enc, src_mask).y;
      dec = feed_forward(prefix + "pos_ffn.", dec);
    }
    return {{"encoder_output", enc},
            {"pos_table", position_table()},
            {"logits", backend_.linear(dec, load("trg_word_prj.weight"))}};
  }

  static std::string layer(const std::string& stack, int n) {
    return stack + "." + std::to_string(n) + ".";
  }

  const Backend& backend_;
  const Case& c_;
};

void check_tutorials(Case& c) {
  check_outputs(c, [&](const auto& backend) {
    return Tutorials<std::decay_t<decltype(backend)>>(backend, c).run();
  });
}

}  // namespace

const Suite tutorials_suite{
    {"d_model", "num_heads", "dim_in", "dim_k", "dim_v", "n_head", "d_k", "d_v", "eps", "d_in",
     "d_hid", "d_inner", "n_src_vocab", "n_trg_vocab", "n_layers", "pad_idx"},
    check_tutorials};

}  // namespace attn_test
