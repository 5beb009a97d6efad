// AtomicFile: the whole file or no file under its name, and no temporary file left.
#include "attn/io/atomic_file.hpp"

#include <csignal>
#include <string>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"

#if ATTN_HAS_MMAP
#include <sys/resource.h>
#endif

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::TempFolder;

void write(AtomicFile& file, std::string_view text) { file.write(std::as_bytes(std::span(text))); }

TEST(AtomicFile, AppearsOnCommit) {
  const TempFolder folder;
  AtomicFile file(folder / "a");
  write(file, "one ");
  write(file, "two");
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  file.commit();
  EXPECT_EQ(folder.read("a"), "one two");
  EXPECT_EQ(folder.number_of_files(), 1u);
}

TEST(AtomicFile, KeepsTheOldFileWithoutCommit) {
  const TempFolder folder;
  folder.write("a", "old");
  {
    AtomicFile file(folder / "a");
    write(file, "new");
  }
  EXPECT_EQ(folder.read("a"), "old");
  EXPECT_EQ(folder.number_of_files(), 1u);
}

TEST(AtomicFile, ReplacesUndisturbedByReaders) {
  const TempFolder folder;
  const MappedFile reader(folder.write("a", "old and long"));
  {
    AtomicFile file(folder / "a");
    write(file, "new");
#if defined(_WIN32)  // may refuse to replace a mapped file; the old one then stays
    try {
      file.commit();
    } catch (const IoError& error) {
      EXPECT_TRUE(contains(error.what(), "be replaceable"));
    }
    EXPECT_TRUE(folder.read("a") == "new" || folder.read("a") == "old and long");
#else
    file.commit();
    EXPECT_EQ(folder.read("a"), "new");
#endif
  }
  EXPECT_EQ(folder.number_of_files(), 1u);
  EXPECT_EQ(static_cast<char>(reader.bytes()[11]), 'g');
}

TEST(AtomicFile, KeepsPermissions) {
  namespace fs = std::filesystem;
  const TempFolder folder;
  fs::permissions(folder.write("a", "old"), fs::perms::owner_read | fs::perms::owner_write);
  const fs::perms before = fs::status(folder / "a").permissions();
  AtomicFile file(folder / "a");
  write(file, "new");
  file.commit();
  EXPECT_EQ(folder.read("a"), "new");
  EXPECT_EQ(fs::status(folder / "a").permissions(), before);
}

#if defined(_WIN32)  // which does not replace a read-only file; wine may
TEST(AtomicFile, LeavesNoTemporaryBesideAReadOnlyFile) {
  namespace fs = std::filesystem;
  const TempFolder folder;
  fs::permissions(folder.write("a", "old"), fs::perms::owner_read);
  try {
    AtomicFile file(folder / "a");
    write(file, "new");
    file.commit();
  } catch (const IoError& error) {
    EXPECT_TRUE(contains(error.what(), "be replaceable"));
    EXPECT_EQ(folder.read("a"), "old");
  }
  EXPECT_EQ(folder.number_of_files(), 1u);
  fs::permissions(folder / "a", fs::perms::owner_write, fs::perm_options::add);
}
#else  // where libstdc++ makes no links
TEST(AtomicFile, KeepsLinksAndPermissions) {
  namespace fs = std::filesystem;
  const TempFolder folder;
  const fs::perms owner = fs::perms::owner_read | fs::perms::owner_write;
  fs::permissions(folder.write("real", "old"), owner);
  fs::create_symlink("real", folder / "link");
  AtomicFile file(folder / "link");
  write(file, "new");
  EXPECT_EQ(folder.read("real"), "old");
  file.commit();
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(folder.read("real"), "new");
  EXPECT_EQ(fs::status(folder / "real").permissions(), owner);
  EXPECT_EQ(folder.number_of_files(), 2u);
}
#endif

#if ATTN_HAS_MMAP
TEST(AtomicFile, WritesToAPipe) {
  const TempFolder folder;
  const auto pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  std::filesystem::create_symlink("pipe", folder / "link");  // /dev/stdout is such a link
  AtomicFile file(folder / "link");
  write(file, "text");
  file.commit();
  char text[8] = {};
  EXPECT_EQ(::read(reader, text, sizeof text), 4);
  EXPECT_STREQ(text, "text");
  ::close(reader);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}
#endif

TEST(AtomicFile, NamesTheFileAndTheReason) {
  const TempFolder folder;
  const auto nowhere = folder / "no folder" / "a";
  const std::string text = error_of<IoError>([&] { AtomicFile file(nowhere); });
  EXPECT_TRUE(contains(text, detail::quote(detail::utf8(nowhere))));
  EXPECT_TRUE(contains(text, "No such file or directory"));

  std::filesystem::create_directory(folder / "taken");
  folder.write("taken/inside", "");
  EXPECT_TRUE(contains(error_of<IoError>([&] { AtomicFile file(folder / "taken"); }),
                       "must be a file; found a folder"));
  EXPECT_EQ(folder.number_of_files(), 1u);
}

#if ATTN_HAS_MMAP
TEST(AtomicFile, ReportsAFullDisk) {
  const TempFolder folder;
  folder.write("a", "old");
  // A limit on file sizes acts like a disk that becomes full half-way.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string text = error_of<IoError>([&] {
    AtomicFile file(folder / "a");
    for (int i = 0; i < 1000; ++i) write(file, std::string(1000, 'x'));
    file.commit();
  });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(contains(text, "must be writable; found File too large"));
  EXPECT_EQ(folder.read("a"), "old");
  EXPECT_EQ(folder.number_of_files(), 1u);
}
#endif

}  // namespace
}  // namespace attn
