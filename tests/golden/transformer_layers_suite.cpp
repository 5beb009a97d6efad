// Golden suite `transformer_layers`: encoder and decoder layers, stacks and the whole Transformer of PyTorch.
//
// Encoder layers are the library's EncoderLayer, loaded by PyTorch's names; decoder layers are composed here of its
// MultiHeadAttention, FeedForward and layer_norm. Which module a case is shows in the names of its tensors.
#include "golden/backend.hpp"
#include "golden/pytorch.hpp"

namespace attn_test {
namespace {

struct LayerOptions {
  Index nhead = 1;
  attn::Activation activation = attn::Activation::relu;
  bool norm_first = false;
  double eps = 1e-5;
};

LayerOptions read_options(const Case& c) {
  LayerOptions options;
  options.nhead = c.required<Index>("nhead");
  options.norm_first = c.attribute<bool>("norm_first").value_or(false);
  options.eps = c.attribute<double>("layer_norm_eps").value_or(1e-5);
  const std::string activation = c.attribute<std::string>("activation").value_or("relu");
  if (activation == "gelu") {
    options.activation = attn::Activation::gelu;
  } else if (activation != "relu") {
    throw Unsupported("activation '" + activation + "'");
  }
  return options;
}

/// One module, composed of a backend's parts.
template <class Backend>
class Module {
 public:
  using T = typename Backend::T;

  Module(const Backend& backend, const Case& c)
      : backend_(backend), c_(c), options_(read_options(c)) {}

  /// Masks of a call, by the names that PyTorch's modules give them.
  ReferenceOptions masks(const std::string& mask, const std::string& padding) const {
    ReferenceOptions masks;
    add_masks(masks, c_, mask, padding, options_.nhead);
    return masks;
  }

  Array<T> encoder_layer(const std::string& prefix, const Array<T>& x,
                         const ReferenceOptions& mask) const {
    if constexpr (std::is_same_v<Backend, LibraryBackend>) {
      const bool bias = c_.has(prefix + "linear1.bias");
      attn::EncoderLayer<T> layer(
          {.d_model = x.extent(2),
           .nhead = options_.nhead,
           .dim_feedforward = c_.load<T>(prefix + "linear1.weight").extent(0),
           .activation = options_.activation,
           .layer_norm_eps = options_.eps,
           .norm_first = options_.norm_first,
           .bias = bias});
      load_module(layer, c_, prefix);
      const LibraryOptions<T> library(mask);
      Array<T> y(x.shape);
      layer.forward(x.template view<3>(), y.template view<3>(),
                    {.mask = library.get().mask, .execution = backend_.execution()});
      return y;
    } else {
      Array<T> y = sublayer(prefix, "norm1.", x, [&](const Array<T>& in, const Array<T>& residual) {
        return attention(prefix + "self_attn.", in, in, mask, residual);
      });
      return feed_forward(prefix, "norm2.", y);
    }
  }

  Array<T> decoder_layer(const std::string& prefix, const Array<T>& x, const Array<T>& memory,
                         const ReferenceOptions& mask, const ReferenceOptions& memory_mask) const {
    Array<T> y = sublayer(prefix, "norm1.", x, [&](const Array<T>& in, const Array<T>& residual) {
      return attention(prefix + "self_attn.", in, in, mask, residual);
    });
    y = sublayer(prefix, "norm2.", y, [&](const Array<T>& in, const Array<T>& residual) {
      return attention(prefix + "multihead_attn.", in, memory, memory_mask, residual);
    });
    return feed_forward(prefix, "norm3.", y);
  }

  /// layer(prefix, x) for layers.0, layers.1, .. and the final norm, if there is one.
  template <class Layer>
  Array<T> stack(const std::string& prefix, Array<T> x, Layer layer) const {
    for (int n = 0;; ++n) {
      const std::string name = prefix + "layers." + std::to_string(n) + ".";
      if (!c_.has(name + "linear1.weight")) break;
      x = layer(name, x);
    }
    return c_.has(prefix + "norm.weight") ? norm(prefix + "norm.", x) : x;
  }

