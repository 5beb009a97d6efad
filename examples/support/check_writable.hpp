// Whether a file can be written, asked before the minutes of work whose result it takes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <attn/io/atomic_file.hpp>

namespace examples {

// Throws attn::IoError where `bytes` more cannot be written to `path`. Nothing stays of them, but in
// a device; a pipe is not asked, since its reader would get them.
inline void check_writable(const std::string& path, std::size_t bytes) {
  const auto status = std::filesystem::status(path);
  if (std::filesystem::is_fifo(status) || std::filesystem::is_socket(status)) return;
  attn::AtomicFile(path).write(std::vector<std::byte>(bytes));
}

}  // namespace examples
