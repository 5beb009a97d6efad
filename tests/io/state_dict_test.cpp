// State dicts with a small module: loading by name, prefixes, renaming; errors change nothing.
#include "attn/io/state_dict.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/files/safetensors_bytes.hpp"
#include "support/files/temp_folder.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::ExactBytes;
using attn_test::TempFolder;

/// An attention-like module: a packed weight, and a bias that options may leave out.
template <class T>
struct Projection {
  Tensor2<T> in_proj_weight{{3, 2}};
  Tensor1<T> in_proj_bias;
  Tensor1<bool> enabled{{1}};

  template <class F>
  void visit_parameters(F&& f) {
    visit(*this, f);
  }
  template <class F>
  void visit_parameters(F&& f) const {
    visit(*this, f);
  }

 private:
  template <class Self, class F>
  static void visit(Self& self, F&& f) {
    f("in_proj_weight", self.in_proj_weight.view());
    if (self.in_proj_bias) f("in_proj_bias", self.in_proj_bias.view());
    f("enabled", self.enabled.view());
  }
};

/// A module inside a module, whose names follow "self_attn.".
struct Layer {
  Projection<float> attention;
  Tensor1<float> scale{{2}};

  template <class F>
  void visit_parameters(F&& f) {
    attention.visit_parameters(
        [&](std::string_view name, auto view) { f("self_attn." + std::string(name), view); });
    f("scale", scale.view());
  }
};

/// One or two vectors of one element.
struct One {
  Tensor1<float> a{{1}};

  void visit_parameters(auto&& f) { f("a", a.view()); }
};

template <class B>
struct Two {
  Tensor1<float> a{{1}};
  Tensor1<B> b{{1}};

  void visit_parameters(auto&& f) {
    f("a", a.view());
    f("b", b.view());
  }
};

struct NotAModule {};

static_assert(ParameterModule<Projection<float>> && ParameterModule<const Projection<float>>);
static_assert(ParameterModule<Layer> && !ParameterModule<const Layer>);
static_assert(!ParameterModule<NotAModule>);

Projection<float> example() {
  Projection<float> module;
  module.in_proj_weight = Tensor2<float>({3, 2}, {1, 2, 3, 4, 5, 6});
  module.in_proj_bias = Tensor1<float>({3}, {7, 8, 9});
  module.enabled.fill(true);
  return module;
}

template <class T, int Rank>
std::vector<T> elements_of(const Tensor<T, Rank>& tensor) {
  return {tensor.elements().begin(), tensor.elements().end()};
}

TEST(StateDict, ListsParametersInOrder) {
  const Projection<float> module = example();
  const std::vector<NamedTensor> tensors = state_dict(module, {.prefix = "m."});
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].name(), "m.in_proj_weight");
  EXPECT_EQ(tensors[1].name(), "m.in_proj_bias");
  EXPECT_EQ(tensors[2].dtype(), DType::BOOL);
  EXPECT_EQ((tensors[0].view<float, 2>().data()), module.in_proj_weight.data());
}

