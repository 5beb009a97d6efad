// Guarded memory: buffers before an inaccessible page, so that reads past the end are noticed.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

#include "support/array.hpp"
#if defined(_WIN32)
#include <windows.h>
#undef near
#undef far
#undef small
#else
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace attn_test {

/// Pages of memory that can be made inaccessible.
class Pages {
 public:
#if defined(_WIN32)
  static std::size_t page() {
    SYSTEM_INFO info;
    ::GetSystemInfo(&info);
    return info.dwPageSize;
  }
  explicit Pages(std::size_t bytes)
      : start_(::VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE)) {
    if (start_ == nullptr) throw std::bad_alloc();
  }
  ~Pages() { ::VirtualFree(start_, 0, MEM_RELEASE); }
  void forbid(std::byte* first, std::size_t bytes) {
    DWORD before;
    if (!::VirtualProtect(first, bytes, PAGE_NOACCESS, &before)) throw std::bad_alloc();
  }
#else
  static std::size_t page() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }
  explicit Pages(std::size_t bytes) : bytes_(bytes) {
    start_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~Pages() { ::munmap(start_, bytes_); }
  void forbid(std::byte* first, std::size_t bytes) {
    if (::mprotect(first, bytes, PROT_NONE) != 0) throw std::bad_alloc();
  }
#endif
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::byte* start() const { return static_cast<std::byte*>(start_); }

 private:
  void* start_;
#if !defined(_WIN32)
  std::size_t bytes_;
#endif
};

/// Elements that end at an inaccessible page (or, with `before_start`, begin right after one): a
/// read or write past the end ends the program, with or without a sanitizer.
template <class T>
class PageGuarded {
 public:
  enum class Side { after_end, before_start };

  explicit PageGuarded(Index size, Side side = Side::after_end)
      : size_(size), room_(rounded(bytes_of(size))), pages_(room_ + Pages::page()) {
    const bool after = side == Side::after_end;
    std::byte* guard = after ? pages_.start() + room_ : pages_.start();
    pages_.forbid(guard, Pages::page());
    data_ = reinterpret_cast<T*>(after ? guard - bytes_of(size) : guard + Pages::page());
  }
  explicit PageGuarded(const Array<T>& values, Side side = Side::after_end)
      : PageGuarded(values.size(), side) {
    std::copy(values.data.begin(), values.data.end(), data_);
  }
  T* data() const { return data_; }
  Index size() const { return size_; }

 private:
  static std::size_t bytes_of(Index size) { return static_cast<std::size_t>(size) * sizeof(T); }
  static std::size_t rounded(std::size_t bytes) {
    return (bytes + Pages::page() - 1) / Pages::page() * Pages::page();
  }

  Index size_;
  std::size_t room_;  ///< whole pages for the elements
  Pages pages_;
  T* data_;
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
