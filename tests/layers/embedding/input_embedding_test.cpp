// InputEmbedding: words, positions, token types, scale and norm against loops; bad ids.
#include "attn/layers/embedding/input_embedding.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attn/layers/embedding/input_embedding_backward.hpp"

#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/references/reference_transformer.hpp"

namespace attn {
namespace {

using attn_test::all_are;
using attn_test::Array;
using attn_test::available_isas;
using attn_test::difference;
using attn_test::error_of;
using attn_test::Order;
using attn_test::Random;
using attn_test::to_array;
using attn_test::Wider;

template <class T>
class InputEmbeddingTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(InputEmbeddingTest, Types);

TYPED_TEST(InputEmbeddingTest, RandomModules) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < attn_test::draws(60); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    InputEmbeddingOptions o{.vocab_size = random.integer(1, 9),
                            .d_model = random.integer(1, 20),
                            .positions = random.pick<Positions>(
                                {Positions::none, Positions::sinusoidal, Positions::learned}),
                            .max_positions = 12,
                            .num_token_types = random.pick<index_t>({0, 2}),
                            .scale = random.chance(0.5),
                            .norm = random.chance(0.5)};
    if (o.positions == Positions::learned) o.position_offset = random.integer(0, 2);
    InputEmbedding<T> module(o);
    attn_test::randomize(module, random);
    Tensor2<std::int32_t> ids({random.integer(1, 3), random.integer(1, 6)});
    Tensor2<index_t> positions(ids.shape()), types(ids.shape());
    const index_t first = random.integer(0, 6);
    const bool given = random.chance(0.5), typed = o.num_token_types > 0 && random.chance(0.5);
    for (index_t i = 0; i < ids.size(); ++i) {
      ids.data()[i] = static_cast<std::int32_t>(random.integer(0, o.vocab_size - 1));
      positions.data()[i] = given ? random.integer(0, 11) : first + i % ids.extent(1);
      types.data()[i] = typed ? random.integer(0, 1) : 0;
    }
    const auto reference = [&]<class W>(W, Order order) {
      const auto p = attn_test::parameters_of<W>(module);
      Array<W> y({ids.extent(0), ids.extent(1), o.d_model});
      for (index_t b = 0; b < ids.extent(0); ++b) {
        for (index_t i = 0; i < ids.extent(1); ++i) {
          for (index_t x = 0; x < o.d_model; ++x) {
            W value = p.at("words.weight")(ids(b, i), x);
            if (o.scale) value *= std::sqrt(static_cast<W>(o.d_model));
            if (o.positions == Positions::learned) {
              value += p.at("positions.weight")(o.position_offset + positions(b, i), x);
            } else if (o.positions == Positions::sinusoidal) {
              value += static_cast<W>(sinusoidal_positions<T>(12, o.d_model)(positions(b, i), x));
            }
            if (o.num_token_types > 0) value += p.at("token_types.weight")(types(b, i), x);
            y(b, i, x) = value;
          }
        }
      }
      if (!o.norm) return y;
      return attn_test::reference_layer_norm(y, p.at("norm.weight"), p.at("norm.bias"),
                                             o.layer_norm_eps, order);
    };
    const auto exact = reference(Wider<T>{}, Order::forward);
    const double bound = attn_test::module_bound<T>(reference, exact);
    for (Isa isa : available_isas()) {
      InputEmbeddingCall call{.first_position = first, .execution = {.isa = isa}};
      if (given) call.position_ids = positions;
      if (typed) call.token_type_ids = types;
      ASSERT_EQ(difference(to_array(module(ids, call)), exact, bound, isa), "");
    }
  }
}

TEST(InputEmbedding, ParametersAreWhatIsLearned) {
  const auto names = [](const InputEmbeddingOptions& options) {
    return attn_test::names_and_shapes_of(InputEmbedding<float>(options));
  };
  EXPECT_EQ(
      names({.vocab_size = 5,
             .d_model = 4,
             .positions = Positions::learned,
             .max_positions = 7,
             .num_token_types = 2,
             .norm = true}),
      (std::vector<std::string>{"words.weight(5, 4)", "positions.weight(7, 4)",
                                "token_types.weight(2, 4)", "norm.weight(4)", "norm.bias(4)"}));
  EXPECT_EQ(
      names(
          {.vocab_size = 5, .d_model = 4, .positions = Positions::sinusoidal, .max_positions = 7}),
      (std::vector<std::string>{"words.weight(5, 4)"}));
}

