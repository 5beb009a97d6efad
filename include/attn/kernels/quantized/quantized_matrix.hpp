// QuantizedWeights: a matrix of 4- or 8-bit values with scales, packed for all kernels.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "attn/core/element.hpp"
#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

/// How quantised values are decoded: weight = scale * (value - zero) + offset.
struct QuantizedFormat {
  int bits = 8;        ///< bits per value: 4 or 8
  index_t block = 32;  ///< consecutive k that share scale and offset: 16, 32, or 0: a whole row
  int zero = 128;      ///< the value that stands for weight 0, in 0 .. 2^bits - 1
  bool has_offset = false;
  bool has_wide = true;  ///< values above 127 occur
  bool float_scales =
      false;  ///< scales and offsets are float; else float16, which they must fit exactly

  bool operator==(const QuantizedFormat&) const = default;
};

namespace detail {

/// Quantised weights W (n, k) in the layout of the kernels, panels of 16 rows of W: the columns of
/// x W^T. A panel holds the scales of its blocks (block after block, 16 columns each), then the
/// offsets, then the quantised values; each part begins at a multiple of 64 bytes. Values are in
/// groups of four k: 16 columns with four consecutive k each, 64 bytes. 4-bit values: 64 bytes hold
/// groups g (low halves) and g + 4 (high halves) of a block of 32. k is padded to whole groups.
struct QuantizedMatrix {
  static constexpr index_t kPanelColumns = 16, kGroup = 4, kGroupBytes = kPanelColumns * kGroup;

  const std::uint8_t* data = nullptr;
  index_t n = 0, k = 0;
  QuantizedFormat format = {};

  index_t groups() const { return (k + kGroup - 1) / kGroup; }
  index_t blocks() const { return format.block == 0 ? 1 : k / format.block; }
  index_t panels() const { return (n + kPanelColumns - 1) / kPanelColumns; }
  index_t scale_bytes() const {  ///< of one panel; its offsets take as many
    const index_t size = format.float_scales ? index_t{sizeof(float)} : index_t{sizeof(float16)};
    return round_up(blocks() * kPanelColumns * size, index_t{kAlignment});
  }
  index_t codes_begin() const { return scale_bytes() * (format.has_offset ? 2 : 1); }
  index_t panel_bytes() const { return codes_begin() + groups() * kGroupBytes * format.bits / 8; }
  const std::uint8_t* panel(index_t index) const { return data + index * panel_bytes(); }

  /// Rows [begin, end) of W; `begin` is a multiple of 16.
  QuantizedMatrix rows(index_t begin, index_t end) const {
    return {.data = data + begin / kPanelColumns * panel_bytes(),
            .n = end - begin,
            .k = k,
            .format = format};
  }
};

/// Writes the blocks of one row of W. A separate value: compilers keep it in registers, while
/// members of the matrix would be reloaded after every byte written.
class QuantizedRowWriter {
 public:
  QuantizedRowWriter(const QuantizedMatrix& matrix, std::uint8_t* panel, index_t column)
      : scales_(panel + column * size_of_scale(matrix.format)),
        offsets_(matrix.format.has_offset ? scales_ + matrix.scale_bytes() : nullptr),
        codes_(panel + matrix.codes_begin() + column * QuantizedMatrix::kGroup),
        count_(matrix.format.block == 0 ? matrix.k : matrix.format.block),
        bits_(matrix.format.bits),
        float_scales_(matrix.format.float_scales) {}

  /// As QuantizedWeights::set_block(). Scale: float or float16.
  template <class Scale>
  void set(index_t block, const std::uint8_t* codes, Scale scale, Scale offset) const {
    if (bits_ == 8) return set_bytes(block, codes, scale, offset);
    std::uint8_t pairs[16];
    for (std::size_t i = 0; i < 16; ++i) {
      pairs[i] = static_cast<std::uint8_t>(codes[i] | codes[i + 16] << 4);
    }
    set_bytes(block, pairs, scale, offset);
  }
  /// set() with bytes in the layout of the panel: 8-bit values, or 4-bit values i and i + 16 in
  /// one byte.
  template <class Scale>
  void set_bytes(index_t block, const std::uint8_t* bytes, Scale scale, Scale offset) const {
    constexpr index_t kGroup = QuantizedMatrix::kGroup;
    put_scale(scales_, block, scale);
    if (offsets_ != nullptr) put_scale(offsets_, block, offset);
    const index_t size = count_ * bits_ / 8;
    std::uint8_t* to = codes_ + block * size * QuantizedMatrix::kPanelColumns;
    index_t i = 0;
    for (; i + kGroup <= size; i += kGroup, to += QuantizedMatrix::kGroupBytes) {
      std::memcpy(to, bytes + i, std::size_t{kGroup});
    }
    for (; i < size; ++i) *to++ = bytes[i];
  }

