// Reading safetensors files: views without copying, copies with conversion, and refusals.
#include "attn/io/safetensors.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/files/safetensors_bytes.hpp"
#include "support/files/temp_folder.hpp"

namespace attn {
namespace {

using namespace std::string_literals;
using attn_test::bytes_of;
using attn_test::contains;
using attn_test::error_of;
using attn_test::ExactBytes;
using attn_test::safetensors_file;
using attn_test::TempFolder;

/// A file with one tensor "x", whose data begin at a multiple of 64 plus `offset`.
std::string file_of(const std::string& dtype, const std::string& shape, const std::string& data,
                    std::size_t offset = 0) {
  std::string header = R"({"x":{"dtype":")" + dtype + R"(","shape":[)" + shape +
                       R"(],"data_offsets":[0,)" + std::to_string(data.size()) + "]}}";
  while ((8 + header.size()) % 64 != offset) header += ' ';
  return safetensors_file(header, data);
}

template <class T>
std::vector<T> values(const Tensor1<T>& tensor) {
  return {tensor.elements().begin(), tensor.elements().end()};
}

/// load<T, 1> of a file's "x".
template <class T>
std::vector<T> load(const std::string& file) {
  const ExactBytes bytes(file);
  return values(SafetensorsFile(bytes.span()).load<T, 1>("x"));
}

TEST(SafetensorsFile, TellsWhatItHolds) {
  const TempFolder folder;
  const auto path = folder.write("sample.safetensors", attn_test::sample_safetensors());
  const SafetensorsFile file(path);
  EXPECT_EQ(file.file_name(), detail::utf8(path));
  EXPECT_EQ(file.names(),
            (std::vector<std::string>{"bf", "h\xC3\xA9", "ids", "mask", "none", "scalar", "w"}));
  EXPECT_TRUE(file.contains("w"));
  EXPECT_FALSE(file.contains("W"));
  EXPECT_FALSE(file.contains("__metadata__"));
  EXPECT_EQ(file.dtype("bf"), DType::BF16);
  EXPECT_EQ(file.shape("w"), (std::vector<index_t>{2, 3}));
  EXPECT_EQ(file.shape("scalar"), std::vector<index_t>{});
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.bytes("mask").size(), 3u);

