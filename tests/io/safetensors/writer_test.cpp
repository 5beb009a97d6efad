// Writing safetensors files: exact bytes, order, alignment, round trips, refusals.
#include "attn/io/safetensors/writer.hpp"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attn/core/eigen.hpp"

#include "support/error_of.hpp"
#include "support/files/safetensors_bytes.hpp"
#include "support/files/temp_folder.hpp"

namespace attn {
namespace {

using namespace std::string_literals;
using attn_test::contains;
using attn_test::error_of;
using attn_test::TempFolder;

TEST(SaveSafetensors, WritesTheseBytes) {
  const TempFolder folder;
  const Tensor2<float> w({2, 1}, {1, -2});
  const Tensor1<bool> flag({1}, {true});
  save_safetensors(folder / "a", {{"flag", flag}, {"w", w}}, {{"format", "pt"}});
  std::string header = R"({"__metadata__":{"format":"pt"},)"
                       R"("w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
                       R"("flag":{"dtype":"BOOL","shape":[1],"data_offsets":[8,9]}})";
  header.resize(3 * 64 - 8, ' ');
  EXPECT_EQ(folder.read("a"),
            attn_test::safetensors_file(header, attn_test::bytes_of<float>({1, -2}) + '\1'));
  EXPECT_EQ(folder.number_of_files(), 1u);
}

TEST(SaveSafetensors, OrdersAsTheReferenceDoes) {
  // Verified against the Python package's save_file(), version 0.8.0.
  const Tensor1<double> f64({1});
  const Tensor1<float> f32({1});
  const Tensor1<std::int64_t> i64({1});
  const Tensor1<std::int32_t> i32({1});
  const Tensor1<std::int16_t> i16({1});
  const Tensor1<std::uint8_t> u8({1});
  const Tensor1<bool> flag({1});
  const NamedTensor tensors[] = {{"flag", flag}, {"u8", u8},   {"i16", i16}, {"z", f32},
                                 {"a", f32},     {"i32", i32}, {"f64", f64}, {"i64", i64}};
  std::string text;
  write_safetensors(tensors, {}, [&](std::span<const std::byte> piece) {
    text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  std::size_t last = 0;
  for (const char* name :
       {"\"i64\"", "\"f64\"", "\"a\"", "\"z\"", "\"i32\"", "\"i16\"", "\"u8\"", "\"flag\""}) {
    const std::size_t at = text.find(name);
    ASSERT_NE(at, std::string::npos) << name;
    EXPECT_GT(at, last) << name;
    last = at;
  }
}

TEST(SaveSafetensors, FloatsOf16BitsAndRawBytesComeBackTheSame) {
  const TempFolder folder;
  const Tensor2<float16> half({1, 2}, {float16(1.5f), float16(-65504)});
  const Tensor2<bfloat16> brain({2, 2}, {bfloat16(1), bfloat16(2), bfloat16(3), bfloat16(-1e30f)});
  const float scalar = 0.25f;
  const std::byte codes[] = {std::byte{0x38}, std::byte{0xFF}};
  save_safetensors(folder / "a", {{"half", half},
                                  {"brain", brain.view().transpose(0, 1)},
                                  {"scalar", DType::F32, {}, std::as_bytes(std::span(&scalar, 1))},
                                  {"codes", DType::F8_E4M3, {1, 2}, codes},
                                  {"none", DType::BF16, {0, 3}, {}}});
  const SafetensorsFile file(folder / "a");
  EXPECT_EQ(file.dtype("half"), DType::F16);
  EXPECT_EQ((file.load<double, 2>("half")(0, 1)), -65504.0);
  EXPECT_EQ((file.view<bfloat16, 2>("brain")(1, 0)), 2.0f);
  EXPECT_EQ((file.load<float, 2>("brain")(1, 1)), float(bfloat16(-1e30f)));
  EXPECT_EQ(file.shape("scalar"), std::vector<index_t>{});
  EXPECT_EQ((file.load<float, 1>("scalar")(0)), 0.25f);
  EXPECT_EQ(file.shape("none"), (std::vector<index_t>{0, 3}));
  // A copy of the file, tensor by tensor, has the same bytes.
  std::vector<NamedTensor> tensors;
  for (const std::string& name : file.names()) tensors.push_back(file.tensor(name));
  save_safetensors(folder / "b", tensors);
  EXPECT_EQ(folder.read("a"), folder.read("b"));
}

TEST(SaveSafetensors, RefusesBytesThatDoNotFitTheShape) {
  const std::byte bytes[7] = {};
  EXPECT_EQ(
      error_of<ValueError>([&] {
        NamedTensor("x", DType::F16, {2, 2}, bytes);
      }),
      "[NamedTensor] tensor \"x\" must have the bytes of 4 elements of F16 (2, 2); found 7 bytes.");
  EXPECT_THROW(NamedTensor("x", DType::F16, {3}, bytes), ValueError);
  EXPECT_THROW(NamedTensor("x", DType::U8, {-1}, bytes), ShapeError);
  EXPECT_THROW(NamedTensor("x", DType::U8, {index_t{1} << 62, 4}, bytes), ShapeError);
  EXPECT_NO_THROW(NamedTensor("x", DType::U8, {index_t{1} << 62, 4, 0}, {}));
}

TEST(SaveSafetensors, ComesBackTheSame) {
  const TempFolder folder;
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor4<float> w({2, 1, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  const Tensor1<double> d({3}, {0.1, -inf, 5e-324});
  const Tensor2<std::int64_t> i({1, 2}, {std::numeric_limits<std::int64_t>::min(), -1});
  const Tensor1<std::int32_t> j({1}, {-7});
  const Tensor1<bool> flag({3}, {true, false, true});
  const Tensor2<float> none({4, 0});
  EigenMatrix<float> m(2, 2);
  m << 1, 2, 3, 4;
  Eigen::MatrixXd columns(2, 2);  // column-major
  columns << 1, 2, 3, 4;
  const SafetensorsMetadata metadata{{"quote", "\"\\\n"}, {"accent", "\xC3\xA9"}, {"", ""}};
  const std::string odd = "n\0\xE2\x82\xAC \"q\"\n"s;
  save_safetensors(folder / "a",
                   {{"w", w},
                    {"d", d},
                    {"i", i},
                    {"j", j},
                    {"flag", flag},
                    {"none", none},
                    {odd, m},
                    {"columns", columns},
                    {"t", w.view().transpose(0, 3)}},
                   metadata);
  const SafetensorsFile file(folder / "a");
  EXPECT_EQ(file.metadata(), metadata);
  EXPECT_EQ(file.names().size(), 9u);
  const auto same = [](const auto& a, const auto& b) {
    return a.shape() == b.shape() &&
           std::equal(a.elements().begin(), a.elements().end(), b.elements().begin());
  };
  EXPECT_TRUE(same(file.load<float, 4>("w"), w));
  EXPECT_TRUE(same(file.load<double, 1>("d"), d));
  EXPECT_TRUE(same(file.load<std::int64_t, 2>("i"), i));
  EXPECT_TRUE(same(file.load<std::int32_t, 1>("j"), j));
  EXPECT_TRUE(same(file.load<bool, 1>("flag"), flag));
  EXPECT_TRUE(same(file.load<float, 2>("none"), none));
  EXPECT_TRUE(same(file.load<float, 2>(odd), Tensor2<float>({2, 2}, {1, 2, 3, 4})));
  EXPECT_TRUE(same(file.load<double, 2>("columns"), Tensor2<double>({2, 2}, {1, 2, 3, 4})));
  EXPECT_TRUE(same(file.load<float, 4>("t"), Tensor4<float>(const_view(w).transpose(0, 3))));
  // Wide types come first, so that every tensor is aligned.
  EXPECT_EQ((file.view<double, 1>("d")(2)), 5e-324);
  EXPECT_EQ((file.view<std::int32_t, 1>("j")(0)), -7);
}

TEST(SaveSafetensors, BeginsDataOnACacheLine) {
  const Tensor1<float> f({1});
  for (std::size_t length = 0; length < 130; ++length) {
    const NamedTensor tensors[] = {{std::string(length, 'n'), f}};
    std::size_t header = 0;
    write_safetensors(tensors, {}, [&](std::span<const std::byte> piece) {
      if (header == 0) header = piece.size();
    });
    EXPECT_EQ(header % 64, 0u);
  }
}

TEST(SaveSafetensors, WritesAnEmptyFile) {
  const TempFolder folder;
  save_safetensors(folder / "a", std::vector<NamedTensor>{});
  EXPECT_TRUE(SafetensorsFile(folder / "a").names().empty());
  EXPECT_EQ(folder.read("a").size(), 64u);
}

TEST(SaveSafetensors, RefusesBeforeItWrites) {
  const TempFolder folder;
  folder.write("a", "old");
  const Tensor1<float> f({1});
  const auto error = [&](std::vector<NamedTensor> tensors,
                         const SafetensorsMetadata& metadata = {}) {
    return error_of<ValueError>([&] { save_safetensors(folder / "a", tensors, metadata); });
  };
  EXPECT_EQ(error({{"b", f}, {"x", f}, {"b", f}}),
            "[save_safetensors] every name must occur once and differ from __metadata__; found "
            "\"b\".");
  EXPECT_TRUE(contains(error({{"__metadata__", f}}), "found \"__metadata__\"."));
  EXPECT_TRUE(contains(error({{"\xFF", f}}), "every name and text must be UTF-8"));
  EXPECT_TRUE(contains(error({{"a", f}}, {{"k", "\xC3"}}), "must be UTF-8"));
  EXPECT_TRUE(contains(error({{std::string(100'000'000, 'n'), f}}), "at most 100000000 bytes"));
  // A view that repeats one element 2^61 times has a shape, but no file can hold it.
  const TensorView2<const float> huge(f.data(), {index_t{1} << 31, index_t{1} << 30}, {0, 0});
  EXPECT_TRUE(contains(error_of<ShapeError>([&] {
                         save_safetensors(folder / "a", {{"h", huge}});
                       }),
                       "the file must be shorter than 2^63 bytes"));
  EXPECT_EQ(folder.read("a"), "old");
  EXPECT_EQ(folder.number_of_files(), 1u);
  EXPECT_TRUE(contains(error_of<IoError>([&] {
                         save_safetensors(folder / "none" / "a", {{"f", f}});
                       }),
                       "none"));
}

}  // namespace
}  // namespace attn
