// Places of tensors: sizes, offsets, holes and overlaps, a table of well-formed JSON.
#include "attn/io/safetensors/layout.hpp"

#include <ostream>
#include <string>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/files/safetensors_bytes.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::ExactBytes;

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[" + shape +
         "],\"data_offsets\":[" + offsets + "]}";
}

struct LayoutCase {
  std::string name;
  std::string header;
  std::size_t data_size;
  std::string error;  ///< part of the message; empty: the file is valid
};

/// Prints the name only: GoogleTest would print the bytes.
void PrintTo(const LayoutCase& c, std::ostream* out) { *out << c.name; }

class SafetensorsLayout : public ::testing::TestWithParam<LayoutCase> {};

TEST_P(SafetensorsLayout, IsChecked) {
  const ExactBytes bytes(attn_test::safetensors_file("{" + GetParam().header + "}",
                                                     std::string(GetParam().data_size, '\0')));
  if (GetParam().error.empty()) {
    const SafetensorsFile file(bytes.span(), "f");
    attn_test::read_everything(file);
  } else {
    const std::string text = error_of<IoError>([&] { SafetensorsFile(bytes.span(), "f"); });
    EXPECT_TRUE(text.starts_with("[SafetensorsFile] \"f\": ")) << text;
    EXPECT_TRUE(contains(text, GetParam().error));
  }
}

const LayoutCase kLayoutCases[] = {
    {"NothingAtAll", "", 0, ""},
    {"MetadataOnly", R"("__metadata__":{})", 0, ""},
    {"InAnyOrder", entry("b", "F32", "1", "0,4") + "," + entry("a", "F32", "1", "4,8"), 8, ""},
    {"EmptyTensorsBetween",
     entry("a", "F32", "1", "0,4") + "," + entry("b", "F32", "0", "4,4") + "," +
         entry("c", "F32", "3,0", "4,4") + "," + entry("d", "F32", "1", "4,8"),
     8, ""},
    {"Scalar", entry("a", "F64", "", "0,8"), 8, ""},
    {"OneByteTypes", entry("a", "F8_E4M3", "3", "0,3"), 3, ""},
    {"Misaligned", entry("a", "U8", "1", "0,1") + "," + entry("b", "F32", "1", "1,5"), 5, ""},
    {"HighRank", entry("a", "U8", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", "0,1"), 1, ""},
    {"HugeExtentBesideZero", entry("a", "U8", "0,4611686018427387904", "0,0"), 0, ""},

    {"PastTheEnd", entry("a", "F32", "2", "0,8"), 7,
     "data_offsets of tensor \"a\" must be ordered and lie within the 7 bytes after the header; "
     "found [0, 8]."},
    {"BeginPastTheEnd", entry("a", "F32", "0", "9,9"), 8, "within the 8 bytes"},
    {"FarPastTheEnd", entry("a", "F32", "1", "9223372036854775803,9223372036854775807"), 8,
     "within the 8 bytes"},
    {"Reversed", entry("a", "F32", "1", "4,0"), 4, "must be ordered"},
    {"TooShortForTheShape", entry("a", "F32", "2,2", "0,12"), 12,
     "data_offsets of tensor \"a\" must span the 16 bytes of F32 (2, 2); found [0, 12], 12 bytes."},
    {"TooLongForTheShape", entry("a", "F16", "2", "0,8"), 8, "must span the 4 bytes of F16 (2)"},
    {"ScalarIsOneElement", entry("a", "F32", "", "0,0"), 0, "must span the 4 bytes of F32 ()"},
    {"EmptyHasNoBytes", entry("a", "F32", "0,7", "0,4"), 4, "must span the 0 bytes"},

    {"TwiceTheSame", entry("a", "F32", "1", "0,4") + "," + entry("b", "F32", "1", "0,4"), 4,
     "data_offsets of tensor \"b\" must begin at 4, where tensor \"a\" ends (no overlaps, no "
     "holes); found [0, 4]."},
    {"Overlap", entry("a", "F32", "2", "0,8") + "," + entry("b", "F32", "2", "4,12"), 12,
     "must begin at 8, where tensor \"a\" ends"},
    {"Inside", entry("a", "F32", "3", "0,12") + "," + entry("b", "F32", "1", "4,8"), 12,
     "must begin at 12, where tensor \"a\" ends"},
    {"EmptyTensorInside", entry("a", "F32", "3", "0,12") + "," + entry("b", "F32", "0", "4,4"), 12,
     "data_offsets of tensor \"b\" must begin at 12"},
    {"HoleAtTheBeginning", entry("a", "F32", "1", "4,8"), 8, "must begin at 0, the first byte"},
    {"HoleBetween", entry("a", "F32", "1", "0,4") + "," + entry("b", "F32", "1", "8,12"), 12,
     "data_offsets of tensor \"b\" must begin at 4, where tensor \"a\" ends"},
    {"HoleAtTheEnd", entry("a", "F32", "1", "0,4"), 5,
     "the data must end at 4, where tensor \"a\" ends; found 5 bytes."},
    {"DataWithoutTensors", "", 1, "the data must end at 0, the first byte; found 1 bytes."},

    {"OverflowingShape", entry("a", "F32", "4294967296,4294967296", "0,0"), 0,
     "shape of tensor \"a\" must describe less than 2^63 bytes; found (4294967296, 4294967296) of "
     "F32."},
    // 2^62 elements fit in 63 bits, but their bytes do not: 4 * 2^62 is 0 modulo 2^64.
    {"OverflowingBytes", entry("a", "F32", "4611686018427387904", "0,0"), 0, "less than 2^63"},
    {"OverflowBesideZero", entry("a", "U8", "4611686018427387904,4611686018427387904,0", "0,0"), 0,
     "less than 2^63"},
    {"OverflowWrapsToTheRightSize", entry("a", "U8", "9223372036854775807,2,4", "0,8"), 8,
     "less than 2^63"},
};

INSTANTIATE_TEST_SUITE_P(Cases, SafetensorsLayout, ::testing::ValuesIn(kLayoutCases),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace attn