 private:
  static index_t size_of_scale(const QuantizedFormat& format) {
    return format.float_scales ? index_t{sizeof(float)} : index_t{sizeof(float16)};
  }
  template <class Scale>
  void put_scale(std::uint8_t* part, index_t block, Scale value) const {
    const index_t at = block * QuantizedMatrix::kPanelColumns;
    if (float_scales_) {
      const auto wide = static_cast<float>(value);
      std::memcpy(part + at * index_t{sizeof wide}, &wide, sizeof wide);
    } else {
      const auto half = static_cast<float16>(value);
      std::memcpy(part + at * index_t{sizeof half}, &half, sizeof half);
    }
  }

  std::uint8_t *scales_, *offsets_, *codes_;
  index_t count_;  ///< of values in a block
  int bits_;
  bool float_scales_;
};

}  // namespace detail

/// A quantised weight matrix W (n, k) that can be multiplied: x W^T.
class QuantizedWeights {
 public:
  QuantizedWeights() = default;

  /// The initial values of the weights.
  enum class Fill {
    zeros,
    none,  ///< nothing, until set_block() has been called for every block
  };

  /// All weights are 0. Throws ValueError for an invalid format, ShapeError unless k is a multiple
  /// of the block size.
  QuantizedWeights(index_t n, index_t k, const QuantizedFormat& format, Fill fill = Fill::zeros) {
    const auto check = [](bool good, std::string_view argument, std::string_view expected,
                          index_t found) {
      if (good) return;
      throw ValueError(message("QuantizedWeights", argument, expected, std::to_string(found)));
    };
    check(format.bits == 8 || (format.bits == 4 && format.block == 32), "bits",
          "be 8, or 4 with blocks of 32", format.bits);
    check(format.block == 0 || format.block == 16 || format.block == 32, "block",
          "be 0 (a whole row), 16 or 32", format.block);
    check(format.zero >= 0 && format.zero < 1 << format.bits, "zero",
          "be a number of format.bits bits", format.zero);
    check(n >= 0, "n", "be at least 0", n);
    check(k >= 0, "k", "be at least 0", k);
    if (format.block != 0 && k % format.block != 0) {
      throw ShapeError(message("QuantizedWeights", "k",
                               "be a multiple of the block, " + std::to_string(format.block),
                               std::to_string(k)));
    }
    matrix_ = {.n = n, .k = k, .format = format};
    codes_ = Tensor1<std::uint8_t>::uninitialized({matrix_.panels() * matrix_.panel_bytes()});
    // Scales are 0; the values that pad the last group and panel decode to 0.
    const auto zero = static_cast<std::uint8_t>(format.bits == 8 ? format.zero : format.zero * 17);
    const bool has_filling = k % detail::QuantizedMatrix::kGroup != 0;
    const index_t first =
        fill == Fill::zeros || has_filling ? 0 : n / detail::QuantizedMatrix::kPanelColumns;
    for (index_t p = first; p < matrix_.panels(); ++p) {
      std::uint8_t* panel = codes_.data() + p * matrix_.panel_bytes();
      std::fill_n(panel, matrix_.codes_begin(), std::uint8_t{0});
      std::fill(panel + matrix_.codes_begin(), panel + matrix_.panel_bytes(), zero);
    }
  }

  explicit operator bool() const { return codes_.data() != nullptr; }
  index_t n() const { return matrix_.n; }
  index_t k() const { return matrix_.k; }
  const QuantizedFormat& format() const { return matrix_.format; }
  /// Memory of the matrix in bytes.
  index_t bytes() const { return codes_.size(); }

  /// Sets the quantised values of one block (of the whole row if format().block is 0), its scale
  /// and its offset.
  void set_block(index_t row, index_t block, const std::uint8_t* codes, float scale,
                 float offset = 0) {
    writer(row).set(block, codes, scale, offset);
  }
  /// For setting many blocks of one row.
  detail::QuantizedRowWriter writer(index_t row) {
    constexpr index_t kColumns = detail::QuantizedMatrix::kPanelColumns;
    return {matrix_, codes_.data() + row / kColumns * matrix_.panel_bytes(), row % kColumns};
  }

  /// Returns what set_block() stored.
  void get_block(index_t row, index_t block, std::uint8_t* codes, float& scale,
                 float& offset) const {
    constexpr index_t kColumns = detail::QuantizedMatrix::kPanelColumns;
    const std::uint8_t* panel = codes_.data() + row / kColumns * matrix_.panel_bytes();
    const index_t at = block * kColumns + row % kColumns;
    scale = scale_at(panel, at);
    offset = matrix_.format.has_offset ? scale_at(panel + matrix_.scale_bytes(), at) : 0;
    const index_t count = matrix_.format.block == 0 ? matrix_.k : matrix_.format.block;
    for (index_t i = 0; i < count; ++i) {
      codes[i] = static_cast<std::uint8_t>(code_at(panel, row % kColumns, block * count + i));
    }
  }

