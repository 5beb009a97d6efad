// TempFolder: a temporary folder for a test's files, removed with its contents. Its name has a space
// and letters that no Latin code page has.
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace attn_test {

class TempFolder {
 public:
  TempFolder() {
    std::random_device random;
    path_ = std::filesystem::temp_directory_path() /
            (u8"attn test \u6570\u043a " + digits(random()) + digits(random()));
    std::filesystem::create_directory(path_);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

  std::filesystem::path write(std::string_view name, std::string_view bytes) const {
    std::ofstream stream(path_ / name, std::ios::binary);
    stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    EXPECT_TRUE(stream.flush()) << path_ / name;
    return path_ / name;
  }

  std::string read(std::string_view name) const {
    std::ifstream stream(path_ / name, std::ios::binary);
    EXPECT_TRUE(stream) << path_ / name;
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  std::size_t number_of_files() const {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path_)) ++count;
    return count;
  }

 private:
  static std::u8string digits(unsigned number) {
    const std::string text = std::to_string(number);
    return {text.begin(), text.end()};
  }

  std::filesystem::path path_;
};

}  // namespace attn_test