  EXPECT_EQ((values(file.load<float, 1>("bf"))),
            (std::vector<float>{1, std::numeric_limits<float>::infinity()}));
  const Tensor2<double> w = file.load<double, 2>("w");
  EXPECT_EQ(w(1, 0), 4.0);
  EXPECT_EQ((file.load<float, 3>("h\xC3\xA9")(0, 0, 2)), 0x1p-24f);
  EXPECT_EQ((values(file.load<std::int64_t, 1>("ids"))),
            (std::vector<std::int64_t>{-1, std::int64_t{1} << 40}));
  EXPECT_EQ((values(file.load<bool, 1>("mask"))), (std::vector<bool>{false, true, true}));
  EXPECT_EQ((values(file.load<float, 1>("scalar"))), std::vector<float>{-0.5f});
  EXPECT_EQ((file.load<float, 2>("none").shape()), (Shape<2>{0, 4}));
}

TEST(SafetensorsFile, NamesTheFileInErrors) {
  const TempFolder folder;
  EXPECT_TRUE(contains(error_of<IoError>([&] { SafetensorsFile file(folder / "none"); }),
                       "[MappedFile] " + detail::quote(detail::utf8(folder / "none"))));
  const auto path = folder.write("bad", "12345678");
  EXPECT_TRUE(
      contains(error_of<IoError>([&] { SafetensorsFile file(path); }),
               "[SafetensorsFile] " + detail::quote(detail::utf8(path)) + ": the header must"));
  EXPECT_TRUE(contains(error_of<IoError>([&] { SafetensorsFile file(folder.write("empty", "")); }),
                       "0 bytes"));
}

TEST(SafetensorsFile, ViewsPointIntoTheBytes) {
  const ExactBytes bytes(file_of("F32", "2,2", bytes_of<float>({1, 2, 3, 4})));
  const SafetensorsFile file(bytes.span());
  const auto view = file.view<float, 2>("x");
  EXPECT_EQ(static_cast<const void*>(view.data()), bytes.span().data() + bytes.span().size() - 16);
  EXPECT_EQ(view(1, 0), 3);
  EXPECT_EQ(view.shape(), (Shape<2>{2, 2}));
}

TEST(SafetensorsFile, ViewsOfAMapOutliveMovesOfTheFile) {
  static_assert(std::is_nothrow_move_constructible_v<SafetensorsFile>);
  static_assert(!std::is_copy_constructible_v<SafetensorsFile>);
  const TempFolder folder;
  SafetensorsFile first(folder.write("a", file_of("F64", "2", bytes_of<double>({1, 2}))));
  const auto view = first.view<double, 1>("x");
  const SafetensorsFile second(std::move(first));
  const auto again = second.view<double, 1>("x");
  EXPECT_EQ(view.data(), again.data());
  EXPECT_EQ(static_cast<const void*>(again.data()), second.bytes("x").data());
  EXPECT_EQ(view(1), 2.0);
}

TEST(SafetensorsFile, ViewsScalarsAndEmptyTensors) {
  const ExactBytes scalar(file_of("I32", "", bytes_of<std::int32_t>({7})));
  EXPECT_EQ((SafetensorsFile(scalar.span()).load<std::int32_t, 1>("x")(0)), 7);
  const SafetensorsFile file(scalar.span());
  EXPECT_EQ((file.view<std::int32_t, 1>("x").shape()), Shape<1>{1});
  EXPECT_TRUE(contains(error_of<ShapeError>([&] { (void)file.view<std::int32_t, 2>("x"); }),
                       "must have rank 2; found shape ()."));
  const ExactBytes none(file_of("F32", "3,0", ""));
  const SafetensorsFile empty(none.span());
  EXPECT_EQ((empty.view<float, 2>("x").size()), 0);
}

TEST(SafetensorsFile, RefusesToViewMisalignedData) {
  for (std::size_t offset = 1; offset < 8; ++offset) {
    const ExactBytes bytes(file_of("F64", "1", bytes_of<double>({0.25}), offset));
    const SafetensorsFile file(bytes.span(), "f");
    EXPECT_TRUE(contains(error_of<ValueError>([&] { (void)file.view<double, 1>("x"); }),
                         "[SafetensorsFile::view] \"f\": tensor \"x\" must lie on a multiple of 8 "
                         "bytes to be viewed (load() copies it); found"));
    EXPECT_EQ((file.load<double, 1>("x")(0)), 0.25);
    EXPECT_EQ((file.load<float, 1>("x")(0)), 0.25f);
  }
}

TEST(SafetensorsFile, RefusesOtherTypesAndShapes) {
  const ExactBytes bytes(file_of("F16", "2,3", std::string(12, '\0')));
  const SafetensorsFile file(bytes.span(), "f");
  EXPECT_EQ(error_of<DTypeError>([&] { (void)file.view<float, 2>("x"); }),
            "[SafetensorsFile::view] \"f\": tensor \"x\" must hold F32; found F16.");
  EXPECT_EQ(error_of<DTypeError>([&] { (void)file.load<std::int32_t, 2>("x"); }),
            "[SafetensorsFile::load] \"f\": tensor \"x\" must hold integers to be loaded as I32; "
            "found F16.");
  EXPECT_TRUE(contains(error_of<DTypeError>([&] { (void)file.load<bool, 2>("x"); }),
                       "must hold BOOL to be loaded as BOOL; found F16."));
  EXPECT_EQ(error_of<ShapeError>([&] { (void)file.load<float, 3>("x"); }),
            "[SafetensorsFile::load] \"f\": tensor \"x\" must have rank 3; found shape (2, 3).");
  Tensor2<float> out({3, 2});
  EXPECT_EQ(error_of<ShapeError>([&] { file.load("x", out.view()); }),
            "[SafetensorsFile::load] \"f\": tensor \"x\" must have shape (3, 2); found (2, 3).");
  EXPECT_EQ(error_of<ValueError>([&] { (void)file.load<float, 2>("y"); }),
            "[SafetensorsFile::load] \"f\": tensor \"y\" must exist; found none of that name among "
            "1.");
  EXPECT_THROW((void)file.dtype("y"), ValueError);
  EXPECT_THROW((void)file.shape("y"), ValueError);
  EXPECT_THROW((void)file.bytes("y"), ValueError);
  EXPECT_THROW((void)(file.view<float, 2>("y")), ValueError);

  for (const char* dtype : {"I32", "U32"}) {
    const ExactBytes integers(file_of(dtype, "1", "\0\0\0\0"s));
    EXPECT_THROW(((void)SafetensorsFile(integers.span()).load<float, 1>("x")), DTypeError);
  }
  for (const char* dtype : {"C64", "F8_E4M3", "BOOL"}) {
    const ExactBytes other(file_of(dtype, dtype == "C64"s ? "1" : "8", std::string(8, '\0')));
    EXPECT_THROW(((void)SafetensorsFile(other.span()).load<float, 1>("x")), DTypeError);
    EXPECT_THROW(((void)SafetensorsFile(other.span()).load<std::int8_t, 1>("x")), DTypeError);
  }
}

TEST(SafetensorsFile, ConvertsFloats) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  const std::string doubles =
      file_of("F64", "5", bytes_of<double>({1.0 / 3, 1e300, -inf, -0.0, 1}));
  EXPECT_EQ(load<double>(doubles), (std::vector<double>{1.0 / 3, 1e300, -inf, -0.0, 1}));
  EXPECT_EQ(load<float>(doubles), (std::vector<float>{1.0f / 3, static_cast<float>(inf),
                                                      -static_cast<float>(inf), 0, 1}));
  EXPECT_TRUE(std::signbit(load<float>(doubles)[3]));
  const std::string floats = file_of("F32", "2", bytes_of<float>({0.1f, -3e38f}));
  EXPECT_EQ(load<double>(floats), (std::vector<double>{0.1f, -3e38f}));
  EXPECT_EQ(load<float>(floats), (std::vector<float>{0.1f, -3e38f}));
  const std::string nan = file_of("F32", "1", bytes_of<std::uint32_t>({0x7FC01234}));
  EXPECT_EQ(std::bit_cast<std::uint32_t>(load<float>(nan)[0]), 0x7FC01234u);
  EXPECT_TRUE(std::isnan(load<double>(nan)[0]));
}

