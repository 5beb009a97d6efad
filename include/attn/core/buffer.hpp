// Buffer: owned, 64-byte aligned storage whose layout does not depend on compiler flags.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>

#include "attn/core/shape.hpp"

ATTN_NAMESPACE_BEGIN

/// A cache line, and the widest vector (AVX-512).
inline constexpr std::size_t kAlignment = 64;

namespace detail {

[[noreturn]] ATTN_COLD inline void throw_buffer_size(index_t size) {
  throw ShapeError(
      message("Buffer", "the size in bytes", "fit 63 bits", join({to_string(size), " elements"})));
}

}  // namespace detail

/// `size` elements of T, uninitialised. Throws std::bad_alloc, and ShapeError where the bytes
/// overflow. Never over-allocates: a read past the end is a read past the heap block, which
/// AddressSanitizer sees.
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

  /// `size` elements whose bytes are 0. Large ones are pages that the system has cleared, which
  /// take no memory before they are touched: a model whose weights are replaced when it is loaded
  /// costs nothing before.
  static Buffer zeros(index_t size) {
    constexpr std::size_t kLarge = std::size_t{1} << 17;  // from which on glibc maps pages
    const std::size_t bytes = bytes_of(size);
    if (bytes < kLarge) {
      Buffer result(size);
      if (bytes > 0) std::memset(static_cast<void*>(result.data()), 0, bytes);
      return result;
    }
    Buffer result;
    void* start = std::calloc(bytes + kAlignment, 1);
    if (start == nullptr) throw std::bad_alloc();
    const std::size_t beyond = reinterpret_cast<std::uintptr_t>(start) % kAlignment;
    result.zeros_ = start;
    result.data_ =
        reinterpret_cast<T*>(static_cast<std::byte*>(start) + (kAlignment - beyond) % kAlignment);
    result.size_ = size;
    return result;
  }

  /// What was moved from is empty: its memory is gone, and a size without memory would be read.
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        zeros_(std::exchange(other.zeros_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer taken(std::move(other));
    std::swap(data_, taken.data_);
    std::swap(zeros_, taken.zeros_);
    std::swap(size_, taken.size_);
    return *this;
  }
  ~Buffer() {
    if (zeros_ != nullptr) {
      std::free(zeros_);
    } else {
      ::operator delete(data_, std::align_val_t{kAlignment});
    }
  }

  T* data() const { return data_; }
  index_t size() const { return size_; }

 private:
  static std::size_t bytes_of(index_t size) {
    constexpr index_t most = (std::numeric_limits<index_t>::max)() / index_t{sizeof(T)};
    if (size < 0 || size > most) detail::throw_buffer_size(size);
    return static_cast<std::size_t>(size) * sizeof(T);
  }

  // Not std::unique_ptr: <memory> would be a tenth of what reading attention.hpp takes a compiler.
  T* data_ = nullptr;
  void* zeros_ = nullptr;  ///< of zeros(): where calloc's memory begins
  index_t size_ = 0;
};

ATTN_NAMESPACE_END