TEST(InputEmbeddingErrors, IdsAndPositions) {
  const InputEmbedding<float> module({.vocab_size = 5,
                                      .d_model = 4,
                                      .positions = Positions::learned,
                                      .max_positions = 3,
                                      .num_token_types = 2});
  const Tensor2<int> ids({1, 3}), bad({1, 3}, {0, 5, 0}), long_ids({1, 4});
  const Tensor2<index_t> positions({1, 3}, {0, 1, 3}), types({1, 3}, {0, 1, 2}), few({1, 2});
  Tensor3<float> y({1, 3, 4});
  y.fill(7);
  const auto error = [&](const auto& of, const InputEmbeddingCall& call) {
    return error_of<ValueError>([&] { module.forward(of, y, call); });
  };
  EXPECT_EQ(error(bad, {}), "[InputEmbedding] ids(0, 1) must lie in 0 .. 4; found 5.");
  EXPECT_EQ(error(ids, {.first_position = 1}),
            "[InputEmbedding] positions must lie in 0 .. 2; found 1 and 2 after it.");
  constexpr index_t far = std::numeric_limits<index_t>::max();
  EXPECT_EQ(
      error(ids, {.first_position = far}),
      "[InputEmbedding] positions must lie in 0 .. 2; found 9223372036854775807 and 2 after it.");
  EXPECT_EQ(error(ids, {.position_ids = positions}),
            "[InputEmbedding] position_ids(0, 2) must lie in 0 .. 2; found 3.");
  EXPECT_EQ(error(ids, {.token_type_ids = types}),
            "[InputEmbedding] token_type_ids(0, 2) must lie in 0 .. 1; found 2.");
  EXPECT_EQ(error_of<ShapeError>([&] { module.forward(ids, y, {.position_ids = few}); }),
            "[InputEmbedding] position_ids must have shape (1, 3); found (1, 2).");
  const InputEmbeddingOptions no_table{
      .vocab_size = 5, .d_model = 4, .positions = Positions::sinusoidal};
  EXPECT_EQ(error_of<ValueError>([&] { InputEmbedding<float>{no_table}; }),
            "[InputEmbedding] max_positions must be at least 1 with positions; found 0.");
  const InputEmbeddingOptions offset{
      .vocab_size = 5, .d_model = 4, .positions = Positions::none, .position_offset = 2};
  EXPECT_EQ(error_of<ValueError>([&] { InputEmbedding<float>{offset}; }),
            "[InputEmbedding] position_offset must be 0 without positions; found 2.");
  EXPECT_EQ(
      error_of<ValueError>([&] { InputEmbedding<float>{InputEmbeddingOptions{.d_model = 4}}; }),
      "[Embedding] num_embeddings must be at least 1; found 0.");
  EXPECT_EQ(error_of<ShapeError>([&] { module.forward(long_ids, y); }),
            "[InputEmbedding] out must have shape (1, 4, 4); found (1, 3, 4).");
  const InputEmbedding<float> normed({.vocab_size = 5, .d_model = 3, .norm = true});
  EXPECT_EQ(error_of<ShapeError>([&] {
              normed.forward(ids, y.view().transpose(1, 2).slice(1, 0, 3).slice(2, 0, 3));
            }),
            "[InputEmbedding] out must have innermost stride 1 with a norm (these are the "
            "strides); found (12, 1, 4).");
  EXPECT_TRUE(all_are(y, 7));
}

TEST(InputEmbeddingErrors, SequencesFarAway) {
  const InputEmbedding<float> module(
      {.vocab_size = 5, .d_model = 4, .positions = Positions::learned, .max_positions = 3});
  const Tensor2<int> ids({1, 3});
  for (const index_t start : {std::numeric_limits<index_t>::min(), index_t{-1}, index_t{4}}) {
    const Tensor1<index_t> starts({3}, {0, start, 3});
    EXPECT_EQ(
        error_of<ValueError>([&] { module(ids, {.cu_seqlens = starts}); }),
        "[InputEmbedding] cu_seqlens(1) must lie in 0 .. 3; found " + std::to_string(start) + ".");
  }
}

