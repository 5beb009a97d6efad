// GgufFile of split models: the first part opens the others; missing and contradictory parts.
#include <filesystem>
#include <vector>

#include <gtest/gtest.h>

#include "attn/io/gguf/writer.hpp"

#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::TempFolder;

/// The keys of one part.
struct Part {
  std::uint16_t no, count = 3;
  std::int32_t tensors = 3;
  std::vector<std::string> names;
};

class SplitGguf {
 public:
  /// A model of three tensors, the first part of which holds none.
  SplitGguf() {
    write({.no = 0, .names = {}});
    write({.no = 1, .names = {"a", "b"}});
    write({.no = 2, .names = {"c"}});
  }

  std::filesystem::path path(int no) const {
    return folder_ / ("tiny-0000" + std::to_string(no + 1) + "-of-00003.gguf");
  }
  void write(const Part& part) const { write(part, path(part.no)); }
  void write(const Part& part, const std::filesystem::path& to) const {
    GgufMetadata metadata;
    if (part.no == 0) metadata.set("general.architecture", "test");
    metadata.set("split.no", part.no);
    metadata.set("split.count", part.count);
    metadata.set("split.tensors.count", part.tensors);
    std::vector<std::vector<float>> values;
    std::vector<NamedGgufTensor> tensors;
    for (const std::string& name : part.names)
      values.push_back({1.5f, static_cast<float>(name[0])});
    for (std::size_t i = 0; i < values.size(); ++i) {
      tensors.push_back({part.names[i], {GgufType::F32, {2}, std::as_bytes(std::span(values[i]))}});
    }
    save_gguf(to, metadata, tensors);
  }
  std::string error() const {
    return error_of<IoError>([&] { GgufFile{path(0)}; });
  }

 private:
  TempFolder folder_;
};

TEST(SplitGguf, TheFirstPartOpensTheOthers) {
  const SplitGguf split;
  GgufFile opened(split.path(0));
  const GgufFile file = std::move(opened);
  EXPECT_EQ(file.names(), (std::vector<std::string>{"a", "b", "c"}));
  for (const std::string& name : file.names()) {
    EXPECT_EQ(file.load<1>(name)(1), static_cast<float>(name[0]));
    file.release(name);
    EXPECT_EQ(file.view<1>(name)(0), 1.5f);
  }
  EXPECT_EQ(file.get<std::string_view>("general.architecture"), "test");
  // A copy of the metadata describes one file.
  EXPECT_FALSE(file.has("split.count"));
  EXPECT_EQ(file.metadata().size(), 1u);
}

TEST(SplitGguf, OnePartOfOneIsAFile) {
  const SplitGguf split;
  split.write({.no = 0, .count = 1, .tensors = 1, .names = {"x"}});
  EXPECT_EQ(GgufFile(split.path(0)).load<1>("x")(1), 120.0f);
  split.write({.no = 0, .count = 0, .tensors = 1, .names = {"x"}});  // as merged files say
  EXPECT_EQ(GgufFile(split.path(0)).load<1>("x")(1), 120.0f);
}

TEST(SplitGguf, NamesTheMissingOrContradictoryPart) {
  const SplitGguf split;
  EXPECT_TRUE(contains(error_of<IoError>([&] { GgufFile{split.path(1)}; }),
                       "must be the first part of the model, *-00001-of-00003.gguf, which opens "
                       "the others; found part 2 of 3"));
  const std::vector<std::byte> bytes = [&] {
    const MappedFile map(split.path(0));
    return std::vector(map.bytes().begin(), map.bytes().end());
  }();
  EXPECT_TRUE(contains(error_of<IoError>([&] { GgufFile(bytes, "part"); }),
                       "in one piece of memory (a path opens all parts); found part 1 of 3"));
  const auto other = split.path(0).parent_path() / "other.gguf";
  std::filesystem::copy(split.path(0), other);
  EXPECT_TRUE(contains(error_of<IoError>([&] { GgufFile{other}; }),
                       "have a name that ends with -00001-of-00003.gguf, because it is the first "
                       "of 3 parts; found \"other.gguf\""));

  split.write({.no = 2, .tensors = 4, .names = {"c"}});
  EXPECT_TRUE(contains(split.error(),
                       "tiny-00003-of-00003.gguf\": key \"split.tensors.count\" must "
                       "be 3, as the first part says; found 4"));
  split.write({.no = 2, .count = 4, .names = {"c"}});
  EXPECT_TRUE(contains(split.error(), "key \"split.count\" must be 3"));
  split.write({.no = 1, .names = {"c"}}, split.path(2));
  EXPECT_TRUE(contains(split.error(), "key \"split.no\" must be 2"));
  split.write({.no = 2, .names = {"b"}});
  EXPECT_TRUE(contains(split.error(),
                       "tensor \"b\" must lie in one part only; found it in an earlier one too"));
  split.write({.no = 2, .names = {}});
  EXPECT_TRUE(contains(split.error(), "the parts together must hold 3 tensors; found 2"));
  std::filesystem::remove(split.path(2));
  EXPECT_TRUE(contains(split.error(), "tiny-00003-of-00003.gguf\" must be a readable file"));
}

}  // namespace
}  // namespace attn