TEST(SafetensorsFile, ConvertsEvery16BitFloat) {
  std::string data;
  for (unsigned bits = 0; bits < 65536; ++bits) {
    data += static_cast<char>(bits & 0xFF);
    data += static_cast<char>(bits >> 8);
  }
  const auto check = [&](const std::string& dtype, auto stored) {
    const std::string file = file_of(dtype, "65536", data, 1);  // misaligned
    const std::vector<float> singles = load<float>(file);
    const std::vector<double> doubles = load<double>(file);
    for (unsigned bits = 0; bits < 65536; ++bits) {
      const float expected = stored.from_bits(static_cast<std::uint16_t>(bits));
      ASSERT_EQ(std::bit_cast<std::uint32_t>(singles[bits]),
                std::bit_cast<std::uint32_t>(expected));
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(doubles[bits]));
      } else {
        ASSERT_EQ(doubles[bits], static_cast<double>(expected));
      }
    }
  };
  check("F16", float16{});
  check("BF16", bfloat16{});
}

TEST(SafetensorsFile, ViewsAndRoundsToFloatsOf16Bits) {
  const std::string halves = file_of("F16", "2", bytes_of<std::uint16_t>({0x3C01, 0xFBFF}));
  const ExactBytes bytes(halves);
  const SafetensorsFile file(bytes.span());
  const auto view = file.view<float16, 1>("x");
  EXPECT_EQ(view(0), 1 + 0x1p-10f);
  EXPECT_EQ(view(1), -65504.0f);
  EXPECT_THROW((file.view<bfloat16, 1>("x")), DTypeError);
  // Rounds to nearest, ties to even; a double is rounded once: 1 + 2^-8 + 2^-40 is past the tie,
  // but not as a float.
  const auto rounded = load<bfloat16>(
      file_of("F64", "3", bytes_of<double>({1 + 0x1p-8, 1 + 0x1p-8 + 0x1p-40, 1e300})));
  EXPECT_EQ(rounded[0], 1.0f);
  EXPECT_EQ(rounded[1], 1 + 0x1p-7f);
  EXPECT_EQ(rounded[2], std::numeric_limits<float>::infinity());
  EXPECT_THROW(load<float16>(file_of("I16", "1", "\1\0"s)), DTypeError);
}

