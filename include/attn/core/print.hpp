// to_string and <<: tensors as text in numpy's format.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iosfwd>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "attn/core/element.hpp"
#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

/// How to_string() formats a tensor.
struct PrintOptions {
  int precision = 4;         ///< maximum digits after the decimal point, 0 .. 300
  index_t edge = 3;          ///< elements shown at each end of an abbreviated axis
  index_t threshold = 1000;  ///< tensors with more elements are abbreviated
  index_t line_width = 75;   ///< characters per line before a row is wrapped
};

namespace detail {

/// One formatted element: integers and bool have only a text; floats are aligned at their decimal
/// points.
struct PrintedElement {
  enum class Kind { text, finite, nan, infinite } kind;
  std::string text;             ///< of a float the positional form, "-0.25"
  std::string scientific = {};  ///< "2.5e-01"
  double value = 0;
};

ATTN_COLD inline void drop_zeros(std::string& digits) {
  while (digits.back() == '0') digits.pop_back();
}

/// Number of digits after the point of "1.25" or "1.25e+00".
inline std::size_t fraction_digits(std::string_view number) {
  number = number.substr(0, number.find('e'));
  return number.size() - number.find('.') - 1;
}

/// The shortest text that reads back as `shortest`; if it has more digits than `precision`, `exact`
/// rounded to `precision` digits, without trailing zeros.
template <class Shortest>
std::string float_text(Shortest shortest, double exact, int precision, bool is_scientific) {
  char text[400];  // up to 309 digits before the point, or zeros after it
  const auto form = is_scientific ? std::chars_format::scientific : std::chars_format::fixed;
  std::string number(text, std::to_chars(text, text + sizeof text, shortest, form).ptr);
  std::size_t end = (std::min)(number.find('e'), number.size());
  if (number.find('.') == std::string::npos) number.insert(end, ".");
  if (fraction_digits(number) <= static_cast<std::size_t>(precision)) return number;
  number.assign(text, std::to_chars(text, text + sizeof text, exact, form, precision).ptr);
  end = (std::min)(number.find('e'), number.size());
  std::string digits = number.substr(0, end);
  if (precision == 0) digits += '.';
  drop_zeros(digits);
  return digits + number.substr(end);
}

template <class T>
PrintedElement printed_element(T x, int precision) {
  using Kind = PrintedElement::Kind;
  if constexpr (std::is_same_v<T, bool>) {
    return {.kind = Kind::text, .text = x ? " True" : "False"};
  } else if constexpr (std::is_integral_v<T>) {
    return {.kind = Kind::text, .text = std::to_string(x)};
  } else {
    const auto value = static_cast<double>(x);
    if (std::isnan(value)) return {.kind = Kind::nan, .text = "nan", .value = value};
    if (std::isinf(value)) {
      return {.kind = Kind::infinite, .text = value < 0 ? "-inf" : "inf", .value = value};
    }
    const auto text = [&](auto shortest) -> PrintedElement {
      return {.kind = Kind::finite,
              .text = float_text(shortest, value, precision, false),
              .scientific = float_text(shortest, value, precision, true),
              .value = value};
    };
    if constexpr (std::is_floating_point_v<T>) {
      return text(x);
    } else {
      // The shortest decimal of a 16-bit value is found by trial.
      char digits[32];
      double shortest = value;
      for (int n = 0; n < 6; ++n) {
        std::snprintf(digits, sizeof digits, "%.*e", n, value);
        shortest = std::strtod(digits, nullptr);
        if (static_cast<double>(T(shortest)) == value) break;
      }
      return text(shortest);
    }
  }
}

/// Whether to print exponents: for magnitudes from 10^n on, where n is digits10 of T, but 3 to 8;
/// magnitudes below 1e-4; or a ratio of largest to least above 1000. Computed in T, like numpy.
template <class T>
bool needs_exponents(const std::vector<PrintedElement>& elements) {
  double least = std::numeric_limits<double>::infinity(), most = 0;
  for (const PrintedElement& x : elements) {
    if (x.kind != PrintedElement::Kind::finite || x.value == 0) continue;
    least = (std::min)(least, std::abs(x.value));
    most = (std::max)(most, std::abs(x.value));
  }
  const double digits = (std::max)(3, (std::min)(8, std::numeric_limits<T>::digits10));
  return most > 0 && (most >= std::pow(10, digits) || least < static_cast<double>(T(1e-4)) ||
                      static_cast<double>(T(most / least)) > 1000);
}

/// Pads texts to one width, with decimal points aligned.
ATTN_COLD inline std::vector<std::string> aligned(std::vector<PrintedElement> elements,
                                                  bool is_scientific) {
  using Kind = PrintedElement::Kind;
  std::size_t left = 0, right = 0, exponent = 0, width = 0;
  for (PrintedElement& x : elements) {
    if (x.kind != Kind::finite) continue;
    if (is_scientific) x.text = x.scientific;
    left = (std::max)(left, x.text.find('.'));
    right = (std::max)(right, fraction_digits(x.text));
    if (is_scientific) exponent = (std::max)(exponent, x.text.size() - x.text.find('e') - 2);
  }
  for (PrintedElement& x : elements) {
    if (x.kind == Kind::finite && is_scientific) {
      // Prints all with the same number of digits: values with fewer get further digits of their
      // exact value.
      char text[400];
      const auto form = std::chars_format::scientific;
      const auto end = std::to_chars(text, text + sizeof text, x.value, form, int(right));
      x.text.assign(text, end.ptr);
      const std::size_t e = x.text.find('e');
      x.text.insert(e + 2, exponent - (x.text.size() - e - 2), '0');
      if (right == 0) x.text.insert(e, ".");
    } else if (x.kind == Kind::finite) {
      x.text.append(right - fraction_digits(x.text), ' ');
    }
    width = (std::max)(width, x.text.size());
  }
  // With aligned points the column may be wider than any single text.
  for (const PrintedElement& x : elements) {
    if (x.kind == Kind::finite) width = (std::max)(width, left + x.text.size() - x.text.find('.'));
  }
  std::vector<std::string> texts;
  for (PrintedElement& x : elements) {
    texts.push_back(std::string(width - x.text.size(), ' ') + x.text);
  }
  return texts;
}

/// Indices of an axis to print; -1 stands for the ones left out.
inline std::vector<index_t> shown(index_t extent, bool is_shortened, index_t edge) {
  std::vector<index_t> result;
  for (index_t i = 0; i < extent; ++i) {
    if (is_shortened && 2 * edge < extent && i == edge) {
      result.push_back(-1);
      i = extent - edge;
    }
    if (i < extent) result.push_back(i);
  }
  return result;
}

/// Adds brackets around texts, and line breaks between them.
class PrintedLayout {
 public:
  PrintedLayout(Extents shape, bool is_shortened, const PrintOptions& options,
                const std::vector<std::string>& texts)
      : shape_(shape), is_shortened_(is_shortened), options_(options), next_(texts.data()) {}

