// Workspace: reusable scratch memory that grows to the largest call.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "attn/core/buffer.hpp"

ATTN_NAMESPACE_BEGIN

/// A stack of scratch memory, used by one thread at a time: a call on several threads takes memory
/// for all of them before they start. After a sequence of calls has run once, running it again
/// allocates nothing.
class Workspace {
 public:
  Workspace() = default;
  /// Allocates `bytes` now, so that calls that need no more never allocate.
  explicit Workspace(std::size_t bytes) { reserve(bytes); }

  void reserve(std::size_t bytes) {
    if (bytes > capacity()) grow(bytes);
  }

  std::size_t capacity() const {
    std::size_t total = 0;
    for (const Buffer<std::byte>& block : blocks_) total += static_cast<std::size_t>(block.size());
    return total;
  }

  /// The most bytes ever in use at once: the number to reserve for the same work.
  std::size_t peak() const { return peak_; }

 private:
  template <class T>
  friend class Scratch;

  struct Mark {
    std::size_t block, used, total;
  };

  ATTN_COLD void grow(std::size_t bytes) {
    // If nothing is in use, one block replaces those that were added on demand.
    if (total_ == 0) {
      bytes = (std::max)(bytes, capacity());
      blocks_.clear();
      mark_ = {};
    }
    blocks_.emplace_back(static_cast<index_t>(bytes));
  }

  void* take(std::size_t bytes) {
    while (mark_.block < blocks_.size()) {
      const Buffer<std::byte>& block = blocks_[mark_.block];
      if (mark_.used + bytes <= static_cast<std::size_t>(block.size())) break;
      mark_.block += 1;
      mark_.used = 0;
    }
    if (mark_.block == blocks_.size()) {
      const bool whole = total_ == 0;
      grow(bytes);
      mark_ = {whole ? 0 : blocks_.size() - 1, 0, 0};
    }
    std::byte* start = blocks_[mark_.block].data() + mark_.used;
    mark_.used += bytes;
    total_ += bytes;
    peak_ = (std::max)(peak_, total_);
    return start;
  }

  void release(const Mark& mark) noexcept {
    mark_ = mark;
    total_ = mark.total;
    if (total_ == 0 && blocks_.size() > 1) {
      try {
        grow(capacity());  // so that the next call of the same size finds one block
      } catch (const std::bad_alloc&) {
        // The old blocks are freed; the workspace is empty but valid, and the next call allocates.
      }
    }
  }

  Mark mark() const { return {mark_.block, mark_.used, total_}; }

  std::vector<Buffer<std::byte>> blocks_;
  Mark mark_{};
  std::size_t total_ = 0, peak_ = 0;
};

namespace detail {

inline std::size_t scratch_bytes(index_t size, std::size_t element_size) {
  index_t twice = 0;
  if (__builtin_mul_overflow(size, static_cast<index_t>(2 * element_size), &twice)) {
    throw std::bad_alloc();
  }
  return (static_cast<std::size_t>(twice) / 2 + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace detail

/// `size` uninitialised elements from a workspace until the end of the scope; 64-byte aligned.
/// Scopes nest: the last one taken is released first.
template <class T>
class Scratch {
 public:
  Scratch(Workspace& workspace, index_t size)
      : workspace_(workspace), mark_(workspace.mark()), data_(nullptr), size_(size) {
    if (size > 0) data_ = static_cast<T*>(workspace.take(bytes(size)));
  }

  /// Number of bytes that `size` elements take from a workspace. Throws std::bad_alloc on overflow.
  static std::size_t bytes(index_t size) { return detail::scratch_bytes(size, sizeof(T)); }

  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { workspace_.release(mark_); }

  T* data() const { return data_; }
  index_t size() const { return size_; }

 private:
  Workspace& workspace_;
  Workspace::Mark mark_;
  T* data_;
  index_t size_;
};

/// Cuts 64-byte aligned arrays from one piece of memory; without memory it only adds up their
/// sizes. A struct of arrays has a constructor that takes one of these: without memory it computes
/// the size, with memory the arrays.
class ScratchLayout {
 public:
  explicit ScratchLayout(std::byte* memory = nullptr) : memory_(memory) {}

  /// nullptr without memory and for size 0. Throws std::bad_alloc on overflow.
  template <class T>
  T* take(index_t size) {
    return reinterpret_cast<T*>(take_bytes(size, sizeof(T)));
  }

  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* take_bytes(index_t size, std::size_t element_size) {
    const std::size_t bytes = detail::scratch_bytes(size, element_size);
    std::byte* start = memory_ == nullptr || bytes == 0 ? nullptr : memory_ + bytes_;
    if (__builtin_add_overflow(bytes_, bytes, &bytes_)) throw std::bad_alloc();
    return start;
  }

  std::byte* memory_;
  std::size_t bytes_ = 0;
};

#if defined(__MINGW32__)
namespace detail {

// Declared as <windows.h> does, so that a program may include it before or after attn.
extern "C" {
__declspec(dllimport) unsigned long __stdcall FlsAlloc(void(__stdcall* at_end)(void*));
__declspec(dllimport) void* __stdcall FlsGetValue(unsigned long slot);
__declspec(dllimport) int __stdcall FlsSetValue(unsigned long slot, void* value);
}

}  // namespace detail
#endif

/// The default workspace: one per thread.
inline Workspace& default_workspace() {
#if defined(__MINGW32__)
  // At the end of a thread, g++ frees thread_local objects before it destroys them there (GCC's bug
  // 80816). A slot of Windows instead holds the pointer, and destroys the workspace then.
  static const unsigned long slot =
      detail::FlsAlloc([](void* workspace) { delete static_cast<Workspace*>(workspace); });
  void* workspace = detail::FlsGetValue(slot);
  if (workspace == nullptr) {
    auto made = std::make_unique<Workspace>();
    if (detail::FlsSetValue(slot, made.get()) == 0) throw std::bad_alloc();
    workspace = made.release();
  }
  return *static_cast<Workspace*>(workspace);
#else
  thread_local Workspace workspace;
  return workspace;
#endif
}

ATTN_NAMESPACE_END
