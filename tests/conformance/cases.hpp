// Shared by the conformance suites: inputs of a case, the tolerance, an operator's axis.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "attn/core/element.hpp"

#include "golden/case.hpp"
#include "support/isas.hpp"
#include "support/tolerance.hpp"

namespace attn_test {

inline std::string in(std::string_view name) { return "in/" + std::string(name); }
inline std::string out(std::string_view name) { return "out/" + std::string(name); }

/// True if a tensor of the case has one of these types.
inline bool holds(const Case& c, std::initializer_list<attn::DType> types) {
  const auto names = c.file().names();
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name.starts_with(c.prefix()) &&
           std::find(types.begin(), types.end(), c.file().dtype(name)) != types.end();
  });
}

/// The largest absolute difference that passes. 16-bit inputs are computed in float here, while
/// ONNX rounds its results, and for bfloat16 intermediate ones: one step of the element at 1.
inline double gate(const Case& c) {
  if (holds(c, {attn::DType::BF16})) return epsilon<attn::bfloat16>;
  return holds(c, {attn::DType::F16}) ? epsilon<attn::float16> : 2e-6;
}

/// Compares one output, of any rank.
template <class T>
void expect_output(Case& c, std::string_view name, const Array<T>& got, attn::Isa isa) {
  c.expect(difference(got, c.load<double>(out(name)), gate(c), isa, name));
}

/// Calls f(T{}, isa) on every instruction set; T is the type in which the case is computed.
template <class F>
void on_each_isa(const Case& c, F f) {
  const bool wide = holds(c, {attn::DType::F64});
  for (attn::Isa isa : available_isas()) {
    if (wide) {
      f(double{}, isa);
    } else {
      f(float{}, isa);
    }
  }
}

/// Attribute `axis`, as one of 0 .. rank - 1.
inline std::size_t axis_of(const Case& c, std::size_t rank, Index otherwise = -1) {
  const Index axis = c.attribute<Index>("axis").value_or(otherwise);
  return static_cast<std::size_t>(axis < 0 ? axis + static_cast<Index>(rank) : axis);
}

/// (.., n, ..) as rows: the axes before `axis`, then the axes from it on.
template <class T>
Array<T> rows_from(const Array<T>& x, std::size_t axis) {
  Index n = 1;
  for (std::size_t a = axis; a < x.shape.size(); ++a) n *= x.shape[a];
  return x.reshaped({x.size() / n, n});
}

/// A copy with `axis` and the last axis exchanged; its own inverse.
template <class T>
Array<T> axis_last(const Array<T>& x, std::size_t axis) {
  const std::size_t last = x.shape.size() - 1;
  Array<T> y = x;
  std::swap(y.shape.at(axis), y.shape.at(last));
  std::vector<Index> index(x.shape.size());
  for (const T& value : x.data) {
    Index to = 0;
    for (std::size_t a = 0; a <= last; ++a) {
      to = to * y.shape[a] + index[a == axis ? last : a == last ? axis : a];
    }
    y.data.at(static_cast<std::size_t>(to)) = value;
    for (std::size_t a = last + 1; a-- > 0;) {
      if (++index[a] < x.shape[a]) break;
      index[a] = 0;
    }
  }
  return y;
}

/// The library's view of a vector of any shape; no view of an empty one.
template <class T>
attn::TensorView1<const T> flat(const Array<T>& x) {
  return x ? attn::TensorView1<const T>(x.data.data(), {x.size()}) : attn::TensorView1<const T>();
}

extern const Suite attention_suite, flex_attention_suite, gelu_suite, layer_normalization_suite,
    linear_attention_suite, log_softmax_suite, rms_normalization_suite, rotary_embedding_suite,
    softmax_suite, swiglu_suite, swish_suite;

}  // namespace attn_test
