// Mapping and flushing of files by Windows, without <windows.h>, which defines hundreds of macros.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <fcntl.h>
#include <filesystem>
#include <io.h>

#include "attn/core/config.hpp"

// Declared as <windows.h> does, so that a program may include it before or after attn.
struct _SECURITY_ATTRIBUTES;

ATTN_NAMESPACE_BEGIN

namespace detail {

extern "C" {
__declspec(dllimport) void* __stdcall CreateFileMappingW(void* file, _SECURITY_ATTRIBUTES*,
                                                         unsigned long protection,
                                                         unsigned long size_high,
                                                         unsigned long size_low,
                                                         const wchar_t* name);
__declspec(dllimport) void* __stdcall MapViewOfFile(void* mapping, unsigned long access,
                                                    unsigned long offset_high,
                                                    unsigned long offset_low, std::size_t size);
__declspec(dllimport) int __stdcall UnmapViewOfFile(const void* start);
__declspec(dllimport) int __stdcall CloseHandle(void* handle);
__declspec(dllimport) unsigned long __stdcall GetLastError();
__declspec(dllimport) void __stdcall SetLastError(unsigned long error);
}

/// An open file; -1 if it could not be opened (errno says why).
class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int access)
      : number_(::_wopen(path.c_str(), access | _O_BINARY | _O_NOINHERIT)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::_close(number_);  // a view outlives its descriptor
  }

  int number() const { return number_; }

 private:
  int number_;
};

/// All bytes of a file that is not empty, read-only; nullptr if Windows refuses (GetLastError()).
inline void* map_to_read(const Descriptor& file) {
  constexpr unsigned long kPageReadonly = 0x02, kFileMapRead = 0x04;
  auto* handle = reinterpret_cast<void*>(::_get_osfhandle(file.number()));
  void* mapping = CreateFileMappingW(handle, nullptr, kPageReadonly, 0, 0, nullptr);
  if (mapping == nullptr) return nullptr;
  void* start = MapViewOfFile(mapping, kFileMapRead, 0, 0, 0);
  const unsigned long error = GetLastError();
  CloseHandle(mapping);  // a view outlives it
  SetLastError(error);
  return start;
}

}  // namespace detail

ATTN_NAMESPACE_END
