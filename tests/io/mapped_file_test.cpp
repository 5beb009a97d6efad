// MappedFile: contents, moves, and files that cannot be mapped.
#include "attn/io/mapped_file.hpp"

#include <cstring>
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"

#if ATTN_HAS_MMAP
#include <sys/stat.h>
#endif

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::TempFolder;

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, HoldsTheBytes) {
  const TempFolder folder;
  const std::string text("one\0two\xFF", 8);
  EXPECT_EQ(text_of(MappedFile(folder.write("a", text))), text);
  // More than a page.
  const std::string large(100'001, 'x');
  EXPECT_EQ(text_of(MappedFile(folder.write("b", large))), large);
}

TEST(MappedFile, MayBeEmpty) {
  const TempFolder folder;
  EXPECT_TRUE(MappedFile(folder.write("empty", "")).bytes().empty());
  EXPECT_TRUE(MappedFile().bytes().empty());
}

TEST(MappedFile, MovesWithoutMovingTheBytes) {
  static_assert(std::is_nothrow_move_constructible_v<MappedFile>);
  static_assert(std::is_nothrow_move_assignable_v<MappedFile>);
  static_assert(!std::is_copy_constructible_v<MappedFile>);
  const TempFolder folder;
  MappedFile first(folder.write("a", "first"));
  const std::byte* data = first.bytes().data();
  MappedFile second(std::move(first));
  EXPECT_EQ(second.bytes().data(), data);
  EXPECT_TRUE(first.bytes().empty());  // NOLINT(bugprone-use-after-move)
  MappedFile third(folder.write("b", "third"));
  third = std::move(second);
  EXPECT_EQ(third.bytes().data(), data);
  EXPECT_EQ(text_of(third), "first");
}

TEST(MappedFile, ReleasedBytesAreReadAgain) {
  const TempFolder folder;
  std::string text(100'001, 'x');
  text.back() = 'y';
  const MappedFile file(folder.write("a", text));
  EXPECT_EQ(text_of(file), text);
  for (const std::size_t begin : {0u, 1u, 4095u, 50'000u, 100'001u}) {
    file.release(file.bytes().subspan(begin));
    file.release(file.bytes().subspan(0, begin));
    EXPECT_EQ(text_of(file), text);
  }
  MappedFile().release({});
}

#if !defined(_WIN32)  // which does not remove a mapped file
TEST(MappedFile, OutlivesItsName) {
  const TempFolder folder;
  const auto path = folder.write("a", "still here");
  const MappedFile file(path);
  std::filesystem::remove(path);
  EXPECT_EQ(text_of(file), "still here");
}
#endif

TEST(MappedFile, NamesTheFileAndTheReason) {
  const TempFolder folder;
  const std::string missing = error_of<IoError>([&] { MappedFile file(folder / "no such file"); });
  const std::string name = detail::quote(detail::utf8(folder / "no such file"));
  EXPECT_TRUE(contains(missing, "[MappedFile] " + name));
  EXPECT_TRUE(contains(missing, "o such file or directory."));
  EXPECT_TRUE(contains(error_of<IoError>([&] { MappedFile file(folder.path()); }), "regular file"));
  EXPECT_TRUE(contains(error_of<IoError>([] { MappedFile file(""); }), "\"\" must be"));
#if ATTN_HAS_MMAP
  // A plain open of a named pipe without a writer would block forever.
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(contains(error_of<IoError>([&] { MappedFile file(folder / "pipe"); }), "pipe"));
  EXPECT_TRUE(contains(error_of<IoError>([] { MappedFile file("/dev/null"); }), "device"));
#endif
}

}  // namespace
}  // namespace attn
