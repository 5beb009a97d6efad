// NpzFile, save_npz: numpy's .npz files; needs zlib.
// SPDX-License-Identifier: Apache-2.0
//
// Not part of attn/io.hpp: a program that includes this links zlib, by CMake's ZLIB::ZLIB.
#pragma once

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>
#include <zlib.h>

#include "attn/io/npy.hpp"
#include "attn/io/numpy/zip_directory.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline std::uint32_t crc_of(std::uint32_t crc, std::span<const std::byte> bytes) {
  return static_cast<std::uint32_t>(
      ::crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

/// Inflates a raw stream until `out` is full or the stream ends; returns the number of bytes
/// written. Throws IoError for a broken stream.
class Inflater {
 public:
  Inflater(std::span<const std::byte> stored, std::string subject)
      : stored_(stored), subject_(std::move(subject)) {
    if (::inflateInit2(&stream_, -MAX_WBITS) != Z_OK) throw std::bad_alloc();
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() { ::inflateEnd(&stream_); }

  std::size_t operator()(std::span<std::byte> out) {
    constexpr std::size_t most = (std::numeric_limits<uInt>::max)() / 2;  // zlib counts in 32 bits
    std::size_t done = 0;
    while (done < out.size() && !is_at_end_) {
      if (stream_.avail_in == 0) {
        const std::size_t given = (std::min)(stored_.size(), most);
        stream_.next_in =
            const_cast<Bytef*>(reinterpret_cast<const Bytef*>(stored_.data()));  // only read
        stream_.avail_in = static_cast<uInt>(given);
        stored_ = stored_.subspan(given);
      }
      const std::size_t room = (std::min)(out.size() - done, most);
      stream_.next_out = reinterpret_cast<Bytef*>(out.data() + done);
      stream_.avail_out = static_cast<uInt>(room);
      const int result = ::inflate(&stream_, Z_NO_FLUSH);
      const std::size_t made = room - stream_.avail_out;
      done += made;
      is_at_end_ = result == Z_STREAM_END;
      if (result != Z_OK && !is_at_end_) {
        throw IoError(message("NpzFile", subject_, "be a whole deflate stream",
                              stream_.msg != nullptr ? stream_.msg : "its end too early"));
      }
    }
    return done;
  }

 private:
  std::span<const std::byte> stored_;
  std::string subject_;
  z_stream stream_{};
  bool is_at_end_ = false;
};

}  // namespace detail

/// An open .npz file; const calls are thread-safe. Opening checks the directory; an array is
/// checked when it is requested. Members that are not .npy files are ignored.
class NpzFile {
 public:
  /// Maps the file. Throws IoError if it cannot be read or is not a zip file.
  explicit NpzFile(const std::filesystem::path& path)
      : map_(path), bytes_(map_.bytes()), file_name_(detail::utf8(path)) {
    open();
  }
  /// Reads a file's bytes from memory that the caller keeps alive; `name` stands for the file in
  /// errors.
  explicit NpzFile(std::span<const std::byte> bytes, std::string name = "memory")
      : bytes_(bytes), file_name_(std::move(name)) {
    open();
  }

  const std::string& file_name() const { return file_name_; }

  /// Names as given to np.savez(), sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& item : members_) result.push_back(item.first);
    return result;
  }
  bool contains(std::string_view name) const { return members_.contains(name); }

  /// The array of a name. Stored arrays refer to this file, which must outlive them; compressed
  /// ones own their memory. Throws ValueError for an unknown name, IoError for a broken stream,
  /// checksum or header, and what NpyArray throws.
  NpyArray array(std::string_view name) const& {
    const auto at = members_.find(name);
    if (at == members_.end()) {
      throw ValueError(message("NpzFile", subject(name), "exist",
                               detail::concat("none of that name among ", members_.size())));
    }
    const detail::ZipMember& member = at->second;
    const std::string text = detail::concat(file_name_, ": ", detail::quote(name));
    if (!member.is_deflated) {
      check_crc(name, member, member.stored);
      return NpyArray(member.stored, text);
    }
    Buffer<std::byte> contents = inflated(name, member, text);
    check_crc(name, member, {contents.data(), static_cast<std::size_t>(contents.size())});
    return NpyArray(std::move(contents), text);
  }
  NpyArray array(std::string_view name) const&& = delete;  // could dangle

  /// array(name).load<T, Rank>()
  template <TensorElement T, int Rank>
  Tensor<T, Rank> load(std::string_view name) const {
    return array(name).template load<T, Rank>();
  }

 private:
  void open() {
    for (auto& [name, member] : detail::ZipDirectory(bytes_, file_name_).members()) {
      if (name.ends_with(".npy")) members_.emplace(name.substr(0, name.size() - 4), member);
    }
  }

  std::string subject(std::string_view name) const {
    return detail::concat(file_name_, ": array ", detail::quote(name));
  }

  void check_crc(std::string_view name, const detail::ZipMember& member,
                 std::span<const std::byte> contents) const {
    if (detail::crc_of(0, contents) == member.crc) return;
    throw IoError(message("NpzFile", subject(name), "have its checksum", "another"));
  }

  /// The header comes first, so that memory is allocated only if it agrees with the directory.
  Buffer<std::byte> inflated(std::string_view name, const detail::ZipMember& member,
                             const std::string& text) const {
    const auto size = static_cast<std::size_t>(member.size);
    constexpr std::size_t enough = 1 << 17;  // at least the size of any header that numpy writes
    std::vector<std::byte> head((std::min)(size, enough));
    head.resize(detail::Inflater(member.stored, subject(name))(head));
    const NpyHeader header = parse_npy_header(head, text);
    std::uint64_t expected = 0;
    if (__builtin_add_overflow(std::uint64_t{header.data_begin}, header.data_size, &expected) ||
        expected != member.size) {
      throw IoError(message("NpzFile", subject(name), detail::concat("have ", expected, " bytes"),
                            std::to_string(member.size)));
    }
    Buffer<std::byte> contents(static_cast<index_t>(size));
    const std::size_t found =
        detail::Inflater(member.stored, subject(name))({contents.data(), size});
    if (found != size) {
      throw IoError(message("NpzFile", subject(name), detail::concat("inflate to ", size, " bytes"),
                            std::to_string(found)));
    }
    return contents;
  }

  MappedFile map_;
  std::span<const std::byte> bytes_;
  std::string file_name_;
  std::map<std::string, detail::ZipMember, std::less<>> members_;
};