 private:
  Array<T> norm(const std::string& prefix, const Array<T>& x) const {
    return backend_.layer_norm(x, c_.load<T>(prefix + "weight"), c_.load_if<T>(prefix + "bias"),
                               options_.eps);
  }

  /// Pre-norm x + f(norm(x)), post-norm norm(x + f(x)); f adds its residual.
  template <class F>
  Array<T> sublayer(const std::string& prefix, const std::string& norm_name, const Array<T>& x,
                    F f) const {
    if (options_.norm_first) return f(norm(prefix + norm_name, x), x);
    return norm(prefix + norm_name, f(x, x));
  }

  Array<T> attention(const std::string& prefix, const Array<T>& x, const Array<T>& memory,
                     const ReferenceOptions& mask, const Array<T>& residual) const {
    const auto heads = load_heads<T>(c_, prefix, options_.nhead);
    return backend_.attention(heads, x, memory, memory, mask, residual).y;
  }

  Array<T> feed_forward(const std::string& prefix, const std::string& norm_name,
                        const Array<T>& x) const {
    const FeedForwardWeights<T> weights{
        c_.load<T>(prefix + "linear1.weight"), c_.load_if<T>(prefix + "linear1.bias"),
        c_.load<T>(prefix + "linear2.weight"), c_.load_if<T>(prefix + "linear2.bias"),
        options_.activation};
    return sublayer(prefix, norm_name, x, [&](const Array<T>& in, const Array<T>& residual) {
      return backend_.feed_forward(weights, in, residual);
    });
  }

  const Backend& backend_;
  const Case& c_;
  LayerOptions options_;
};

template <class Backend>
Outputs<typename Backend::T> run(const Backend& backend, const Case& c) {
  using T = typename Backend::T;
  const Module<Backend> module(backend, c);
  const auto encoder = [&](const std::string& prefix) {
    const auto mask = module.masks("src_mask", "src_key_padding_mask");
    return module.stack(prefix, c.load<T>("src"), [&](const std::string& layer, const Array<T>& x) {
      return module.encoder_layer(layer, x, mask);
    });
  };
  const auto decoder_masks = [&] {
    return std::pair{module.masks("tgt_mask", "tgt_key_padding_mask"),
                     module.masks("memory_mask", "memory_key_padding_mask")};
  };
  const auto decoder = [&](const std::string& prefix, const Array<T>& memory) {
    const auto masks = decoder_masks();
    return module.stack(prefix, c.load<T>("tgt"), [&](const std::string& layer, const Array<T>& x) {
      return module.decoder_layer(layer, x, memory, masks.first, masks.second);
    });
  };

  if (c.has("encoder.layers.0.linear1.weight")) {  // nn.Transformer
    return {{"y", decoder("decoder.", encoder("encoder."))}};
  }
  const bool is_decoder = c.has("memory");
  if (c.has("layers.0.linear1.weight")) {  // a stack
    return {{"y", is_decoder ? decoder("", c.load<T>("memory")) : encoder("")}};
  }
  if (!c.has("linear1.weight")) throw Unsupported("a module of other parts than layers");
  if (is_decoder) {
    const auto [mask, memory_mask] = decoder_masks();
    return {
        {"y", module.decoder_layer("", c.load<T>("tgt"), c.load<T>("memory"), mask, memory_mask)}};
  }
  return {{"y", module.encoder_layer("", c.load<T>("src"),
                                     module.masks("src_mask", "src_key_padding_mask"))}};
}

void check(Case& c) {
  if (c.attribute<double>("dropout").value_or(0) != 0) throw Unsupported("dropout");
  if (!c.attribute<bool>("batch_first").value_or(true)) throw Unsupported("batch_first = false");
  check_outputs(c, [&](const auto& backend) { return run(backend, c); });
}

}  // namespace

const Suite transformer_layers_suite{
    {"d_model", "nhead", "dim_feedforward", "activation", "norm_first", "layer_norm_eps", "bias",
     "num_layers", "num_encoder_layers", "num_decoder_layers", "dropout", "batch_first"},
    check};

}  // namespace attn_test