TEST(SafetensorsFile, TypesThatAttnDoesNotKnowMakeTheirTensorUnreadableAlone) {
  const ExactBytes bytes(
      attn_test::safetensors_file(R"({"a":{"dtype":"F4\u0000","shape":[3],"data_offsets":[0,2]},)"
                                  R"("b":{"dtype":"I8","shape":[1],"data_offsets":[2,3]}})",
                                  "\1\2\3"));
  const SafetensorsFile file(bytes.span());
  EXPECT_EQ(file.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ((file.load<int, 1>("b")(0)), 3);
  EXPECT_EQ(file.bytes("a").size(), 2u);
  EXPECT_EQ(file.shape("a"), std::vector<index_t>{3});
  EXPECT_TRUE(contains(
      error_of<DTypeError>([&] { file.dtype("a"); }),
      "[SafetensorsFile::dtype] \"memory\": tensor \"a\" must hold one of BOOL, U8, I8, "));
  EXPECT_TRUE(contains(error_of<DTypeError>([&] { file.tensor("a"); }), R"(found "F4\x00".)"));
  EXPECT_TRUE(
      contains(error_of<DTypeError>([&] { file.load<float, 1>("a"); }), R"(found "F4\x00".)"));
  EXPECT_TRUE(contains(error_of<DTypeError>([&] { (void)file.view<float, 1>("a"); }),
                       R"(found "F4\x00".)"));
}

TEST(SafetensorsFile, ConvertsIntegersThatFit) {
  const std::string narrow = file_of("I8", "3", "\x80\xFF\x7F"s);
  EXPECT_EQ(load<std::int64_t>(narrow), (std::vector<std::int64_t>{-128, -1, 127}));
  EXPECT_EQ(load<std::int8_t>(narrow), (std::vector<std::int8_t>{-128, -1, 127}));
  EXPECT_TRUE(contains(error_of<ValueError>([&] { load<std::uint64_t>(narrow); }),
                       "tensor \"x\" must fit U64; found -128 at element 0."));
  const std::string wide = file_of("I64", "2", bytes_of<std::int64_t>({-5, 1LL << 31}), 3);
  EXPECT_EQ(load<std::int64_t>(wide), (std::vector<std::int64_t>{-5, 1LL << 31}));
  EXPECT_TRUE(contains(error_of<ValueError>([&] { load<std::int32_t>(wide); }),
                       "must fit I32; found 2147483648 at element 1."));
  const std::string large = file_of("U64", "1", bytes_of<std::uint64_t>({~std::uint64_t{0}}));
  EXPECT_EQ(load<std::uint64_t>(large), std::vector<std::uint64_t>{~std::uint64_t{0}});
  EXPECT_THROW(load<std::int64_t>(large), ValueError);
  EXPECT_EQ(load<std::uint8_t>(file_of("U16", "1", bytes_of<std::uint16_t>({255}))),
            std::vector<std::uint8_t>{255});
  EXPECT_EQ(load<std::int32_t>(file_of("U32", "1", bytes_of<std::uint32_t>({9}))),
            std::vector<std::int32_t>{9});
  EXPECT_EQ(load<std::int16_t>(file_of("I16", "1", bytes_of<std::int16_t>({-9}))),
            std::vector<std::int16_t>{-9});
}

TEST(SafetensorsFile, TakesOnlyZeroAndOneForBool) {
  EXPECT_EQ(load<bool>(file_of("BOOL", "3", "\1\0\1"s)), (std::vector<bool>{true, false, true}));
  for (unsigned byte = 2; byte < 256; ++byte) {
    const std::string file = file_of("BOOL", "3", "\1\0"s + static_cast<char>(byte));
    EXPECT_TRUE(contains(error_of<ValueError>([&] { load<bool>(file); }),
                         "tensor \"x\" must hold bytes of 0 or 1 only; found " +
                             std::to_string(byte) + " at element 2."));
  }
}

TEST(SafetensorsFile, ChecksTheShapeBeforeTheValues) {
  const ExactBytes bytes(file_of("BOOL", "2", "\1\7"s));
  Tensor1<bool> out({3});
  EXPECT_THROW(SafetensorsFile(bytes.span()).load("x", out.view()), ShapeError);
}

TEST(SafetensorsFile, LoadsIntoStridedMemory) {
  const ExactBytes bytes(file_of("F32", "2,3", bytes_of<float>({1, 2, 3, 4, 5, 6})));
  const SafetensorsFile file(bytes.span());
  Tensor2<float> wide({2, 5});
  wide.fill(-1);
  file.load("x", wide.view().slice(1, 1, 4));
  EXPECT_EQ((std::vector<float>(wide.elements().begin(), wide.elements().end())),
            (std::vector<float>{-1, 1, 2, 3, -1, -1, 4, 5, 6, -1}));
  Tensor2<double> transposed({3, 2});
  file.load("x", transposed.view().transpose(0, 1));
  EXPECT_EQ(transposed(2, 0), 3.0);
  EXPECT_EQ(transposed(0, 1), 4.0);
}

TEST(SafetensorsFile, WritesNothingWhenItRefuses) {
  const ExactBytes bytes(file_of("BOOL", "2", "\1\7"s));
  Tensor1<bool> out({2});
  EXPECT_THROW(SafetensorsFile(bytes.span()).load("x", out.view()), ValueError);
  EXPECT_FALSE(out(0));
}

TEST(SafetensorsFile, DoesNotCountThroughHugeEmptyShapes) {
  const ExactBytes bytes(file_of("F32", "1152921504606846976,0", ""));
  EXPECT_EQ((SafetensorsFile(bytes.span()).load<float, 2>("x").size()), 0);
}

}  // namespace
}  // namespace attn
