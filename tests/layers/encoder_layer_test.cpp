// EncoderLayer: post- and pre-norm with every option against composed references, in place, and by PyTorch's names.
#include "attn/layers/encoder_layer.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/library_options.hpp"
#include "support/random.hpp"
#include "support/reference_layers.hpp"
#include "support/tolerance.hpp"

namespace attn {
namespace {

using attn_test::all_are;
using attn_test::Array;
using attn_test::available_isas;
using attn_test::difference;
using attn_test::error_of;
using attn_test::Index;
using attn_test::max_abs;
using attn_test::Order;
using attn_test::Random;
using attn_test::reference_add;
using attn_test::reference_layer_norm;
using attn_test::reference_linear;
using attn_test::reference_map;
using attn_test::reference_multi_head_attention;
using attn_test::ReferenceOptions;
using attn_test::to_array;
using attn_test::twice_naive;
using attn_test::Wider;

template <class T>
class EncoderLayerTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(EncoderLayerTest, Types);

template <class T>
EncoderLayer<T> random_layer(Random& random, const EncoderLayerOptions& options) {
  EncoderLayer<T> layer(options);
  layer.visit_parameters([&]<int Rank>(std::string_view, TensorView<T, Rank> p) {
    const double scale = Rank == 1 ? 0.5 : 1 / std::sqrt(static_cast<double>(p.extent(Rank - 1)));
    for (index_t i = 0; i < p.size(); ++i) p.data()[i] += static_cast<T>(scale * random.normal());
  });
  return layer;
}

template <class W, class T>
Array<W> reference(EncoderLayer<T>& layer, const EncoderLayerOptions& o, const Array<T>& input,
                   const ReferenceOptions& masks, Order order = Order::forward) {
  const auto parameter = [](const auto& p) {
    return p ? to_array(p).template as<W>() : Array<W>();
  };
  attn_test::ReferenceHeads<W> heads;
  auto& a = layer.self_attn;
  heads.num_heads = o.nhead;
  heads.wq = parameter(a.q_weight()), heads.bq = parameter(a.q_bias());
  heads.wk = parameter(a.k_weight()), heads.bk = parameter(a.k_bias());
  heads.wv = parameter(a.v_weight()), heads.bv = parameter(a.v_bias());
  heads.wo = parameter(a.out_proj().weight), heads.bo = parameter(a.out_proj().bias);
  const auto norm = [&](const LayerNorm<T>& n, const Array<W>& x) {
    return reference_layer_norm(x, parameter(n.weight), parameter(n.bias), o.layer_norm_eps, order);
  };
  const auto attend = [&](const Array<W>& x) {
    return reference_multi_head_attention(heads, x, x, x, masks, order).y;
  };
  const auto feed_forward = [&](const Array<W>& x) {
    const auto& f = layer.feed_forward;
    auto inner = reference_linear(x, parameter(f.linear1.weight), parameter(f.linear1.bias), order);
    inner = reference_map(inner, o.activation == Activation::relu ? attn_test::reference_relu<W>
                                                                  : attn_test::reference_gelu<W>);
    return reference_linear(inner, parameter(f.linear2.weight), parameter(f.linear2.bias), order);
  };
  Array<W> x = input.template as<W>();
  if (o.norm_first) {
    x = reference_add(attend(norm(layer.norm1, x)), x);
    return reference_add(feed_forward(norm(layer.norm2, x)), x);
  }
  x = norm(layer.norm1, reference_add(attend(x), x));
  return norm(layer.norm2, reference_add(feed_forward(x), x));
}

TYPED_TEST(EncoderLayerTest, RandomLayers) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < 40; ++draw) {
    Random random(draw);
    EncoderLayerOptions o;
    o.nhead = random.integer(1, 4);
    o.d_model = o.nhead * random.integer(2, 12);
    o.dim_feedforward = random.integer(1, 70);
    o.activation = random.chance(0.5) ? Activation::relu : Activation::gelu;
    o.layer_norm_eps = random.pick<double>({1e-5, 1e-12});
    o.norm_first = random.chance(0.5);
    o.bias = random.chance(0.7);
    auto layer = random_layer<T>(random, o);
    const auto x = random.array<T>({random.integer(1, 3), random.integer(1, 20), o.d_model});
    ReferenceOptions masks;
    masks.causal = random.chance(0.4);
    if (random.chance(0.5)) {
      masks.masks.push_back(
          {ReferenceOptions::Mask::Kind::drop, random.bits({x.extent(0), 1, 1, x.extent(1)}, 0.3)});
    }
    SCOPED_TRACE(random.trace() + ": " + attn_test::shape_text(x.shape) +
                 (o.norm_first ? " pre" : " post"));
    const auto exact = reference<Wider<T>>(layer, o, x, masks);
    const double bound =
        twice_naive([&](Order order) { return reference<T>(layer, o, x, masks, order); }, exact,
                    std::max(1.0, max_abs(exact)));
    const attn_test::LibraryOptions<T> library(masks);
    for (Isa isa : available_isas()) {
      const MultiHeadAttentionCall<T> call{.mask = library.get().mask, .execution = {.isa = isa}};
      const auto y = to_array(layer(x.template view<3>(), call));
      ASSERT_EQ(difference(y, exact, bound, isa, "y"), "");
      Array<T> in_place = x;
      layer.forward(in_place.template view<3>(), in_place.template view<3>(), call);
      ASSERT_EQ(in_place.data, y.data) << name(isa);
    }
  }
}

TEST(EncoderLayer, ParametersByPyTorchsNames) {
  const EncoderLayer<float> layer({.d_model = 4, .nhead = 2, .dim_feedforward = 6});
  std::vector<std::string> names;
  layer.visit_parameters([&](std::string_view name, auto) { names.emplace_back(name); });
  EXPECT_EQ(names,
            (std::vector<std::string>{
                "self_attn.in_proj_weight", "self_attn.in_proj_bias", "self_attn.out_proj.weight",
                "self_attn.out_proj.bias", "linear1.weight", "linear1.bias", "linear2.weight",
                "linear2.bias", "norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"}));
}

TEST(EncoderLayerErrors, ShapesAndOptions) {
  EXPECT_EQ(error_of<ValueError>([] { EncoderLayer<float>({.d_model = 10, .nhead = 3}); }),
            "[MultiHeadAttention] num_heads must divide embed_dim = 10; found 3.");
  for (const bool norm_first : {false, true}) {
    const EncoderLayer<float> layer(
        {.d_model = 4, .nhead = 2, .dim_feedforward = 6, .norm_first = norm_first});
    const Tensor3<float> x({2, 3, 4}), narrow({2, 3, 5}), empty({2, 0, 4});
    Tensor3<float> y({2, 3, 4}), wrong({2, 4, 4}), none({2, 0, 4});
    y.fill(7), wrong.fill(7);
    EXPECT_THROW(layer.forward(narrow, y), ShapeError);
    EXPECT_THROW(layer.forward(x, wrong), ShapeError);
    EXPECT_THROW(layer.forward(empty, none), ShapeError);
    const Tensor2<bool> mask({3, 4});
    EXPECT_THROW(layer.forward(x, y, {.mask = keep_mask(mask)}), ShapeError);
    EXPECT_TRUE(all_are(y, 7));
    EXPECT_TRUE(all_are(wrong, 7));
  }
}

}  // namespace
}  // namespace attn
