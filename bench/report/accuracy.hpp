// The row `accuracy`: errors of attn and of the naive float formula against attention in double.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

#include "golden/sdpa_options.hpp"
#include "support/check.hpp"
#include "support/isas.hpp"

namespace bench {

using attn::index_t;

struct Accuracy {
  Errors golden, large_logits;
  int cases = 0, skipped = 0;

  /// The worse of the two by the ratio to the error of the naive formula.
  const Errors& worse() const {
    return golden.ratio() > large_logits.ratio() ? golden : large_logits;
  }
};

namespace detail {

/// Adds the errors of one problem on every instruction set that the machine has.
inline void add_attention(Errors& errors, const attn_test::Array<float>& q,
                          const attn_test::Array<float>& k, const attn_test::Array<float>& v,
                          const attn_test::ReferenceOptions& options, const std::string& what) {
  const auto exact =
      attn_test::reference_attention(q.as<double>(), k.as<double>(), v.as<double>(), options);
  const auto naive = attn_test::reference_attention(q, k, v, options);
  const attn_test::LibraryOptions<float> library(options);
  for (attn::Isa isa : attn_test::available_isas()) {
    attn::AttentionOptions<float> with_isa = library.get();
    with_isa.execution.isa = isa;
    const auto found =
        attn::scaled_dot_product_attention(q.view<4>(), k.view<4>(), v.view<4>(), with_isa);
    errors.add(attn_test::to_array(found), naive.y, exact.y,
               what + " on " + std::string(attn::name(isa)));
  }
}

/// Scores up to 50 in magnitude, where e^x of a float score is off by up to 50 ULP, for any
/// formula.
inline void add_large_logits(Errors& errors, index_t q_len, index_t kv_len, index_t dim) {
  const auto array = [](const attn::Shape<4>& shape, std::uint64_t seed) {
    return attn_test::to_array(random_tensor<float, 4>(shape, seed));
  };
  const auto q = array({1, 1, q_len, dim}, 1), k = array({1, 1, kv_len, dim}, 2);
  const auto v = array({1, 1, kv_len, dim}, 3);
  double most = 0;
  for (index_t i = 0; i < q_len; ++i) {
    for (index_t j = 0; j < kv_len; ++j) {
      double product = 0;
      for (index_t d = 0; d < dim; ++d) product += double{q(0, 0, i, d)} * double{k(0, 0, j, d)};
      most = std::max(most, std::abs(product));
    }
  }
  add_attention(errors, q, k, v, {.scale = 50 / most},
                std::to_string(q_len) + " queries of " + std::to_string(dim));
}

}  // namespace detail

/// Measures the golden suite `sdpa` in `folder`, and random problems with large logits on every
/// path: one query, a few, many. Throws if the suite cannot be read.
inline Accuracy measure_accuracy(const std::filesystem::path& folder) {
  Accuracy result;
  std::ifstream stream(folder / "sdpa.json");
  if (!stream) throw std::runtime_error("no golden cases in " + folder.string());
  const auto json = nlohmann::ordered_json::parse(stream);
  const attn::SafetensorsFile file(folder / "sdpa.safetensors");
  for (const auto& [name, attributes] : json.at("cases").items()) {
    const attn_test::Case c(name, attributes, file);
    try {
      const attn_test::ReferenceOptions options = attn_test::sdpa_options(c);
      detail::add_attention(result.golden, c.load<float>("q"), c.load<float>("k"),
                            c.load<float>("v"), options, name);
      ++result.cases;
    } catch (const attn_test::Unsupported&) {
      ++result.skipped;
    }
  }
  for (index_t q_len : {1, 3, 8, 16, 70}) {
    for (index_t dim : {64, 80, 128})
      detail::add_large_logits(result.large_logits, q_len, 600, dim);
  }
  return result;
}

}  // namespace bench
