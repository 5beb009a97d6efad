// Checks that a file can be written before minutes of work produce its contents.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <attn/io/atomic_file.hpp>

namespace examples {

// Throws attn::IoError if `bytes` more cannot be written to `path`. Leaves the file unchanged
// unless it is a device; does not test a pipe, since its reader would get the bytes.
inline void check_writable(const std::string& path, std::size_t bytes) {
  const auto status = std::filesystem::status(path);
  if (std::filesystem::is_fifo(status) || std::filesystem::is_socket(status)) return;
  attn::AtomicFile(path).write(std::vector<std::byte>(bytes));
}

}  // namespace examples