  std::string operator()(std::size_t axis = 0) {
    const std::vector<index_t> positions = shown(shape_[axis], is_shortened_, options_.edge);
    const std::string indent(axis + 1, ' ');
    if (axis + 1 == shape_.size()) return row(positions, indent);
    std::string result = "[";
    for (std::size_t i = 0; i < positions.size(); ++i) {
      if (i > 0) result.append(shape_.size() - 1 - axis, '\n').append(indent);
      result += positions[i] < 0 ? "..." : (*this)(axis + 1);
    }
    return result += "]";
  }

 private:
  std::string row(const std::vector<index_t>& positions, const std::string& indent) {
    const auto brackets = static_cast<index_t>(shape_.size());
    const index_t most = options_.line_width - brackets;
    std::string result, line = indent;
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const std::string word = positions[i] < 0 ? "..." : *next_++;
      if (static_cast<index_t>(line.size() + word.size()) > most && line.size() > indent.size()) {
        line.erase(line.find_last_not_of(' ') + 1);
        result += line + "\n";
        line = indent;
      }
      line += word;
      if (i + 1 < positions.size()) line += ' ';
    }
    result += line;
    return "[" + result.substr(indent.size()) + "]";
  }

  Extents shape_;
  bool is_shortened_;
  const PrintOptions& options_;
  const std::string* next_;
};

template <class T, int Rank>
void print_elements(const TensorView<const T, Rank>& x, bool is_shortened,
                    const PrintOptions& options, std::vector<PrintedElement>& elements) {
  for (index_t i : shown(x.extent(0), is_shortened, options.edge)) {
    if (i < 0) continue;
    if constexpr (Rank == 1) {
      elements.push_back(printed_element<T>(x(i), options.precision));
    } else {
      print_elements<T, Rank - 1>(x.select(0, i), is_shortened, options, elements);
    }
  }
}

}  // namespace detail

/// Formats the elements in numpy's format: aligned, and abbreviated if there are many. A
/// std::vector of index_t is a shape, which core/shape.hpp formats. Throws ValueError for a
/// negative precision, edge or threshold, and for a precision above 300.
template <TensorLike X>
  requires(!(VectorLike<X> && std::same_as<scalar_t<X>, index_t>))
std::string to_string(const X& x, const PrintOptions& options = {}) {
  using T = scalar_t<X>;
  constexpr bool is_printed = TensorElement<T> || std::same_as<T, char>;
  static_assert(is_printed, "to_string: the elements must be floats, integers or bool");
  if (options.precision < 0 || options.edge < 0 || options.threshold < 0 ||
      options.precision > 300) {
    throw ValueError(message(
        "to_string", "precision, edge and threshold", "be at least 0, precision at most 300",
        std::to_string(options.precision) + ", " + std::to_string(options.edge) + " and " +
            std::to_string(options.threshold)));
  }
  const TensorView<const T, rank_v<X>> view = const_view(x);
  if (view.size() == 0) return "[]";
  const bool is_shortened = view.size() > options.threshold;
  std::vector<detail::PrintedElement> elements;
  detail::print_elements<T, rank_v<X>>(view, is_shortened, options, elements);
  bool is_scientific = false;
  if constexpr (!std::is_integral_v<T>) is_scientific = detail::needs_exponents<T>(elements);
  const std::vector<std::string> texts = detail::aligned(std::move(elements), is_scientific);
  return detail::PrintedLayout(view.shape(), is_shortened, options, texts)();
}

/// Prints to_string(x) to a stream.
template <class Traits, class T, int Rank>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& stream,
                                             const TensorView<T, Rank>& x) {
  return stream << to_string(x);
}
template <class Traits, class T, int Rank>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& stream,
                                             const Tensor<T, Rank>& x) {
  return stream << to_string(x);
}

ATTN_NAMESPACE_END
