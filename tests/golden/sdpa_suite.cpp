// Golden suite `sdpa`: scaled_dot_product_attention with every option, against attention in double.
#include "golden/backend.hpp"
#include "golden/gradients.hpp"
#include "golden/sdpa_options.hpp"
#include "support/draws/coded_call.hpp"
#include "support/draws/format_draw.hpp"

namespace attn_test {
namespace {

template <class T>
ReferenceResult<T> attend(const ReferenceBackend<T>& backend, const Case& c,
                          const ReferenceOptions& options) {
  const auto load = [&](const char* name) {
    return reference_stored(c.load<T>(name), backend.store);
  };
  auto result = reference_attention(load("q"), load("k"), load("v"), options, backend.order);
  result.y = reference_stored(result.y, backend.store);
  return result;
}

/// Results of call(options, y), with outputs of the case's shapes; y has elements of E.
template <class E, class Call>
ReferenceResult<float> with_outputs(const Case& c, const ReferenceOptions& reference_options,
                                    attn::Isa isa, Call call) {
  const auto q = c.load<float>("q"), k = c.load<float>("k"), v = c.load<float>("v");
  const Index batch = q.extent(0), heads = q.extent(1), q_len = q.extent(2), kv_len = k.extent(2);
  Array<E> y({batch, heads, q_len, v.extent(3)});
  ReferenceResult<float> result{
      {}, Array<float>({batch, heads, q_len, kv_len}), Array<float>({batch, heads, q_len})};
  const LibraryOptions<float> library(reference_options);
  attn::AttentionOptions<float> options = library.get();
  options.weights = result.weights.view<4>();
  options.lse = result.lse.view<3>();
  options.execution.isa = isa;
  call(options, y.template view<4>());
  result.y = y.template as<float>();
  return result;
}

template <class E>
ReferenceResult<float> attend(const ElementBackend<E>& backend, const Case& c,
                              const ReferenceOptions& reference_options) {
  const auto load = [&](const char* name) { return c.load<float>(name).template as<E>(); };
  const Array<E> q = load("q"), k = load("k"), v = load("v");
  return with_outputs<E>(c, reference_options, backend.isa, [&](const auto& options, auto y) {
    attn::scaled_dot_product_attention(q.template view<4>(), k.template view<4>(),
                                       v.template view<4>(), y, options);
  });
}

/// The manifest's sizes must agree with the tensors' shapes.
void check_extents(const Case& c) {
  const std::tuple<const char*, const char*, std::size_t> extents[] = {
      {"batch", "q", 0}, {"num_heads", "q", 1}, {"num_kv_heads", "k", 1}, {"seq_q", "q", 2},
      {"seq_k", "k", 2}, {"head_dim", "q", 3},  {"head_dim_v", "v", 3}};
  for (const auto& [attribute, tensor, axis] : extents) {
    const Index found = c.load<float>(tensor).extent(axis);
    if (c.attribute<Index>(attribute).value_or(found) == found) continue;
    throw std::runtime_error(std::string("attribute '") + attribute + "' is not extent " +
                             std::to_string(axis) + " of " + tensor);
  }
}

/// Compares d_q, d_k and d_v, which are stored as double results rounded to float.
template <class T>
void check_sdpa_gradients(Case& c, const ReferenceOptions& reference_options, attn::Isa isa) {
  const auto q = c.load<T>("q"), k = c.load<T>("k"), v = c.load<T>("v"), d_y = c.load<T>("grad_y");
  Array<T> y(d_y.shape), lse({q.extent(0), q.extent(1), q.extent(2)}), d_q(q.shape), d_k(k.shape),
      d_v(v.shape);
  const LibraryOptions<T> library(reference_options);
  attn::AttentionOptions<T> options = library.get();
  options.lse = lse.template view<3>();
  options.execution.isa = isa;
  const auto qv = q.template view<4>(), kv = k.template view<4>(), vv = v.template view<4>();
  attn::scaled_dot_product_attention(qv, kv, vv, y.template view<4>(), options);
  attn::scaled_dot_product_attention_backward(
      d_y.template view<4>(), qv, kv, vv, y.template view<4>(), lse.template view<3>(),
      d_q.template view<4>(), d_k.template view<4>(), d_v.template view<4>(), options);
  // Stored numbers are rounded to float; in float, rounding of sums is added.
  const double within = sizeof(T) == 8 ? 1e-7 : 1e-5;
  expect_stored_gradient<T>(c, isa, "grad_q", d_q, within);
  expect_stored_gradient<T>(c, isa, "grad_k", d_k, within);
  expect_stored_gradient<T>(c, isa, "grad_v", d_v, within);
}

template <class Result>
auto outputs_of(const Result& result) {
  using T = typename decltype(result.y.data)::value_type;
  return Outputs<T>{{"y", result.y}, {"weights", result.weights}, {"lse", result.lse}};
}

/// Compares the outputs of attend(isa) with the case: within twice the error of the naive formula
/// on the values that q, k and v store, plus `of_y_in_pairs` for y if pairs are multiplied.
template <class Attend>
void check_rounded(Case& c, const ReferenceOptions& options, const Array<float>& q,
                   const Array<float>& k, const Array<float>& v,
                   const ReferenceOptions& rounded_options, std::string_view what, Attend attend,
                   double of_y_in_pairs = 0) {
  const auto exact = outputs_of(
      reference_attention(c.load<double>("q"), c.load<double>("k"), c.load<double>("v"), options));
  std::map<Order, Outputs<float>> naive;
  for (Order order : kOrders) {
    naive[order] = outputs_of(reference_attention(q, k, v, rounded_options, order));
  }
  for (attn::Isa isa : extended_isas()) {
    for (const auto& output : outputs_of(attend(isa))) {
      const std::string& name = output.first;
      const Array<double>& e = exact.at(name);
      const double bound = twice_naive([&](Order order) { return naive[order].at(name); }, e) +
                           (name == "y" && attn::multiplies_pairs(isa) ? of_y_in_pairs : 0);
      c.expect(difference(output.second, e, bound, isa, name + " of " + std::string(what)));
      if (!c.has(name)) continue;
      const auto stored = c.load<float>(name);
      c.expect(difference(output.second, stored, bound + epsilon<float> / 2 * max_abs(stored), isa,
                          name + " of " + std::string(what) + " (stored)"));
    }
  }
}

/// Float queries with a cache of another element.
void check_cache(Case& c, const ReferenceOptions& options, attn::DType element) {
  const auto q = c.load<float>("q"), k = c.load<float>("k"), v = c.load<float>("v");
  attn::KvCache<float> cache({.batch = k.extent(0),
                              .num_kv_heads = k.extent(1),
                              .capacity = k.extent(2),
                              .head_dim = k.extent(3),
                              .head_dim_v = v.extent(3),
                              .element = element});
  cache.append(k.view<4>(), v.view<4>());
  const auto [held_k, held_v] = held(cache);
  check_rounded(c, options, q, held_k, held_v, options,
                "a cache in " + std::string(attn::name(element)), [&](attn::Isa isa) {
                  return with_outputs<float>(c, options, isa, [&](const auto& call, auto y) {
                    attn::scaled_dot_product_attention(q.view<4>(), cache, y, call);
                  });
                });
}

/// q and k quantised to 8 bits; few queries are exact.
void check_codes(Case& c, const ReferenceOptions& options) {
  const auto q = c.load<float>("q"), k = c.load<float>("k"), v = c.load<float>("v");
  const CodedCall coded(q, k, v, options);
  // Weights and values are rounded to bfloat16, by 2^-8 each.
  check_rounded(
      c, options, coded.q.as<float>(), coded.k.as<float>(), v, coded.options, "codes",
      [&](attn::Isa isa) {
        return with_outputs<float>(c, options, isa, [&](auto call, auto y) {
          call.precision = attn::AttentionPrecision::int8;
          attn::scaled_dot_product_attention(q.view<4>(), k.view<4>(), v.view<4>(), y, call);
        });
      },
      0x1p-7 * max_abs(v));
}

void check_sdpa(Case& c) {
  check_extents(c);
  const ReferenceOptions options = sdpa_options(c);
  const auto compose = [&](const auto& backend) { return outputs_of(attend(backend, c, options)); };
  check_outputs(c, compose, {.as_exact = true});
  check_small_outputs<attn::bfloat16>(c, compose, {{"y", 0x1p-8 * max_abs(c.load<float>("v"))}});
  check_small_outputs<attn::float16>(c, compose);
  for (const auto element : {attn::DType::BF16, attn::DType::F16, attn::DType::I8}) {
    check_cache(c, options, element);
  }
  check_codes(c, options);
  if (!c.has("grad_y")) return;
  check_gradients_in_both(
      [&](auto t, attn::Isa isa) { check_sdpa_gradients<decltype(t)>(c, options, isa); });
}

}  // namespace

const Suite sdpa_suite{{"batch", "num_heads", "num_kv_heads", "seq_q", "seq_k", "head_dim",
                        "head_dim_v", "scale", "causal", "window", "softcap"},
                       check_sdpa};

}  // namespace attn_test
