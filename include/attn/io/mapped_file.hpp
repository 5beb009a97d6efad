// MappedFile: a read-only memory-mapped file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "attn/core/buffer.hpp"
#include "attn/io/quote.hpp"

// ATTN_NO_MMAP selects the fallback of systems that map no files.
#if ATTN_HAS_MMAP
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#elif defined(_WIN32) && !defined(ATTN_NO_MMAP)
#define ATTN_HAS_FILE_VIEWS 1
#include "attn/io/windows.hpp"
#else
#include <fstream>
#endif

ATTN_NAMESPACE_BEGIN

namespace detail {

/// An IoError such as `[MappedFile] "model.bin" must be readable; found No such file or directory.`
[[noreturn]] inline void throw_io_error(std::string_view function,
                                        const std::filesystem::path& path,
                                        std::string_view expected, std::string_view found) {
  throw IoError(message(function, quote(utf8(path)), expected, found));
}

inline std::string reason(int error_number) {
  return std::generic_category().message(error_number);
}

}  // namespace detail

/// The bytes stay valid for the life of the object and wherever it is moved. If mapped, they are
/// the file itself: pages are read when first touched and shared between processes. If the file is
/// shortened meanwhile, the reader is killed (SIGBUS), so replace files by renaming, as
/// save_safetensors() does; Windows refuses to shorten or to replace a mapped file. Throws IoError
/// naming the file and the reason.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept { swap(other); }
  MappedFile& operator=(MappedFile&& other) noexcept {
    MappedFile taken(std::move(other));
    taken.swap(*this);
    return *this;
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

  /// Releases the memory of whole pages in a part of bytes(): they are read again when touched.
  /// Does nothing on Windows, or if the file is not mapped.
  void release(std::span<const std::byte> part) const;

 private:
  void swap(MappedFile& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(storage_, other.storage_);
  }

  std::span<const std::byte> bytes_;
  Buffer<std::byte> storage_;  // empty if the bytes are mapped
};

#if ATTN_HAS_MMAP

inline MappedFile::MappedFile(const std::filesystem::path& path) {
  struct Descriptor {
    int number;
    ~Descriptor() {
      if (number >= 0) ::close(number);  // a mapping outlives its descriptor
    }
  };
  // O_NONBLOCK: opening a named pipe would otherwise wait for a writer.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  struct stat status;
  if (file.number < 0 || ::fstat(file.number, &status) != 0) {
    detail::throw_io_error("MappedFile", path, "be a readable file", detail::reason(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    detail::throw_io_error("MappedFile", path, "be a regular file",
                           S_ISDIR(status.st_mode) ? "a directory" : "a device or pipe");
  }
  if (status.st_size == 0) return;  // mmap refuses a length of 0
  if (!std::in_range<std::size_t>(status.st_size)) {
    detail::throw_io_error("MappedFile", path, "fit the address space",
                           detail::concat(status.st_size, " bytes"));
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  void* start = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number, 0);
  if (start == MAP_FAILED) {
    detail::throw_io_error("MappedFile", path, "be mappable into memory", detail::reason(errno));
  }
  bytes_ = {static_cast<const std::byte*>(start), size};
}

inline MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

inline void MappedFile::release(std::span<const std::byte> part) const {
  if (part.empty()) return;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto offset = static_cast<std::size_t>(part.data() - bytes_.data());
  const std::size_t begin = (offset + page - 1) / page * page;
  const std::size_t end = (offset + part.size()) / page * page;
  if (begin >= end) return;
  // A hint: failure has no consequence.
  auto* start = const_cast<std::byte*>(bytes_.data()) + begin;
  static_cast<void>(::madvise(start, end - begin, MADV_DONTNEED));
}

#elif defined(ATTN_HAS_FILE_VIEWS)

inline MappedFile::MappedFile(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    detail::throw_io_error("MappedFile", path, "be a regular file", "a directory");
  }
  const detail::Descriptor file(path, _O_RDONLY);
  const long long size = file.number() < 0 ? -1 : ::_filelengthi64(file.number());
  if (size < 0) {
    detail::throw_io_error("MappedFile", path, "be a readable file", detail::reason(errno));
  }
  if (size == 0) return;  // which CreateFileMapping refuses
  void* start = detail::map_to_read(file);
  if (start == nullptr) {
    const int number = static_cast<int>(detail::GetLastError());
    detail::throw_io_error("MappedFile", path, "be mappable into memory",
                           std::system_category().message(number));
  }
  bytes_ = {static_cast<const std::byte*>(start), static_cast<std::size_t>(size)};
}

inline MappedFile::~MappedFile() {
  if (!bytes_.empty()) detail::UnmapViewOfFile(bytes_.data());
}

inline void MappedFile::release(std::span<const std::byte>) const {}

#else

inline void MappedFile::release(std::span<const std::byte>) const {}

inline MappedFile::MappedFile(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    detail::throw_io_error("MappedFile", path, "be a readable regular file",
                           error ? error.message() : "none");
  }
  std::ifstream stream(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = stream ? std::streamoff(stream.tellg()) : -1;
  if (size < 0 || !std::in_range<index_t>(size)) {
    detail::throw_io_error("MappedFile", path, "be a readable file", "that it cannot be opened");
  }
  storage_ = Buffer<std::byte>(static_cast<index_t>(size));
  stream.seekg(0);
  if (size > 0 && !stream.read(reinterpret_cast<char*>(storage_.data()), size)) {
    detail::throw_io_error("MappedFile", path, "be readable to its end", "a failed read");
  }
  bytes_ = {storage_.data(), static_cast<std::size_t>(size)};
}

inline MappedFile::~MappedFile() = default;

#endif

ATTN_NAMESPACE_END