namespace detail {

/// Little-endian fields, one after another.
class ZipRecord {
 public:
  ZipRecord& operator()(std::uint64_t number, int bytes) {
    for (int i = 0; i < bytes; ++i) text_ += static_cast<char>(number >> (8 * i) & 0xFF);
    return *this;
  }
  ZipRecord& operator()(std::string_view text) {
    text_ += text;
    return *this;
  }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(text_)); }

 private:
  std::string text_;
};

/// The fields from the version needed to the length of the extra field; all sizes are in the extra
/// field, in 64 bits.
inline void zip_fields(ZipRecord& record, std::uint32_t crc, std::string_view name,
                       std::uint64_t extra) {
  constexpr std::uint64_t ones = 0xFFFFFFFF;
  record(45, 2)(1 << 11, 2)(0, 2);      // UTF-8, stored
  record(0, 2)(1 << 5 | 1, 2)(crc, 4);  // 1980-01-01, so that equal arrays give equal files
  record(ones, 4)(ones, 4)(name.size(), 2)(extra, 2);
}

}  // namespace detail

/// Writes arrays by name, in C order and uncompressed, atomically: `np.load(path)["weight"]` reads
/// them. Deterministic. Throws ValueError for a repeated name, one of more than 65531 bytes or one
/// that is not UTF-8; DTypeError for bfloat16, which numpy lacks; IoError naming the file if it
/// cannot be written.
inline void save_npz(const std::filesystem::path& path, std::span<const NamedTensor> arrays) {
  std::vector<std::string> names, preambles;
  for (const NamedTensor& array : arrays) {
    names.push_back(array.name() + ".npy");
    preambles.push_back(detail::npy_preamble("save_npz", array));
    std::string_view rest = array.name();
    while (const std::size_t length = detail::utf8_length(rest)) rest.remove_prefix(length);
    if (!rest.empty() || names.back().size() > 0xFFFF) {
      throw ValueError(message("save_npz", "every name", "be UTF-8 of at most 65531 bytes",
                               detail::quote(array.name())));
    }
  }
  std::vector<std::string> sorted = names;
  std::sort(sorted.begin(), sorted.end());
  const auto repeated = std::adjacent_find(sorted.begin(), sorted.end());
  if (repeated != sorted.end()) {
    throw ValueError(message("save_npz", "every name", "occur once", detail::quote(*repeated)));
  }

  AtomicFile file(path);
  std::uint64_t at = 0;
  const auto write = [&](std::span<const std::byte> piece) {
    file.write(piece);
    at += piece.size();
  };
  detail::ZipRecord directory;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto preamble = std::as_bytes(std::span(preambles[i]));
    std::uint32_t crc = detail::crc_of(0, preamble);
    std::uint64_t size = preamble.size();
    arrays[i].for_each_run([&](std::span<const std::byte> piece) {
      crc = detail::crc_of(crc, piece);
      size += piece.size();
    });
    directory(0x02014b50, 4)(45, 2);
    detail::zip_fields(directory, crc, names[i], 28);
    constexpr std::uint64_t ones = 0xFFFFFFFF;
    directory(0, 2)(0, 2)(0, 2)(0, 4)(ones, 4)(names[i]);
    directory(1, 2)(24, 2)(size, 8)(size, 8)(at, 8);
    detail::ZipRecord local;
    local(0x04034b50, 4);
    detail::zip_fields(local, crc, names[i], 20);
    write(local(names[i])(1, 2)(16, 2)(size, 8)(size, 8).bytes());
    write(preamble);
    arrays[i].for_each_run(write);
  }
  const std::uint64_t begin = at, length = directory.bytes().size(), count = names.size();
  write(directory.bytes());
  detail::ZipRecord end;
  end(0x06064b50, 4)(44, 8)(45, 2)(45, 2)(0, 4)(0, 4)(count, 8)(count, 8)(length, 8)(begin, 8);
  end(0x07064b50, 4)(0, 4)(begin + length, 8)(1, 4);
  end(0x06054b50, 4)(0, 2)(0, 2)(0xFFFF, 2)(0xFFFF, 2)(0xFFFFFFFF, 4)(0xFFFFFFFF, 4)(0, 2);
  write(end.bytes());
  file.commit();
}

/// `save_npz("model.npz", {{"weight", w}, {"bias", b}})`
inline void save_npz(const std::filesystem::path& path, std::initializer_list<NamedTensor> arrays) {
  save_npz(path, std::span(arrays.begin(), arrays.size()));
}

ATTN_NAMESPACE_END
