// Buffer: owned, 64-byte aligned storage whose layout does not depend on compiler flags.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
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
      message("Buffer", "the size in bytes", "fit 63 bits", std::to_string(size) + " elements"));
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
      data_.reset(static_cast<T*>(::operator new(bytes, std::align_val_t{kAlignment})));
    }
  }

  /// `size` elements whose bytes are 0. Large ones are pages that the system has cleared, which take
  /// no memory before they are touched: a model whose weights are replaced when it is loaded costs
  /// nothing before.
  static Buffer zeros(index_t size) {
    constexpr std::size_t kLarge = std::size_t{1} << 20;
    const std::size_t bytes = bytes_of(size);
    if (bytes < kLarge) {
      Buffer result(size);
      if (bytes > 0) std::memset(static_cast<void*>(result.data()), 0, bytes);
      return result;
    }
    Buffer result;
    void* start = std::calloc(bytes + kAlignment, 1);
    if (start == nullptr) throw std::bad_alloc();
    void* aligned = start;
    std::size_t room = bytes + kAlignment;
    std::align(kAlignment, bytes, aligned, room);
    result.data_ = {static_cast<T*>(aligned), Release{start}};
    result.size_ = size;
    return result;
  }

  /// What was moved from is empty: its memory is gone, and a size without memory would be read.
  Buffer(Buffer&& other) noexcept
      : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }
  ~Buffer() = default;

  T* data() const { return data_.get(); }
  index_t size() const { return size_; }

 private:
  struct Release {
    void* start = nullptr;  ///< of zeros(): where calloc's memory begins

    void operator()(T* p) const {
      if (start != nullptr) return std::free(start);
      ::operator delete(p, std::align_val_t{kAlignment});
    }
  };

  static std::size_t bytes_of(index_t size) {
    constexpr index_t most = (std::numeric_limits<index_t>::max)() / index_t{sizeof(T)};
    if (size < 0 || size > most) detail::throw_buffer_size(size);
    return static_cast<std::size_t>(size) * sizeof(T);
  }

  std::unique_ptr<T[], Release> data_;
  index_t size_ = 0;
};

ATTN_NAMESPACE_END