  /// A copy of rows [begin, end). Throws ShapeError for rows outside the matrix.
  QuantizedWeights rows(index_t begin, index_t end) const {
    if (begin < 0 || end < begin || end > n()) {
      throw ShapeError(message("QuantizedWeights::rows", "begin and end",
                               "lie in order in 0 .. " + std::to_string(n()),
                               std::to_string(begin) + " and " + std::to_string(end)));
    }
    QuantizedWeights part(end - begin, k(), format(), Fill::zeros);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(format().block == 0 ? k() : 32));
    for (index_t row = begin; row < end; ++row) {
      for (index_t block = 0; block < matrix_.blocks(); ++block) {
        float scale = 0, offset = 0;
        get_block(row, block, codes.data(), scale, offset);
        part.set_block(row - begin, block, codes.data(), scale, offset);
      }
    }
    return part;
  }

  /// The weights as float, (n, k); each is rounded once, by the addition of the offset.
  void dequantize(TensorView2<float> out) const {
    check_shape("QuantizedWeights::dequantize", "out", Shape<2>{n(), k()}, out.shape());
    for (index_t row = 0; row < n(); ++row) {
      for (index_t i = 0; i < k(); ++i) out(row, i) = at(row, i);
    }
  }
  /// Dequantises one row, for an embedding: `out` (k).
  void dequantize_row(index_t row, TensorView1<float> out) const {
    for (index_t i = 0; i < k(); ++i) out(i) = at(row, i);
  }

  /// For the kernels; valid while this object lives.
  detail::QuantizedMatrix matrix() const {
    detail::QuantizedMatrix matrix = matrix_;
    matrix.data = codes_.data();
    return matrix;
  }

 private:
  int bits() const { return matrix_.format.bits; }

  float scale_at(const std::uint8_t* part, index_t at) const {
    if (matrix_.format.float_scales) {
      float value;
      std::memcpy(&value, part + at * index_t{sizeof value}, sizeof value);
      return value;
    }
    float16 half;
    std::memcpy(&half, part + at * index_t{sizeof half}, sizeof half);
    return half;
  }

  int code_at(const std::uint8_t* panel, index_t column, index_t i) const {
    const std::uint8_t* codes = panel + matrix_.codes_begin() + column * 4 + i % 4;
    if (bits() == 8) return codes[i / 4 * detail::QuantizedMatrix::kGroupBytes];
    const index_t group = i % 32 / 4;
    const int both = codes[(i / 32 * 4 + group % 4) * detail::QuantizedMatrix::kGroupBytes];
    return group < 4 ? both & 15 : both >> 4;
  }

  float at(index_t row, index_t i) const {
    constexpr index_t kColumns = detail::QuantizedMatrix::kPanelColumns;
    const std::uint8_t* panel = codes_.data() + row / kColumns * matrix_.panel_bytes();
    const index_t column = row % kColumns;
    const index_t block = matrix_.format.block == 0 ? 0 : i / matrix_.format.block;
    const int code = code_at(panel, column, i);
    const index_t at = block * kColumns + column;
    const float product = scale_at(panel, at) * static_cast<float>(code - matrix_.format.zero);
    return matrix_.format.has_offset ? product + scale_at(panel + matrix_.scale_bytes(), at)
                                     : product;
  }

  detail::QuantizedMatrix matrix_;  ///< without its data
  Tensor1<std::uint8_t> codes_;
};

/// Quantises w (n, k) to 8 bits with one scale per row: scale = max |w| / 127, values rounded to
/// nearest, ties to even. A row that holds a NaN or an infinity gets the scale NaN.
inline QuantizedWeights quantize_rows(TensorView2<const float> w) {
  const index_t n = w.extent(0), k = w.extent(1);
  QuantizedWeights result(n, k, {.block = 0, .float_scales = true});
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(k));
  for (index_t row = 0; row < n; ++row) {
    float largest = 0;
    bool is_finite = true;
    for (index_t i = 0; i < k; ++i) {
      is_finite = is_finite && std::isfinite(w(row, i));
      largest = (std::max)(largest, std::abs(w(row, i)));
    }
    const float scale = is_finite ? largest / 127 : std::numeric_limits<float>::quiet_NaN();
    const bool is_zero = !is_finite || scale < (std::numeric_limits<float>::min)();
    for (index_t i = 0; i < k; ++i) {
      const float code = is_zero ? 0 : std::nearbyint(w(row, i) / scale);
      codes[static_cast<std::size_t>(i)] =
          static_cast<std::uint8_t>(128 + static_cast<int>(std::clamp(code, -127.0f, 127.0f)));
    }
    result.set_block(row, 0, codes.data(), is_finite && is_zero ? 0 : scale);
  }
  return result;
}

ATTN_NAMESPACE_END