// transformers' create_position_ids_from_input_ids(): padding has the position row of its id, other
// tokens count from the next row.
TEST(InputEmbedding, PositionsOfRobertaFollowTheIds) {
  const InputEmbeddingOptions options{.vocab_size = 9,
                                      .d_model = 1,
                                      .positions = Positions::learned,
                                      .max_positions = 8,
                                      .position_offset = 2,
                                      .skip_padding = true};
  InputEmbedding<float> layer(options);
  for (index_t row = 0; row < 10; ++row) layer.positions.weight(row, 0) = static_cast<float>(row);
  const auto rows = [&](const std::vector<int>& ids, const InputEmbeddingCall& call = {}) {
    const Tensor3<float> out =
        layer(TensorView2<const int>(ids.data(), {1, std::ssize(ids)}), call);
    return std::vector<float>(out.data(), out.data() + out.size());
  };
  EXPECT_EQ(rows({0, 5, 1, 7, 8, 2}), (std::vector<float>{2, 3, 1, 4, 5, 6}));
  EXPECT_EQ(rows({1, 1, 0, 1, 2, 1}), (std::vector<float>{1, 1, 2, 1, 3, 1}));
  const Tensor1<index_t> starts({4}, {0, 3, 3, 6});
  EXPECT_EQ(rows({0, 1, 2, 1, 0, 5}, {.cu_seqlens = starts}),
            (std::vector<float>{2, 1, 3, 1, 2, 3}));
  // Eleven tokens with eight positions; three tokens are padding.
  EXPECT_EQ(rows({0, 1, 2, 1, 0, 5, 6, 7, 8, 8, 1}).back(), 1);
  EXPECT_THROW(rows({0, 0, 2, 0, 0, 5, 6, 7, 8, 8, 1}), ValueError);
  const Tensor2<index_t> named({1, 3}, {-1, -2, 7});
  EXPECT_EQ(rows({3, 4, 5}, {.position_ids = named}), (std::vector<float>{1, 0, 9}));
  const Tensor2<index_t> beyond({1, 3}, {-3, 0, 0});
  EXPECT_EQ(error_of<ValueError>([&] {
              rows({3, 4, 5}, {.position_ids = beyond});
            }),
            "[InputEmbedding] position_ids(0, 0) must lie in -2 .. 7; found -3.");
}

// As M2M100: token 0 has row 2 of the table, padding a row of zeros.
TEST(InputEmbedding, SinusoidalPositionsWithAnOffset) {
  const InputEmbedding<double> module({.vocab_size = 5,
                                       .d_model = 6,
                                       .positions = Positions::sinusoidal,
                                       .max_positions = 4,
                                       .sinusoidal_form = SinusoidalForm::halves_to_base,
                                       .position_offset = 2,
                                       .skip_padding = true});
  const auto table = sinusoidal_positions<double>(6, 6, 10000, SinusoidalForm::halves_to_base);
  const Tensor2<index_t> ids({1, 4}, {3, 1, 4, 1});
  const Tensor3<double> out = module(ids);  // words are 0
  for (index_t x = 0; x < 6; ++x) {
    EXPECT_EQ(out(0, 0, x), table(2, x));
    EXPECT_EQ(out(0, 1, x), 0);
    EXPECT_EQ(out(0, 2, x), table(3, x));
    EXPECT_EQ(out(0, 3, x), 0);
  }
}

TEST(InputEmbedding, PositionsOfRobertaInForwardAndBackward) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(200); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const index_t batch = random.integer(1, 3), seq = random.integer(0, 12),
                  padding = random.integer(0, 2);
    InputEmbedding<double> layer({.vocab_size = 5,
                                  .d_model = 3,
                                  .positions = Positions::learned,
                                  .max_positions = 14,
                                  .position_offset = padding + 1,
                                  .skip_padding = true});
    layer.visit_parameters([&](std::string_view, auto view) {
      for (index_t n = 0; n < view.size(); ++n) view.data()[n] = random.normal();
    });
    Tensor2<int> ids({batch, seq});
    for (int& id : ids.elements()) id = static_cast<int>(random.integer(0, 4));
    Tensor3<double> out({batch, seq, 3});
    InputEmbeddingSaved<double> saved;
    forward(layer, ids, out, saved);
    Tensor2<double> expected({15 + padding, 3});
    for (index_t b = 0; b < batch; ++b) {
      index_t next = padding + 1;
      for (index_t i = 0; i < seq; ++i) {
        const index_t row = ids(b, i) == padding ? padding : next++;
        for (index_t x = 0; x < 3; ++x) {
          EXPECT_EQ(out(b, i, x),
                    layer.words.weight(ids(b, i), x) + layer.positions.weight(row, x));
          expected(row, x) += out(b, i, x);
        }
      }
    }
    InputEmbedding<double> gradients = gradients_of(layer);
    backward(layer, out, saved, gradients);
    for (index_t n = 0; n < expected.size(); ++n)
      EXPECT_EQ(gradients.positions.weight.data()[n], expected.data()[n]);
  }
}

}  // namespace
}  // namespace attn
