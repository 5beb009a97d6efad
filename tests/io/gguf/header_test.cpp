// Hostile GGUF files give a clear IoError or a valid file: no crash, no out-of-bounds read, no
// allocation larger than the file justifies.
#include "attn/io/gguf/header.hpp"

#include <cstdint>
#include <ostream>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/files/gguf_bytes.hpp"

namespace attn {
namespace {

using namespace std::string_literals;
using attn_test::contains;
using attn_test::error_of;
using attn_test::ExactBytes;
using attn_test::gguf_file;
using attn_test::gguf_key;
using attn_test::gguf_number;
using attn_test::gguf_tensor;
using attn_test::gguf_text;

struct GgufCase {
  std::string name;
  std::string file;
  std::string error;  ///< part of the message
};

/// Prints the name only: GoogleTest would print the bytes.
void PrintTo(const GgufCase& c, std::ostream* out) { *out << c.name; }

class HostileGguf : public ::testing::TestWithParam<GgufCase> {};

TEST_P(HostileGguf, IsRefusedClearly) {
  const ExactBytes bytes(GetParam().file);
  const std::string text = error_of<IoError>([&] { GgufFile(bytes.span(), "model.gguf"); });
  EXPECT_TRUE(text.starts_with("[GgufFile] ")) << text;
  EXPECT_TRUE(contains(text, GetParam().error));
  EXPECT_EQ(text.find('\0'), std::string::npos);
  EXPECT_LT(text.size(), 1000u);
}

std::string u64(std::uint64_t value) { return gguf_number(value); }
std::string u32(std::uint32_t value) { return gguf_number(value); }

std::string key(std::uint32_t type, const std::string& value) {
  return gguf_file(0, 1, gguf_key("k", type, value));
}
std::string tensor(std::uint64_t count, const std::string& header, const std::string& data) {
  return gguf_file(count, 0, header, data);
}

const std::uint64_t kHuge = std::uint64_t{1} << 63;

const GgufCase kGgufCases[] = {
    {"Empty", "", "begin with GGUF; found \"\""},
    {"Short", "GG", "begin with GGUF"},
    {"OtherMagic", "GGML" + std::string(60, '\0'), "begin with GGUF; found \"GGML\""},
    {"NoVersion", "GGUF", "the version must lie within the 4 bytes"},
    {"Version1", gguf_file(0, 0, "", "", 1), "be 2 or 3; found 1"},
    {"Version4", gguf_file(0, 0, "", "", 4), "be 2 or 3; found 4"},
    {"BigEndian", gguf_file(0, 0, "", "", 3u << 24), "found that of a big-endian file"},
    {"TensorsPastTheEnd", gguf_file(kHuge, 0, ""), "number of tensors must be at most"},
    {"KeysPastTheEnd", gguf_file(0, kHuge, ""), "number of keys must be at most"},
    {"KeysAllOnes", gguf_file(0, ~std::uint64_t{0}, std::string(100, 'x')),
     "number of keys must be at most"},
    {"KeyPastTheEnd", gguf_file(0, 1, u64(kHuge) + std::string(20, 'x')), "a key must lie within"},
    {"ValueMissing", gguf_file(0, 1, gguf_text("k12345")), "key \"k12345\" must lie within"},
    {"TypeUnknown", key(13, u64(0)), "type from 0 to 12; found 13"},
    {"StringPastTheEnd", key(8, u64(kHuge)), "key \"k\" must lie within"},
    {"NumberCut", key(10, "\1\2\3\4\5"s), "key \"k\" must lie within"},
    {"ArrayPastTheEnd", key(9, u32(4) + u64(kHuge)),
     "be at most what 0 bytes can hold; found 9223372036854775808"},
    {"ArrayOverflow", key(9, u32(10) + u64(kHuge / 4 + 1) + u64(0)),
     "be at most what 8 bytes can hold"},
    {"ArrayOfStrings", key(9, u32(8) + u64(2) + gguf_text("a") + u64(1000)), "key \"k\" must "},
    {"NestedArray", key(9, u32(9) + u64(1) + u32(9) + u64(1)),
     "be an array of values; found one of arrays"},
    {"KeyTwice", gguf_file(0, 2, gguf_key("k", 0, "\1"s) + gguf_key("k", 0, "\2"s)),
     "found \"k\" again"},
    {"Split",
     gguf_file(0, 2, gguf_key("split.no", 2, "\1\0"s) + gguf_key("split.count", 2, "\3\0"s)),
     "found part 2 of 3"},
    {"SplitNoOfOne", gguf_file(0, 1, gguf_key("split.no", 2, "\1\0"s)),
     "key \"split.no\" must be less than split.count, 1; found 1"},
    {"SplitNoOfNone",
     gguf_file(0, 2, gguf_key("split.no", 2, "\1\0"s) + gguf_key("split.count", 2, "\0\0"s)),
     "key \"split.no\" must be less than split.count, 0; found 1"},
    {"SplitNoPastTheCount",
     gguf_file(0, 2, gguf_key("split.no", 2, "\3\0"s) + gguf_key("split.count", 2, "\3\0"s)),
     "key \"split.no\" must be less than split.count, 3; found 3"},
    {"SplitTensorsOfOne", gguf_file(0, 1, gguf_key("split.tensors.count", 4, u32(2))),
     "key \"split.tensors.count\" must be the number of tensors, 0; found 2"},
    {"SplitIsText", gguf_file(0, 1, gguf_key("split.count", 8, gguf_text("x"))),
     "of type integer; found STRING"},
    {"AlignmentZero", gguf_file(0, 1, gguf_key("general.alignment", 4, u32(0))),
     "power of two up to 2^30; found 0"},
    {"AlignmentOdd", gguf_file(0, 1, gguf_key("general.alignment", 4, u32(33))), "power of two"},
    {"AlignmentHuge", gguf_file(0, 1, gguf_key("general.alignment", 10, u64(kHuge))),
     "power of two"},
    {"AlignmentNegative", gguf_file(0, 1, gguf_key("general.alignment", 5, u32(~0u))), "found -1"},
    {"NamePastTheEnd", gguf_file(1, 0, u64(kHuge) + std::string(30, 'x')),
     "a tensor's name must lie within"},
    {"FiveDims", tensor(1, gguf_tensor("t", {1, 1, 1, 1, 1}, 0, 0), "abcd"),
     "at most 4 extents; found 5"},
    {"AllOnesDims", gguf_file(1, 0, gguf_text("t") + u32(~0u) + std::string(20, '\1')),
     "at most 4 extents; found 4294967295"},
    {"DimPast63Bits", tensor(1, gguf_tensor("t", {kHuge}, 0, 0), "abcd"), "extents below 2^63"},
    {"DimsOverflow", tensor(1, gguf_tensor("t", {1u << 31, 1u << 31, 4}, 0, 0), "abcd"),
     "less than 2^63 elements"},
    {"DimsOverflowBesideZero",
     tensor(1, gguf_tensor("t", {std::uint64_t{1} << 62, 4, 0}, 0, 0), "abcd"),
     "less than 2^63 elements"},
    {"BytesPastTheEnd", tensor(1, gguf_tensor("t", {2}, 0, 0), "abcd"),
     "lie within the 4 bytes of data; found 8 bytes"},
    {"BytesOverflow", tensor(1, gguf_tensor("t", {(std::uint64_t{1} << 62) + 1}, 0, 0), "abcd"),
     "tensor \"t\" must "},
    {"OffsetPastTheEnd", tensor(1, gguf_tensor("t", {1}, 0, kHuge), "abcd"),
     "lie within the 4 bytes"},
    {"OffsetMisaligned", tensor(1, gguf_tensor("t", {1}, 0, 4), "abcdefgh"),
     "multiple of 32 bytes; found an offset of 4"},
    {"NoData", tensor(1, gguf_tensor("t", {1}, 0, 0), ""), "lie within the 0 bytes of data"},
    {"PartOfABlock", tensor(1, gguf_tensor("t", {16, 2}, 8, 0), std::string(34, 'x')),
     "rows of whole blocks of 32 (Q8_0); found (2, 16)"},
    {"ScalarOfBlocks", tensor(1, gguf_tensor("t", {}, 12, 0), std::string(144, 'x')),
     "whole blocks of 256 (Q4_K)"},
    {"NameTwice",
     tensor(2, gguf_tensor("t", {1}, 0, 0) + gguf_tensor("t", {1}, 0, 32), std::string(36, 'x')),
     "found \"t\" again"},
    {"Overlap",
     tensor(2, gguf_tensor("a", {9}, 0, 0) + gguf_tensor("b", {1}, 0, 32), std::string(36, 'x')),
     "lie apart from all others; found it over tensor \"a\""},
    {"LongName",
     gguf_file(
         0, 2,
         gguf_key(std::string(5000, 'n'), 0, "\1"s) + gguf_key(std::string(5000, 'n'), 0, "\1"s)),
     "again"},
};

INSTANTIATE_TEST_SUITE_P(Gguf, HostileGguf, ::testing::ValuesIn(kGgufCases),
                         [](const auto& of) { return of.param.name; });

TEST(GgufHeader, TakesWhatIsUnusualButRight) {
  const auto opens = [](const std::string& file) {
    const ExactBytes bytes(file);
    EXPECT_NO_THROW(attn_test::read_everything(GgufFile(bytes.span())));
  };
  opens(gguf_file(0, 0, ""));
  opens(gguf_file(0, 0, "", "", 2));
  opens(key(9, u32(8) + u64(0)));
  opens(key(8, u64(0)));
  // No data after the header, and an offset at its end.
  opens(tensor(1, gguf_tensor("t", {0}, 0, 0), ""));
  opens(tensor(1, gguf_tensor("t", {99}, 99, 0), ""));
}

TEST(GgufHeader, EveryCutAndChangedByteIsRefusedOrRead) {
  const std::string sample = attn_test::sample_gguf();
  const auto read = [](const std::string& file) {
    const ExactBytes bytes(file);
    try {
      attn_test::read_everything(GgufFile(bytes.span()));
    } catch (const IoError&) {
      // Most inputs are invalid.
    }
  };
  for (std::size_t size = 0; size < sample.size(); ++size) read(sample.substr(0, size));
  for (std::size_t at = 0; at < sample.size(); ++at) {
    for (const int value : {0, 1, 9, 32, 127, 128, 255}) {
      std::string changed = sample;
      changed[at] = static_cast<char>(value);
      read(changed);
    }
  }
}

}  // namespace
}  // namespace attn
