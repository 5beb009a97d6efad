// Printing: numpy's text (make_printed.py), views, streams and errors.
#include "attn/core/print.hpp"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/error_of.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;

template <class T, int Rank>
std::string text_of(const nlohmann::json& item) {
  Shape<Rank> shape{};
  for (std::size_t a = 0; a < shape.size(); ++a) shape[a] = item["shape"][a].get<index_t>();
  Tensor<T, Rank> x(shape);
  std::istringstream values(item["values"].get<std::string>());
  std::string word;
  for (T& value : x.elements()) {
    values >> word;
    value = static_cast<T>(std::strtod(word.c_str(), nullptr));
  }
  const auto& options = item["options"];
  return to_string(x, {.precision = options["precision"].get<int>(),
                       .edge = options["edge"].get<index_t>(),
                       .threshold = options["threshold"].get<index_t>(),
                       .line_width = options["line_width"].get<index_t>()});
}

template <class T>
std::string text_of(const nlohmann::json& item) {
  switch (item["shape"].size()) {
    case 1:
      return text_of<T, 1>(item);
    case 2:
      return text_of<T, 2>(item);
    case 3:
      return text_of<T, 3>(item);
    default:
      return text_of<T, 4>(item);
  }
}

TEST(Print, IsWhatNumpyPrints) {
  std::ifstream file(ATTN_TEST_DATA_DIR "/core/printed.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_GT(cases.size(), 80u);
  for (const nlohmann::json& item : cases) {
    const auto dtype = item["dtype"].get<std::string>();
    const std::string found = dtype == "float32"   ? text_of<float>(item)
                              : dtype == "float64" ? text_of<double>(item)
                              : dtype == "float16" ? text_of<float16>(item)
                              : dtype == "int64"   ? text_of<std::int64_t>(item)
                              : dtype == "int32"   ? text_of<std::int32_t>(item)
                                                   : text_of<bool>(item);
    EXPECT_EQ(found, item["text"].get<std::string>())
        << dtype << " " << item["shape"] << " " << item["options"] << "\n"
        << item["values"];
  }
}

TEST(Print, ViewsOfAnyStridesAndStreams) {
  const Tensor2<float> x({2, 3}, {1, 2, 3, 4, 5, 6.5F});
  EXPECT_EQ(to_string(x.transpose(0, 1)), "[[1.  4. ]\n [2.  5. ]\n [3.  6.5]]");
  std::ostringstream stream;
  stream << x.select(0, 1) << x;
  EXPECT_EQ(stream.str(), "[4.  5.  6.5][[1.  2.  3. ]\n [4.  5.  6.5]]");
  EXPECT_EQ(to_string(Tensor1<bfloat16>({3}, {bfloat16(0.1F), bfloat16(-2.0F), bfloat16(12.8F)})),
            "[ 0.1 -2.  12.8]");
  EXPECT_EQ(to_string(Tensor3<float>()), "[]");
  EXPECT_EQ(to_string(std::vector<float>{1, 2.5F}), "[1.  2.5]");
  EXPECT_EQ(to_string(std::vector<index_t>{1, 2}), "(1, 2)");  // a shape
}

TEST(PrintErrors, NegativeOptions) {
  EXPECT_TRUE(
      contains(error_of<ValueError>([] { to_string(Tensor1<float>({1}), {.precision = -1}); }),
               "[to_string] precision, edge and threshold must be at least 0"));
  EXPECT_THROW(to_string(Tensor1<float>({1}), {.edge = -1}), ValueError);
}

}  // namespace
}  // namespace attn
