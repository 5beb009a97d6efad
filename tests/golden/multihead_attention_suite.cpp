// Golden suite `multihead_attention`: MultiHeadAttention against nn.MultiheadAttention.
#include "golden/backend.hpp"
#include "golden/gradients.hpp"
#include "golden/pytorch.hpp"

namespace attn_test {
namespace {

/// query, key and value as (batch, seq, features); self-attention cases store q only.
template <class T>
struct Inputs {
  Array<T> q, k, v;

  explicit Inputs(const Case& c)
      : q(batched(c.load<T>("q"))),
        k(c.has("k") ? batched(c.load<T>("k")) : q),
        v(c.has("v") ? batched(c.load<T>("v")) : k) {}

  static Array<T> batched(Array<T> x) {
    if (x.shape.size() == 2) x.shape.insert(x.shape.begin(), 1);
    return x;
  }
};

bool averages_weights(const Case& c) {
  return c.attribute<bool>("average_attn_weights").value_or(true);
}

ReferenceOptions read_masks(const Case& c) {
  ReferenceOptions options;
  add_masks(options, c, "attn_mask", "key_padding_mask", c.required<Index>("num_heads"));
  return options;
}

template <class T>
Outputs<T> attend(const ReferenceBackend<T>& backend, const Case& c) {
  Inputs<T> in(c);
  auto heads = load_heads<T>(c, "", c.required<Index>("num_heads"));
  heads.add_zero_attn = c.attribute<bool>("add_zero_attn").value_or(false);
  heads.store = backend.store;
  for (Array<T>* x : {&in.q, &in.k, &in.v, &heads.wq, &heads.wk, &heads.wv, &heads.bq, &heads.bk,
                      &heads.bv, &heads.bias_k, &heads.bias_v, &heads.wo, &heads.bo}) {
    *x = reference_stored(*x, backend.store);
  }
  const auto result = backend.attention(heads, in.q, in.k, in.v, read_masks(c));
  return {
      {"y", reference_stored(result.y, backend.store)},
      {"weights", averages_weights(c) ? reference_average_heads(result.weights) : result.weights}};
}

attn::MultiHeadAttentionOptions module_options(const Case& c) {
  return {.embed_dim = c.required<Index>("embed_dim"),
          .num_heads = c.required<Index>("num_heads"),
          .bias = c.attribute<bool>("bias").value_or(true),
          .kdim = c.attribute<Index>("kdim").value_or(0),
          .vdim = c.attribute<Index>("vdim").value_or(0),
          .add_bias_kv = c.attribute<bool>("add_bias_kv").value_or(false),
          .add_zero_attn = c.attribute<bool>("add_zero_attn").value_or(false)};
}

/// Runs the case as a user would: options by PyTorch's names, load_state_dict, weights per head or
/// averaged.
template <class E>
Outputs<float> attend(const ElementBackend<E>& backend, const Case& c) {
  const Inputs<float> in(c);
  const auto q = in.q.template as<E>(), k = in.k.template as<E>(), v = in.v.template as<E>();
  const attn::MultiHeadAttentionOptions options = module_options(c);
  attn::MultiHeadAttention<E> module(options);
  load_module(module, c, "");

  const LibraryOptions<float> masks(read_masks(c));
  const Index batch = in.q.extent(0), q_len = in.q.extent(1);
  const Index keys = in.k.extent(1) + module.appended_keys();
  Array<E> y({batch, q_len, module.out_dim()});
  Array<float> weights;
  attn::AttentionOptions<float> call = masks.get();
  call.execution = backend.execution();
  if (averages_weights(c)) {
    weights = Array<float>({batch, q_len, keys});
    call.average_weights = weights.view<3>();
  } else {
    weights = Array<float>({batch, options.num_heads, q_len, keys});
    call.weights = weights.view<4>();
  }
  if (c.has("k")) {
    module.forward(q.template view<3>(), k.template view<3>(), v.template view<3>(),
                   y.template view<3>(), call);
  } else {
    module.forward(q.template view<3>(), q.template view<3>(), q.template view<3>(),
                   y.template view<3>(), call);
  }
  return {{"y", y.template as<float>()}, {"weights", weights}};
}

template <class T>
void check_multi_head_gradients(Case& c, attn::Isa isa) {
  Inputs<T> in(c);
  attn::MultiHeadAttention<T> module(module_options(c));
  load_module(module, c, "");
  auto gradients = attn::gradients_of(module);
  const LibraryOptions<T> masks(read_masks(c));
  attn::AttentionOptions<T> options = masks.get();
  options.execution.isa = isa;
  const auto d_y = Inputs<T>::batched(c.load<T>("grad_y"));
  Array<T> y(d_y.shape), d_q(in.q.shape), d_k(in.k.shape), d_v(in.v.shape);
  const auto q = std::as_const(in.q).template view<3>();
  const auto k = c.has("k") ? std::as_const(in.k).template view<3>() : q;
  const auto v = c.has("v") ? std::as_const(in.v).template view<3>() : k;
  attn::MultiHeadAttentionSaved<T> saved;
  attn::forward(module, q, k, v, y.template view<3>(), saved, options);
  attn::backward(module, d_y.template view<3>(), saved,
                 {.d_query = d_q.template view<3>(),
                  .d_key = d_k.template view<3>(),
                  .d_value = d_v.template view<3>()},
                 gradients, options);
  expect_stored_gradient<T>(c, isa, "grad_q", d_q);
  if (c.has("k")) expect_stored_gradient<T>(c, isa, "grad_k", d_k);
  if (c.has("v")) expect_stored_gradient<T>(c, isa, "grad_v", d_v);
  expect_parameter_gradients<T>(c, isa, gradients);
}

void check_multihead_attention(Case& c) {
  if (c.attribute<double>("dropout").value_or(0) != 0) throw Unsupported("dropout");
  if (!c.attribute<bool>("batch_first").value_or(true)) throw Unsupported("batch_first = false");
  const auto compose = [&](const auto& backend) { return attend(backend, c); };
  check_outputs(c, compose);
  check_small_outputs<attn::bfloat16>(c, compose);
  check_small_outputs<attn::float16>(c, compose);
  if (!c.has("grad_y")) return;
  check_gradients_in_both(
      [&](auto t, attn::Isa isa) { check_multi_head_gradients<decltype(t)>(c, isa); });
}

}  // namespace

const Suite multihead_attention_suite{
    {"embed_dim", "num_heads", "bias", "kdim", "vdim", "add_bias_kv", "add_zero_attn",
     "average_attn_weights", "self_attention", "dropout", "batch_first"},
    check_multihead_attention};

}  // namespace attn_test
