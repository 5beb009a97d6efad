// AtomicFile: writes a file completely or not at all.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <system_error>

#include "attn/io/mapped_file.hpp"

ATTN_NAMESPACE_BEGIN

/// Writes to a temporary file in the same folder; commit() moves it over `path`, so that readers
/// (and maps) of an older file of that name keep it undisturbed. Without commit() the temporary is
/// removed and the older file stays. A new file has the permissions of the one it replaces, and a
/// symbolic link stays one, to the new file. A device or a pipe is written directly. Throws IoError
/// naming the file and the reason.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path) : path_(path) {
    namespace fs = std::filesystem;
    std::error_code error;
    const fs::file_status older = fs::status(path, error);
    if (fs::is_directory(older))
      detail::throw_io_error("AtomicFile", path, "be a file", "a folder");
    replaces_ = !fs::exists(older) || fs::is_regular_file(older);
    if (replaces_ && fs::is_symlink(path, error)) {
      const fs::path target = fs::weakly_canonical(path, error);
      if (!error) path_ = target;
    }
    temporary_ = path_;
    // Random, so that two writers of one path never share a temporary.
    std::random_device random;
    if (replaces_) temporary_ += detail::concat(".tmp", random(), random());
    errno = 0;
    stream_.open(temporary_, std::ios::binary | std::ios::trunc);
    if (!stream_) fail("be creatable");
// On Windows the only permission is read-only, and such a file can be neither replaced nor removed.
#if !defined(_WIN32)
    if (fs::is_regular_file(older)) fs::permissions(temporary_, older.permissions(), error);
#endif
  }

  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  ~AtomicFile() {
    stream_.close();
    std::error_code ignored;
    if (!committed_ && replaces_) std::filesystem::remove(temporary_, ignored);
  }

  void write(std::span<const std::byte> bytes) {
    errno = 0;
    stream_.write(reinterpret_cast<const char*>(bytes.data()),
                  static_cast<std::streamsize>(bytes.size()));
    if (!stream_) fail("be writable");
  }

  /// Call once, last.
  void commit() {
    errno = 0;
    stream_.close();
    if (!stream_ || (replaces_ && !reached_disk())) fail("be writable");
    std::error_code error;
    if (replaces_) std::filesystem::rename(temporary_, path_, error);
    if (error) detail::throw_io_error("AtomicFile", path_, "be replaceable", error.message());
    committed_ = true;
  }

 private:
  [[noreturn]] void fail(std::string_view expected) const {
    // Standard streams need not report a reason, but on the supported systems they leave it in
    // errno.
    detail::throw_io_error("AtomicFile", path_, expected,
                           errno != 0 ? detail::reason(errno) : "a failed write");
  }

  // A rename may reach the disk before the contents do; after a power cut the name would then refer
  // to an empty file.
  bool reached_disk() const {
#if ATTN_HAS_MMAP
    const int file = ::open(temporary_.c_str(), O_WRONLY | O_CLOEXEC);
    if (file < 0) return false;
    // EINVAL: the file system, for example a pseudo one, cannot sync.
    const bool synced = ::fsync(file) == 0 || errno == EINVAL;
    ::close(file);
    return synced;
#elif defined(ATTN_HAS_FILE_VIEWS)
    const detail::Descriptor file(temporary_, _O_WRONLY);
    return file.number() >= 0 && ::_commit(file.number()) == 0;
#else
    return true;
#endif
  }

  std::filesystem::path path_, temporary_;
  std::ofstream stream_;
  bool replaces_ = true;  ///< an older file, or none
  bool committed_ = false;
};

ATTN_NAMESPACE_END
