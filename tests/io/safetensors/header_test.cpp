// Hostile headers: each gives a clear IoError or a valid file; none crashes or reads out of bounds.
#include "attn/io/safetensors/header.hpp"

#include <cstdint>
#include <ostream>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/files/safetensors_bytes.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using namespace std::string_literals;
using attn_test::contains;
using attn_test::error_of;
using attn_test::ExactBytes;
using attn_test::length_prefix;
using attn_test::safetensors_file;

struct Case {
  std::string name;
  std::string file;
  std::string error;  ///< part of the message
};

/// Prints the name only: GoogleTest would print the bytes.
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class HostileSafetensors : public ::testing::TestWithParam<Case> {};

TEST_P(HostileSafetensors, IsRefusedClearly) {
  const ExactBytes bytes(GetParam().file);
  const std::string text =
      error_of<IoError>([&] { SafetensorsFile(bytes.span(), "model.safetensors"); });
  EXPECT_TRUE(text.starts_with("[SafetensorsFile] \"model.safetensors\": ")) << text;
  EXPECT_TRUE(contains(text, GetParam().error));
  EXPECT_EQ(text.find('\0'), std::string::npos);
  EXPECT_LT(text.size(), 1000u);
}

/// One tensor "a" with these fields, and 4 bytes of data.
std::string tensor(const std::string& fields) {
  return safetensors_file("{\"a\":{" + fields + "}}", "\0\0\0\0"s);
}

std::string with_offsets(const std::string& offsets) {
  return tensor(R"("dtype":"F32","shape":[1],"data_offsets":)" + offsets);
}

std::string with_shape(const std::string& shape) {
  return tensor(R"("dtype":"F32","data_offsets":[0,4],"shape":)" + shape);
}

std::string repeated(std::size_t count, const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < count; ++i) result += text;
  return result;
}

const std::string kPlain = R"("dtype":"F32","shape":[1],"data_offsets":[0,4])";
const std::string kOffsetsError =
    "data_offsets of tensor \"a\" must be an array of two integers from 0 to 2^63 - 1; found ";
const std::string kShapeError =
    "shape of tensor \"a\" must be an array of integers from 0 to 2^63 - 1; found ";