TEST(StateDict, ComesBackTheSame) {
  const TempFolder folder;
  save_state_dict(folder / "a", example(), {.metadata = {{"format", "pt"}}});
  Projection<double> module;
  module.in_proj_bias = Tensor1<double>({3});
  const LoadReport report = load_state_dict(module, SafetensorsFile(folder / "a"));
  EXPECT_EQ(elements_of(module.in_proj_weight), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(elements_of(module.in_proj_bias), (std::vector<double>{7, 8, 9}));
  EXPECT_TRUE(module.enabled(0));
  EXPECT_EQ(report.loaded, (std::vector<std::string>{"in_proj_weight", "in_proj_bias", "enabled"}));
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
}

/// A file of F16 zeros; the elements of `ones` are 1.
ExactBytes half_file(std::vector<std::pair<std::string, std::vector<index_t>>> tensors,
                     std::string_view ones = "") {
  std::string header = "{", data;
  for (const auto& [name, shape] : tensors) {
    std::size_t count = 1;
    std::string extents;
    for (index_t extent : shape) {
      count *= static_cast<std::size_t>(extent);
      extents += detail::concat(extents.empty() ? "" : ",", extent);
    }
    const std::size_t begin = data.size();
    for (std::size_t i = 0; i < count; ++i) {
      data += attn_test::bytes_of<std::uint16_t>({std::uint16_t(name == ones ? 0x3C00 : 0)});
    }
    header +=
        detail::concat(header.size() > 1 ? "," : "", "\"", name, R"(":{"dtype":"F16","shape":[)",
                       extents, R"(],"data_offsets":[)", begin, ",", data.size(), "]}");
  }
  return ExactBytes(attn_test::safetensors_file(header + "}", data));
}

TEST(StateDict, LoadsUnderAPrefixOnly) {
  const ExactBytes bytes =
      half_file({{"embeddings", {5}}, {"layer.0.a", {1}}, {"layer.1.a", {1}}}, "layer.1.a");
  const SafetensorsFile file(bytes.span());
  One module;
  const LoadReport report = load_state_dict(module, file, {.prefix = "layer.1."});
  EXPECT_EQ(module.a(0), 1.0f);
  EXPECT_EQ(report.loaded, std::vector<std::string>{"layer.1.a"});
  EXPECT_TRUE(report.unexpected.empty());
  EXPECT_THROW(load_state_dict(module, file), ValueError);
}

TEST(StateDict, RenamesAndNests) {
  const ExactBytes bytes = half_file(
      {{"attention.weight", {3, 2}}, {"attention.bias", {3}}, {"gamma", {2}}}, "attention.bias");
  const SafetensorsFile file(bytes.span());
  Layer layer;
  layer.attention.in_proj_bias = Tensor1<float>({3});
  const LoadReport report = load_state_dict(
      layer, file, {.strict = false, .rename = [](std::string_view name) -> std::string {
                      if (name == "self_attn.in_proj_weight") return "attention.weight";
                      if (name == "self_attn.in_proj_bias") return "attention.bias";
                      return name == "scale" ? "gamma" : std::string(name);
                    }});
  EXPECT_EQ(report.loaded,
            (std::vector<std::string>{"attention.weight", "attention.bias", "gamma"}));
  EXPECT_EQ(report.missing, std::vector<std::string>{"self_attn.enabled"});
  EXPECT_EQ(elements_of(layer.attention.in_proj_bias), (std::vector<float>{1, 1, 1}));
}

TEST(StateDict, NamesWhatIsMissingAndUnexpected) {
  const ExactBytes bytes = half_file({{"in_proj_weight", {3, 2}}, {"extra", {1}}, {"more", {1}}});
  const SafetensorsFile file(bytes.span(), "model.safetensors");
  Projection<float> module = example();
  EXPECT_EQ(error_of<ValueError>([&] { load_state_dict(module, file); }),
            "[load_state_dict] \"model.safetensors\" must hold the module's tensors and no others; "
            "found 2 missing (\"in_proj_bias\", \"enabled\") and 2 unexpected (\"extra\", "
            "\"more\").");
  EXPECT_EQ(elements_of(module.in_proj_weight), (std::vector<float>{1, 2, 3, 4, 5, 6}));

  const LoadReport report = load_state_dict(module, file, {.strict = false});
  EXPECT_EQ(report.loaded, std::vector<std::string>{"in_proj_weight"});
  EXPECT_EQ(report.missing, (std::vector<std::string>{"in_proj_bias", "enabled"}));
  EXPECT_EQ(report.unexpected, (std::vector<std::string>{"extra", "more"}));
  EXPECT_EQ(elements_of(module.in_proj_weight), std::vector<float>(6, 0));
  EXPECT_EQ(elements_of(module.in_proj_bias), (std::vector<float>{7, 8, 9}));  // left as it was
}

TEST(StateDict, WritesNothingWhereOneTensorDoesNotFit) {
  // The weight comes first and would fit.
  for (const bool strict : {true, false}) {
    Projection<float> module = example();
    const ExactBytes bytes = half_file({{"in_proj_weight", {3, 2}}, {"in_proj_bias", {1, 3}}});
    const SafetensorsFile file(bytes.span(), "f");
    EXPECT_TRUE(
        contains(error_of<ShapeError>([&] { load_state_dict(module, file, {.strict = strict}); }),
                 "\"f\": tensor \"in_proj_bias\" must have shape (3); found (1, 3)."));
    EXPECT_EQ(elements_of(module.in_proj_weight), (std::vector<float>{1, 2, 3, 4, 5, 6}));

    const ExactBytes no_bool =
        half_file({{"in_proj_weight", {3, 2}}, {"in_proj_bias", {3}}, {"enabled", {1}}});
    const SafetensorsFile other(no_bool.span(), "f");
    EXPECT_TRUE(
        contains(error_of<DTypeError>([&] { load_state_dict(module, other, {.strict = strict}); }),
                 "tensor \"enabled\" must hold BOOL to be loaded as BOOL; found F16."));
    EXPECT_EQ(elements_of(module.in_proj_weight), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  }
}

TEST(StateDict, ChecksValuesBeforeItWrites) {
  Two<bool> module;
  const ExactBytes bytes(
      attn_test::safetensors_file(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                  R"("b":{"dtype":"BOOL","shape":[1],"data_offsets":[4,5]}})",
                                  attn_test::bytes_of<float>({1}) + '\2'));
  EXPECT_THROW(load_state_dict(module, SafetensorsFile(bytes.span())), ValueError);
  EXPECT_EQ(module.a(0), 0.0f);
}

TEST(StateDict, LoadsTiedNamesTwice) {
  Two<float> module;
  const ExactBytes bytes = half_file({{"tied", {1}}}, "tied");
  load_state_dict(module, SafetensorsFile(bytes.span()),
                  {.rename = [](std::string_view) { return std::string("tied"); }});
  EXPECT_EQ(module.a(0) + module.b(0), 2.0f);
}

/// A matrix and a vector.
struct Stored {
  Stored() {
    const Shape<2> matrix{2, 3};
    w = Tensor2<float>(matrix);
    b = Tensor1<float>({4});
  }
  Tensor2<float> w;
  Tensor1<float> b;

  template <class F>
  void visit_parameters(F&& f) {
    f("w", w.view());
    f("b", b.view());
  }
};

TEST(LoadStateDict, TensorsThatTheFileMayLack) {
  const TempFolder folder;
  const Tensor2<float> w({2, 3}, {1, 2, 3, 4, 5, 6});
  const NamedTensor tensors[] = {{"w", w}};
  save_safetensors(folder / "a.safetensors", tensors);
  const SafetensorsFile file(folder / "a.safetensors");
  Stored module;
  module.b.fill(7);
  EXPECT_TRUE(
      contains(error_of<ValueError>([&] { load_state_dict(module, file, {.optional = {"w"}}); }),
               "1 missing (\"b\")"));
  const LoadReport report = load_state_dict(module, file, {.optional = {"b"}});
  EXPECT_EQ(report.loaded, (std::vector<std::string>{"w"}));
  EXPECT_EQ(module.w(1, 2), 6);
  EXPECT_EQ(module.b(0), 7);
}

TEST(LoadStateDict, TensorsStoredInOtherWays) {
  const TempFolder folder;
  const Tensor2<float> w({3, 2}, {1, 2, 3, 4, 5, 6});
  const Tensor3<float> b({1, 2, 2}, {7, 8, 9, 10});
  const NamedTensor tensors[] = {{"p.w", w}, {"p.x.b", b}};
  save_safetensors(folder / "a.safetensors", tensors);
  const SafetensorsFile file(folder / "a.safetensors");
  LoadOptions options{.prefix = "p.",
                      .rename = rename_by({{"b", "x.b"}}),
                      .transpose = {"w"},
                      .reshape = {"x."},
                      .add_one = {".b"}};
  Stored module;
  load_state_dict(module, file, options);
  EXPECT_EQ(module.w(0, 1), 3);
  EXPECT_EQ(module.w(1, 2), 6);
  EXPECT_EQ(module.b(0), 8);
  EXPECT_EQ(module.b(3), 11);
  // Options apply only to the named tensors, and nothing is written before all tensors are checked.
  Stored other;
  options.transpose = {"p.w"};
  EXPECT_TRUE(contains(error_of<ShapeError>([&] { load_state_dict(other, file, options); }),
                       "must have shape (2, 3); found (3, 2)"));
  options.transpose = {"w"};
  options.reshape = {"b"};
  EXPECT_TRUE(contains(error_of<ShapeError>([&] { load_state_dict(other, file, options); }),
                       "must have shape (4); found (1, 2, 2)"));
  options.reshape = {".b"};
  other.b = Tensor1<float>({5});
  EXPECT_TRUE(contains(error_of<ShapeError>([&] { load_state_dict(other, file, options); }),
                       "tensor \"p.x.b\" must have the elements of (5); found (1, 2, 2)"));
  EXPECT_EQ(other.w(1, 2), 0);
}

TEST(RenameBy, PairsApplyInOrder) {
  const auto rename = rename_by({{"a.", "b."}, {"b.", "c."}, {"x", ""}});
  EXPECT_EQ(rename("a.b.x.x"), "c.b..x");
  EXPECT_EQ(rename("other"), "other");
}

}  // namespace
}  // namespace attn
