// Guarded memory: buffers before an inaccessible page, so that reads past the end are noticed.
#pragma once

#include <cstddef>
#include <new>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "support/array.hpp"

namespace attn_test {

/// Elements that end at an inaccessible page (or, with `before_start`, begin right after one): a
/// read or write past the end ends the program, with or without a sanitizer.
template <class T>
class PageGuarded {
 public:
  enum class Side { after_end, before_start };

  explicit PageGuarded(Index size, Side side = Side::after_end) : size_(size) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t bytes = static_cast<std::size_t>(size) * sizeof(T);
    const std::size_t room = (bytes + page - 1) / page * page;
    mapped_ = room + page;
    start_ = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start_ == MAP_FAILED) throw std::bad_alloc();
    auto* first = static_cast<std::byte*>(start_);
    const bool after = side == Side::after_end;
    std::byte* guard = after ? first + room : first;
    if (::mprotect(guard, page, PROT_NONE) != 0) throw std::bad_alloc();
    data_ = reinterpret_cast<T*>(after ? guard - bytes : guard + page);
  }
  explicit PageGuarded(const Array<T>& values, Side side = Side::after_end)
      : PageGuarded(values.size(), side) {
    std::copy(values.data.begin(), values.data.end(), data_);
  }
  PageGuarded(const PageGuarded&) = delete;
  PageGuarded& operator=(const PageGuarded&) = delete;
  ~PageGuarded() { ::munmap(start_, mapped_); }

  T* data() const { return data_; }
  Index size() const { return size_; }

 private:
  Index size_;
  std::size_t mapped_ = 0;
  void* start_ = nullptr;
  T* data_ = nullptr;
};

/// A heap block of exactly this size: AddressSanitizer guards every byte on both sides.
template <class T>
class HeapGuarded {
 public:
  explicit HeapGuarded(Index size) : data_(new T[static_cast<std::size_t>(size)]()), size_(size) {}
  explicit HeapGuarded(const Array<T>& values) : HeapGuarded(values.size()) {
    std::copy(values.data.begin(), values.data.end(), data_);
  }
  HeapGuarded(const HeapGuarded&) = delete;
  HeapGuarded& operator=(const HeapGuarded&) = delete;
  ~HeapGuarded() { delete[] data_; }

  T* data() const { return data_; }
  Index size() const { return size_; }

 private:
  T* data_;
  Index size_;
};

}  // namespace attn_test
