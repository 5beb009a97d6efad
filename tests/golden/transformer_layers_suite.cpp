// Golden suite `transformer_layers`: PyTorch's encoder and decoder layers, stacks and Transformer
// as the library's modules of the same names. The names of a case's tensors determine its module.
#include "golden/backend.hpp"
#include "golden/gradients.hpp"
#include "golden/pytorch.hpp"
#include "support/references/reference_transformer.hpp"

namespace attn_test {
namespace {

attn::TransformerLayerOptions read_options(const Case& c) {
  attn::TransformerLayerOptions options;
  options.d_model = c.required<Index>("d_model");
  options.nhead = c.required<Index>("nhead");
  options.dim_feedforward = c.attribute<Index>("dim_feedforward").value_or(2048);
  options.norm_first = c.attribute<bool>("norm_first").value_or(false);
  options.dropout = 0;
  options.layer_norm_eps = c.attribute<double>("layer_norm_eps").value_or(1e-5);
  options.bias = c.attribute<bool>("bias").value_or(true);
  const std::string activation = c.attribute<std::string>("activation").value_or("relu");
  if (activation == "gelu") {
    options.activation = attn::Activation::gelu;
  } else if (activation != "relu") {
    throw Unsupported("activation '" + activation + "'");
  }
  return options;
}

/// The modules of a case.
struct Kind {
  bool transformer, stack, decoder;

  explicit Kind(const Case& c)
      : transformer(c.has("encoder.layers.0.linear1.weight")),
        stack(c.has("layers.0.linear1.weight")),
        decoder(c.has("memory")) {
    if (!transformer && !stack && !c.has("linear1.weight")) {
      throw Unsupported("its tensors identify no known module");
    }
  }
};

/// The masks of each attention, by the argument names of PyTorch's modules.
struct Masks {
  ReferenceOptions src, tgt, memory;

