// Buffer: owned, 64-byte aligned storage whose layout does not depend on compiler flags.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>

#include "attn/core/shape.hpp"

// ATTN_NO_MMAP selects the fallback of systems without mmap.
#if (defined(__unix__) || defined(__APPLE__)) && !defined(ATTN_NO_MMAP)
#define ATTN_HAS_MMAP 1
#include <sys/mman.h>
#else
#define ATTN_HAS_MMAP 0
#endif
// AddressSanitizer detects a read past the end of a heap block, but not past that of a mapping.
#if ATTN_HAS_MMAP && !defined(__SANITIZE_ADDRESS__) && !ATTN_ABI_HAS_FEATURE(address_sanitizer)
#define ATTN_HAS_ZERO_PAGES 1
#else
#define ATTN_HAS_ZERO_PAGES 0
#endif

ATTN_NAMESPACE_BEGIN

/// A cache line, and the widest vector (AVX-512).
inline constexpr std::size_t kAlignment = 64;

namespace detail {

[[noreturn]] ATTN_COLD inline void throw_buffer_size(index_t size) {
  throw ShapeError(
      message("Buffer", "the size in bytes", "fit 63 bits", join({to_string(size), " elements"})));
}

}  // namespace detail

/// `size` elements of T, uninitialised. Throws std::bad_alloc, and ShapeError if the number of
/// bytes overflows. Never over-allocates: AddressSanitizer then detects a read past the end.
template <class T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer() = default;

  explicit Buffer(index_t size) : size_(size) {
    const std::size_t bytes = bytes_of(size);
    if (bytes > 0) {
      data_ = static_cast<T*>(::operator new(bytes, std::align_val_t{kAlignment}));
    }
  }

  /// `size` elements whose bytes are 0.
  static Buffer zeros(index_t size) {
    Buffer result(size);
    if (size > 0) std::memset(static_cast<void*>(result.data_), 0, bytes_of(size));
    return result;
  }

  /// Zeros, for weights that loading replaces. Large buffers are fresh pages, which take neither
  /// memory nor time until they are touched. calloc returns such pages only until the program has
  /// freed some. Code that writes all elements at once is faster with zeros().
  static Buffer zero_pages(index_t size) {
#if ATTN_HAS_ZERO_PAGES
    // smaller buffers would waste part of the last page
    constexpr std::size_t kLarge = std::size_t{1} << 17;
    const std::size_t bytes = bytes_of(size);
    if (bytes >= kLarge) {
      void* const start =
          ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (start == MAP_FAILED) throw std::bad_alloc();
      Buffer result;
      result.data_ = static_cast<T*>(start);
      result.size_ = size;
      result.is_map_ = true;
      return result;
    }
#endif
    return zeros(size);
  }

  /// A moved-from buffer is empty: its old size would let callers read memory that it no longer
  /// has.
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        is_map_(std::exchange(other.is_map_, false)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer taken(std::move(other));
    std::swap(data_, taken.data_);
    std::swap(size_, taken.size_);
    std::swap(is_map_, taken.is_map_);
    return *this;
  }
  ~Buffer() {
#if ATTN_HAS_ZERO_PAGES
    if (is_map_) {
      ::munmap(data_, bytes_of(size_));
      return;
    }
#endif
    ::operator delete(data_, std::align_val_t{kAlignment});
  }

  T* data() const { return data_; }
  index_t size() const { return size_; }

 private:
  static std::size_t bytes_of(index_t size) {
    constexpr index_t most = (std::numeric_limits<index_t>::max)() / index_t{sizeof(T)};
    if (size < 0 || size > most) detail::throw_buffer_size(size);
    return static_cast<std::size_t>(size) * sizeof(T);
  }

  // Not std::unique_ptr: including <memory> takes a tenth of the compile time of attention.hpp.
  T* data_ = nullptr;
  index_t size_ = 0;
  bool is_map_ = false;  ///< from zero_pages()
};

ATTN_NAMESPACE_END