const Case kCases[] = {
    {"Empty", "", "the file must begin with the header's length in 8 bytes; found 0 bytes."},
    {"SevenBytes", "\x02\0\0\0\0\0\0"s, "found 7 bytes."},
    {"NoHeader", length_prefix(2),
     "the header must lie within the 8 bytes of the file; found 2 bytes after the first 8."},
    {"LengthZero", length_prefix(0), "the header must begin with {; found nothing."},
    {"LengthOnePastTheEnd", length_prefix(3) + "{}", "the header must lie within the 10 bytes"},
    {"LengthAtTheLimit", length_prefix(100'000'000) + "{}", "within the 10 bytes"},
    {"LengthPastTheLimit", length_prefix(100'000'001) + "{}",
     "the header must be at most 100000000 bytes long; found 100000001."},
    {"Length2To63", length_prefix(std::uint64_t{1} << 63) + "{}", "found 9223372036854775808."},
    {"LengthAllOnes", length_prefix(~std::uint64_t{0}) + "{}", "found 18446744073709551615."},
    {"LengthWraps", length_prefix(~std::uint64_t{0} - 7) + "{}", "at most 100000000"},
    {"LengthCutsTheJson", length_prefix(1) + "{}", "valid JSON in UTF-8; found an error at"},

    {"Array", safetensors_file("[]"), "the header must begin with {; found \"[]\"."},
    {"Number", safetensors_file("1"), "begin with {"},
    {"LeadingSpace", safetensors_file(" {}"), "begin with {"},
    {"ByteOrderMark", safetensors_file("\xEF\xBB\xBF{}"), "begin with {"},
    {"Binary", safetensors_file("\x80\x02}q\x01."), "begin with {"},
    {"TwoObjects", safetensors_file("{}{}"), "valid JSON in UTF-8; found an error at its byte 3"},
    {"TrailingText", safetensors_file("{} x"), "valid JSON in UTF-8"},
    {"TrailingNul", safetensors_file("{}\0"s), "found a NUL at its byte 3."},
    {"HiddenAfterNul", safetensors_file("{}\0{\"a\":1}"s), "found a NUL at its byte 3."},
    {"Comment", safetensors_file("{/**/}"), "valid JSON"},
    {"TrailingComma", safetensors_file("{\"__metadata__\":{},}"), "valid JSON"},
    {"SingleQuotes", safetensors_file("{'a':1}"), "valid JSON"},
    {"Unterminated", safetensors_file("{\"" + std::string(100'000, 'x')), "valid JSON"},
    {"BareNul", safetensors_file("{\"a\0b\":{"s + kPlain + "}}", "\0\0\0\0"s), "a NUL at its byte"},
    {"BareNewline", safetensors_file("{\"a\nb\":{" + kPlain + "}}", "\0\0\0\0"s), "valid JSON"},
    {"InvalidUtf8", safetensors_file("{\"\xC3(\":{" + kPlain + "}}", "\0\0\0\0"s), "UTF-8"},
    {"OverlongUtf8", safetensors_file("{\"\xC0\x80\":{" + kPlain + "}}", "\0\0\0\0"s), "UTF-8"},
    {"Utf8Surrogate", safetensors_file("{\"\xED\xA0\x80\":{" + kPlain + "}}", "\0\0\0\0"s),
     "UTF-8"},
    {"LoneSurrogate", safetensors_file(R"({"\ud800":{)" + kPlain + "}}", "\0\0\0\0"s),
     "valid JSON"},
    {"CutUtf8", safetensors_file("{\"\xE2\x82"), "valid JSON"},

    {"NestedArrays", safetensors_file("{\"a\":" + std::string(100'000, '[')),
     "tensor \"a\" must be an object; found an array."},
    {"NestedObjects", safetensors_file("{" + repeated(100'000, "\"a\":{")),
     "a key of tensor \"a\" must be dtype, shape or data_offsets; found \"a\"."},
    {"NestedInDtype", safetensors_file("{\"a\":" + repeated(100'000, "{\"dtype\":")),
     "dtype of tensor \"a\" must be a string; found an object."},
    {"NestedInShape", with_shape(std::string(100'000, '[')), kShapeError + "an array."},
    {"NestedInMetadata", safetensors_file("{\"__metadata__\":{\"k\":" + std::string(100'000, '[')),
     "__metadata__ entry \"k\" must be a string; found an array."},
    {"NestedWhole", safetensors_file(std::string(100'000, '{')), "valid JSON"},

    {"RepeatedTensor",
     safetensors_file("{\"a\":{" + kPlain + "},\"a\":{" + kPlain + "}}", "\0\0\0\0"s),
     "every tensor name must occur once; found \"a\" again."},
    {"RepeatedTensorEscaped",
     safetensors_file("{\"a\":{" + kPlain + "},\"\\u0061\":{" + kPlain + "}}", "\0\0\0\0"s),
     "found \"a\" again."},
    {"RepeatedDtype", tensor(R"("dtype":"F32",)" + kPlain),
     "every key of tensor \"a\" must occur once; found \"dtype\" again."},
    {"RepeatedShape", tensor(R"("shape":[1],)" + kPlain), "found \"shape\" again."},
    {"RepeatedOffsets", tensor(R"("data_offsets":[0,4],)" + kPlain), "\"data_offsets\" again."},
    {"RepeatedMetadata", safetensors_file(R"({"__metadata__":{},"__metadata__":{}})"),
     "every key must occur once; found \"__metadata__\" again."},
    {"RepeatedMetadataKey", safetensors_file(R"({"__metadata__":{"k":"1","k":"1"}})"),
     "every key of __metadata__ must occur once; found \"k\" again."},

    {"TensorIsNull", safetensors_file(R"({"a":null})"),
     "tensor \"a\" must be an object; found null."},
    {"TensorIsNumber", safetensors_file(R"({"a":1})"), "found 1."},
    {"TensorIsText", safetensors_file(R"({"a":"F32"})"), "found \"F32\"."},
    {"TensorIsBool", safetensors_file(R"({"a":true})"), "found true."},
    {"NoDtype", tensor(R"("shape":[1],"data_offsets":[0,4])"),
     "tensor \"a\" must have dtype, shape and data_offsets; found no dtype."},
    {"NoShape", tensor(R"("dtype":"F32","data_offsets":[0,4])"), "found no shape."},
    {"NoOffsets", tensor(R"("dtype":"F32","shape":[1])"), "found no data_offsets."},
    {"FieldsOfTheTensorBefore",
     safetensors_file("{\"b\":{" + kPlain + "},\"a\":{\"shape\":[1]}}", "\0\0\0\0"s),
     "tensor \"a\" must have dtype, shape and data_offsets; found no dtype."},
    {"ForeignKey", tensor(kPlain + R"(,"device":"cpu")"), "found \"device\"."},
    {"KeyOfAnotherCase", tensor(R"("Dtype":"F32","shape":[1],"data_offsets":[0,4])"), "\"Dtype\""},

    {"DtypeIsNumber", tensor(R"("dtype":32,"shape":[1],"data_offsets":[0,4])"),
     "dtype of tensor \"a\" must be a string; found 32."},
    {"DtypeIsArray", tensor(R"("dtype":["F32"],"shape":[1],"data_offsets":[0,4])"), "an array."},

    {"ShapeIsNumber", with_shape("1"), kShapeError + "1."},
    {"ShapeIsNull", with_shape("null"), kShapeError + "null."},
    {"ShapeOfText", with_shape(R"(["1"])"), kShapeError + "\"1\"."},
    {"ShapeOfFloat", with_shape("[1.0]"), kShapeError + "\"1.0\"."},
    {"ShapeOfExponent", with_shape("[1e0]"), kShapeError + "\"1e0\"."},
    {"ShapeNegative", with_shape("[-1]"), kShapeError + "-1."},
    {"ShapeMinusZero", with_shape("[-0]"), kShapeError},
    {"ShapeOfBool", with_shape("[true]"), kShapeError + "true."},
    {"ShapeOfObject", with_shape("[{}]"), kShapeError + "an object."},
    {"Shape2To63", with_shape("[9223372036854775808]"), kShapeError + "9223372036854775808."},
    {"Shape2To64", with_shape("[18446744073709551616]"), kShapeError + "\"18446744073709551616\"."},
    {"ShapeOfManyDigits", with_shape("[" + std::string(300, '9') + "]"), kShapeError + "\"9999"},
    {"ShapeNotFinite", with_shape("[1e999]"), "valid JSON"},
    {"ShapeOfNaN", with_shape("[NaN]"), "valid JSON"},
    {"ShapeVeryLong", with_shape("[" + repeated(99'999, "2,") + "2]"), "less than 2^63 bytes"},

    {"OffsetsAreNumber", with_offsets("4"), kOffsetsError + "4."},
    {"OffsetsAreObject", with_offsets("{}"), kOffsetsError + "an object."},
    {"OneOffset", with_offsets("[0]"),
     "data_offsets of tensor \"a\" must be two numbers; found 1."},
    {"NoOffset", with_offsets("[]"), "must be two numbers; found 0."},
    {"ThreeOffsets", with_offsets("[0,4,4]"), "must be two numbers; found 3."},
    {"OffsetNegative", with_offsets("[-4,0]"), kOffsetsError + "-4."},
    {"OffsetFloat", with_offsets("[0,4.0]"), kOffsetsError + "\"4.0\"."},
    {"OffsetText", with_offsets(R"([0,"4"])"), kOffsetsError + "\"4\"."},
    {"Offset2To64", with_offsets("[0,18446744073709551620]"), kOffsetsError},
    {"Offset2To63", with_offsets("[0,9223372036854775812]"), kOffsetsError},

    {"MetadataIsNull", safetensors_file(R"({"__metadata__":null})"),
     "__metadata__ must be an object"},
    {"MetadataIsText", safetensors_file(R"({"__metadata__":"pt"})"),
     "__metadata__ must be an object"},
    {"MetadataOfNumbers", safetensors_file(R"({"__metadata__":{"k":1}})"),
     "__metadata__ entry \"k\" must be a string; found 1."},
    {"MetadataNested", safetensors_file(R"({"__metadata__":{"k":{}}})"), "found an object."},
    {"MetadataThenText", safetensors_file(R"({"__metadata__":{},"a":"F32"})"), "tensor \"a\""},

    {"NameOf1MB", safetensors_file("{\"" + std::string(1'000'000, 'n') + "\":1}"),
     "nnn...\" must be"},
};

INSTANTIATE_TEST_SUITE_P(Cases, HostileSafetensors, ::testing::ValuesIn(kCases),
                         [](const auto& instance) { return instance.param.name; });

TEST(SafetensorsHeader, ReadsWhatIsThere) {
  const ExactBytes bytes(attn_test::sample_safetensors());
  const SafetensorsHeader header = parse_safetensors_header(bytes.span(), "f");
  EXPECT_EQ(header.tensors.size(), 7u);
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(header.metadata.at("note"), "caf\xC3\xA9 \"x\"");
  const SafetensorsEntry& w = header.tensors.at("w");
  EXPECT_EQ(w.dtype, DType::F32);
  EXPECT_EQ(w.shape, (std::vector<index_t>{2, 3}));
  EXPECT_EQ(w.begin, 0u);
  EXPECT_EQ(w.end, 24u);
  EXPECT_TRUE(header.tensors.at("scalar").shape.empty());
  EXPECT_EQ(header.tensors.at("h\xC3\xA9").dtype, DType::F16);
}

TEST(SafetensorsHeader, TakesAnyTextForAName) {
  const ExactBytes bytes(safetensors_file("{\"\":{" + kPlain + R"(},"a\u0000b":{)" +
                                              R"("dtype":"U8","shape":[1],"data_offsets":[4,5]}})",
                                          "\0\0\0\0\0"s));
  const SafetensorsFile file(bytes.span());
  EXPECT_EQ(file.names(), (std::vector<std::string>{"", "a\0b"s}));
  EXPECT_TRUE(file.contains("a\0b"s));
  EXPECT_FALSE(file.contains("a"));
}

TEST(SafetensorsHeader, AllowsWhitespaceAtTheEnd) {
  const ExactBytes bytes(safetensors_file("{} \n\t "));
  EXPECT_TRUE(SafetensorsFile(bytes.span()).names().empty());
}

TEST(SafetensorsHeader, RefusesEveryTruncation) {
  const std::string whole = attn_test::sample_safetensors();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const ExactBytes bytes(std::string_view(whole).substr(0, size));
    EXPECT_THROW(SafetensorsFile(bytes.span()), IoError) << size;
  }
  EXPECT_NO_THROW(SafetensorsFile(ExactBytes(whole).span()));
  EXPECT_THROW(SafetensorsFile(ExactBytes(whole + '\0').span()), IoError);
}

TEST(SafetensorsHeader, RefusesEveryTruncationOfTheJson) {
  // The length matches the bytes, so that the parser gets each truncated header.
  const std::string whole = attn_test::sample_safetensors();
  const std::string json = whole.substr(8, whole.rfind('}') - 8);  // without the last bracket
  for (std::size_t size = 0; size <= json.size(); ++size) {
    const ExactBytes bytes(safetensors_file(json.substr(0, size)));
    EXPECT_THROW(SafetensorsFile(bytes.span()), IoError) << size;
  }
}

/// Opens the bytes and, if they are a valid file, reads all of it. Returns whether they are.
bool open_and_read(const std::string& text) {
  const ExactBytes bytes(text);
  try {
    attn_test::read_everything(SafetensorsFile(bytes.span()));
    return true;
  } catch (const IoError&) {
    return false;
  }
}

TEST(SafetensorsHeader, SurvivesEveryBitFlip) {
  const std::string whole = attn_test::sample_safetensors();
  int valid = 0;
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string mutant = whole;
    mutant[bit / 8] = static_cast<char>(mutant[bit / 8] ^ (1 << bit % 8));
    valid += open_and_read(mutant);
  }
  EXPECT_GT(valid, 61 * 8 - 1);  // each flip among the 61 bytes of data leaves a valid file
}

TEST(SafetensorsHeader, SurvivesMutations) {
  const std::string whole = attn_test::sample_safetensors();
  const std::string_view tokens[] = {"{",   "}",  "[",    "]",  ",",  ":",    "\"",
                                     "-1",  "0",  "4",    "64", "1e", "null", "\\u0000",
                                     "F32", "I8", "BOOL", "\0", "61", "  "};
  std::mt19937 random(20240607);
  const auto below = [&](std::size_t n) { return std::size_t{random()} % n; };
  int valid = 0;
  const int rounds = static_cast<int>(attn_test::draws(20'000));
  for (int round = 0; round < rounds; ++round) {
    std::string mutant = whole;
    for (std::size_t edits = 1 + below(4); edits > 0; --edits) {
      const std::size_t at = below(mutant.size());
      switch (below(5)) {
        case 0:
          mutant[at] = static_cast<char>(mutant[at] ^ (1 << below(8)));
          break;
        case 1:
          mutant[at] = static_cast<char>(below(256));
          break;
        case 2:
          mutant.erase(at, 1 + below(8));
          break;
        case 3:
          mutant.insert(at, tokens[below(std::size(tokens))]);
          break;
        case 4:
          mutant.replace(at, 1, tokens[below(std::size(tokens))]);
          break;
      }
      if (mutant.empty()) break;
    }
    // Every second mutant gets a correct length, so that it passes the first check.
    if (round % 2 == 0 && mutant.size() > 8 + 61) {
      mutant.replace(0, 8, length_prefix(mutant.size() - 8 - 61));
    }
    valid += open_and_read(mutant);
  }
  EXPECT_GT(valid, 0);
  EXPECT_LT(valid, rounds);
}

}  // namespace
}  // namespace attn