  Masks(const Case& c, Index nhead) {
    add_masks(src, c, "src_mask", "src_key_padding_mask", nhead);
    add_masks(tgt, c, "tgt_mask", "tgt_key_padding_mask", nhead);
    add_masks(memory, c, "memory_mask", "memory_key_padding_mask", nhead);
  }
};

template <class T>
Outputs<T> run(const ReferenceBackend<T>& backend, const Case& c) {
  ReferenceTransformer<T> model{{}, read_options(c), backend.order};
  model.store = backend.store;
  const auto stored = [&](const Array<T>& x) { return reference_stored(x, backend.store); };
  for (const std::string& full : c.file().names()) {
    if (!full.starts_with(c.prefix())) continue;
    const std::string name = full.substr(c.prefix().size());
    if (name.starts_with("grad")) continue;
    if (name.find("weight") != std::string::npos || name.find("bias") != std::string::npos) {
      model.parameters[name] = stored(c.load<T>(name));
    }
  }
  const Masks masks(c, model.options.nhead);
  const Kind kind(c);
  const auto src = stored(c.load_if<T>("src")), tgt = stored(c.load_if<T>("tgt")),
             memory = stored(c.load_if<T>("memory"));
  if (kind.transformer) {
    const auto encoded = model.encoder("encoder.", src, masks.src);
    return {{"y", model.decoder("decoder.", tgt, encoded, masks.tgt, masks.memory)}};
  }
  if (kind.decoder) {
    return {{"y", kind.stack ? model.decoder("", tgt, memory, masks.tgt, masks.memory)
                             : model.decoder_layer("", tgt, memory, masks.tgt, masks.memory)}};
  }
  return {{"y", kind.stack ? model.encoder("", src, masks.src)
                           : model.encoder_layer("", src, masks.src)}};
}

Index layers_of(const Case& c, const std::string& prefix) {
  Index n = 0;
  while (c.has(prefix + "layers." + std::to_string(n) + ".linear1.weight")) ++n;
  return n;
}

template <class E>
Outputs<float> run(const ElementBackend<E>& backend, const Case& c) {
  const attn::TransformerLayerOptions layer = read_options(c);
  const Masks masks(c, layer.nhead);
  const LibraryOptions<float> src_masks(masks.src), tgt_masks(masks.tgt),
      memory_masks(masks.memory);
  const auto on = [&](const LibraryOptions<float>& masked) {
    attn::AttentionOptions<float> options = masked.get();
    options.execution = backend.execution();
    return options;
  };
  const auto load = [&](const char* name) { return c.load_if<float>(name).as<E>(); };
  const Array<E> src = load("src"), tgt = load("tgt"), memory = load("memory");
  const auto floats = [](const auto& y) { return to_array(y).template as<float>(); };
  const attn::DecoderCall<E> call{.memory = memory_masks.get()};
  const auto encode = [&](auto module) {
    load_module(module, c, "");
    return Outputs<float>{{"y", floats(module(src.template view<3>(), on(src_masks)))}};
  };
  const auto decode = [&](auto module) {
    load_module(module, c, "");
    return Outputs<float>{{"y", floats(module(tgt.template view<3>(), memory.template view<3>(),
                                              on(tgt_masks), call))}};
  };
  const Kind kind(c);
  if (kind.transformer) {
    attn::Transformer<E> module({.layer = layer,
                                 .num_encoder_layers = layers_of(c, "encoder."),
                                 .num_decoder_layers = layers_of(c, "decoder."),
                                 .norm = c.has("encoder.norm.weight")});
    load_module(module, c, "");
    return {{"y", floats(module(src.template view<3>(), tgt.template view<3>(),
                                {.src = src_masks.get(),
                                 .tgt = tgt_masks.get(),
                                 .memory = memory_masks.get(),
                                 .execution = backend.execution()}))}};
  }
  const attn::TransformerStackOptions stack{
      .num_layers = layers_of(c, ""), .layer = layer, .norm = c.has("norm.weight")};
  if (kind.decoder) {
    if (kind.stack) return decode(attn::Decoder<E>(stack));
    return decode(attn::DecoderLayer<E>(layer));
  }
  if (kind.stack) return encode(attn::Encoder<E>(stack));
  return encode(attn::EncoderLayer<E>(layer));
}

template <class T>
void check_layer_gradients(Case& c, attn::Isa isa) {
  const attn::TransformerLayerOptions layer = read_options(c);
  const Masks masks(c, layer.nhead);
  const LibraryOptions<T> src_masks(masks.src), tgt_masks(masks.tgt), memory_masks(masks.memory);
  const auto on = [&](const LibraryOptions<T>& masked) {
    attn::AttentionOptions<T> options = masked.get();
    options.execution.isa = isa;
    return options;
  };
  const auto d_y = c.load<T>("grad_y");
  Array<T> src = c.load_if<T>("src"), tgt = c.load_if<T>("tgt"), memory = c.load_if<T>("memory");
  Array<T> y(d_y.shape), d_src(src.shape), d_tgt(tgt.shape), d_memory(memory.shape);
  const auto of = [](Array<T>& x) { return x.template view<3>(); };
  const attn::TensorView3<const T> d = d_y.template view<3>();
  const attn::DecoderCall<T> call{.memory = memory_masks.get()};
  const auto run = [&](auto module, auto saved, auto step) {
    load_module(module, c, "");
    auto gradients = attn::gradients_of(module);
    step(module, saved, gradients);
    expect_parameter_gradients<T>(c, isa, gradients);
    if (c.has("grad_src")) expect_stored_gradient<T>(c, isa, "grad_src", d_src);
    if (c.has("grad_tgt")) expect_stored_gradient<T>(c, isa, "grad_tgt", d_tgt);
    if (c.has("grad_memory")) expect_stored_gradient<T>(c, isa, "grad_memory", d_memory);
  };
  const auto encode = [&](auto module, auto saved) {
    run(std::move(module), std::move(saved), [&](auto& m, auto& kept, auto& gradients) {
      attn::forward(m, of(src), of(y), kept, on(src_masks));
      attn::backward(m, d, kept, of(d_src), gradients, on(src_masks));
    });
  };
  const auto decode = [&](auto module, auto saved) {
    run(std::move(module), std::move(saved), [&](auto& m, auto& kept, auto& gradients) {
      attn::forward(m, of(tgt), of(memory), of(y), kept, on(tgt_masks), call);
      attn::backward(m, d, kept, of(d_tgt), of(d_memory), gradients, on(tgt_masks), call);
    });
  };
  const Kind kind(c);
  if (kind.transformer) {
    const attn::TransformerCall<T> all{.src = src_masks.get(),
                                       .tgt = tgt_masks.get(),
                                       .memory = memory_masks.get(),
                                       .execution = {.isa = isa}};
    run(attn::Transformer<T>({.layer = layer,
                              .num_encoder_layers = layers_of(c, "encoder."),
                              .num_decoder_layers = layers_of(c, "decoder."),
                              .norm = c.has("encoder.norm.weight")}),
        attn::TransformerSaved<T>(), [&](auto& m, auto& kept, auto& gradients) {
          attn::forward(m, of(src), of(tgt), of(y), kept, all);
          attn::backward(m, d, kept, of(d_src), of(d_tgt), gradients, all);
        });
    return;
  }
  const attn::TransformerStackOptions stack{
      .num_layers = layers_of(c, ""), .layer = layer, .norm = c.has("norm.weight")};
  if (kind.decoder) {
    if (kind.stack) return decode(attn::Decoder<T>(stack), attn::DecoderSaved<T>());
    return decode(attn::DecoderLayer<T>(layer), attn::DecoderLayerSaved<T>());
  }
  if (kind.stack) return encode(attn::Encoder<T>(stack), attn::EncoderSaved<T>());
  encode(attn::EncoderLayer<T>(layer), attn::EncoderLayerSaved<T>());
}

void check_transformer_layers(Case& c) {
  if (c.attribute<double>("dropout").value_or(0) != 0) throw Unsupported("dropout");
  if (!c.attribute<bool>("batch_first").value_or(true)) throw Unsupported("batch_first = false");
  const auto compose = [&](const auto& backend) { return run(backend, c); };
  check_outputs(c, compose);
  check_small_outputs<attn::bfloat16>(c, compose);
  check_small_outputs<attn::float16>(c, compose);
  if (!c.has("grad_y")) return;
  check_gradients_in_both(
      [&](auto t, attn::Isa isa) { check_layer_gradients<decltype(t)>(c, isa); });
}

}  // namespace

const Suite transformer_layers_suite{
    {"d_model", "nhead", "dim_feedforward", "activation", "norm_first", "layer_norm_eps", "bias",
     "num_layers", "num_encoder_layers", "num_decoder_layers", "dropout", "batch_first"},
    check_transformer_layers};

}  // namespace attn_test
