// linear, softmax and norms for Python.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "attn/kernels/rows/norm.hpp"
#include "attn/kernels/rows/softmax.hpp"
#include "attn/layers/linear.hpp"

#include "arrays.hpp"
#include "bindings.hpp"
#include "threads.hpp"

namespace attn_python {

namespace {

/// The rows of an array whose leading axes lie one stride apart: (rows, last extent), or of more
/// last axes joined, which must be contiguous.
struct Rows {
  Array array;
  index_t count = 1, length = 1, stride = 0;

  template <class T>
  attn::TensorView2<const T> view() const {
    return {array.elements<T>(), {count, length}, {stride, 1}};
  }
};

/// Splits `x` after all but the last `joined` axes. Copies only what cannot be viewed so.
Rows rows_of(Array x, int joined) {
  const int leading = x.rank() - joined;
  const auto fits = [&] {
    index_t step = 1;
    for (int axis = x.rank(); axis-- > leading;) {
      if (x.shape[axis] > 1 && x.strides[axis] != step) return false;
      step *= x.shape[axis];
    }
    int inner = -1;  // the last leading axis that is not 1
    for (int axis = leading; axis-- > 0;) {
      if (x.shape[axis] == 1) continue;
      if (inner >= 0 && x.strides[axis] != x.strides[inner] * x.shape[inner]) return false;
      inner = axis;
    }
    return true;
  };
  x = with_unit_stride(std::move(x));
  if (!fits()) x = contiguous(x);
  Rows rows;
  for (int axis = 0; axis < x.rank(); ++axis) {
    (axis < leading ? rows.count : rows.length) *= x.shape[axis];
    if (axis < leading && x.shape[axis] != 1) rows.stride = x.strides[axis];
  }
  if (rows.stride == 0) rows.stride = rows.length;
  rows.array = std::move(x);
  return rows;
}

/// A vector with the elements of `x`; empty if None.
template <class T>
attn::TensorView1<const T> vector_of(const std::optional<Array>& x) {
  if (!x) return {};
  return {x->elements<T>(), {x->shape.product()}};
}

std::optional<Array> read_vector(nb::handle given, const Array& first, std::string_view function,
                                 std::string_view name) {
  if (given.is_none()) return std::nullopt;
  Array x = contiguous(read(given, function, name));
  check_same_elements(x, first, function, name, "input");
  return x;
}

nb::object linear(nb::handle input, nb::handle weight, nb::handle bias,
                  std::optional<int> threads) {
  constexpr std::string_view kFunction = "linear";
  const Rows x = rows_of(read(input, kFunction, "input"), 1);
  const Array w = read(weight, kFunction, "weight");
  check_same_elements(w, x.array, kFunction, "weight", "input");
  if (w.rank() != 2 || x.array.rank() < 1) {
    throw attn::ShapeError(
        attn::message(kFunction, "weight", "have shape (out, in)", w.shape.text()));
  }
  const std::optional<Array> b = read_vector(bias, x.array, kFunction, "bias");
  const Threads team(threads);
  Extents shape = x.array.shape;
  shape.back(0) = w.shape[0];
  const Result out = make(x.array.framework, x.array.dtype, shape);
  with_floats(x.array, kFunction, "input", [&]<class T>(T) {
    const nb::gil_scoped_release released;
    attn::linear(x.view<T>(), view<T, 2>(w), vector_of<T>(b),
                 attn::TensorView2<T>(out.elements<T>(), {x.count, w.shape[0]}),
                 attn::Activation::none, {}, team.execution());
  });
  return out.object;
}

/// softmax or log_softmax.
template <class Function>
nb::object softmax_by(std::string_view name, const Function& function, nb::handle input, int dim,
                      std::optional<int> threads) {
  Array x = read(input, name, "input");
  const int rank = x.rank(), axis = dim < 0 ? dim + rank : dim;
  if (axis < 0 || axis >= rank) {
    throw_value(name, "dim", "be an axis of input, " + x.shape.text(), std::to_string(dim));
  }
  // Another axis than the last changes places with it: the result is a view.
  std::swap(x.shape[axis], x.shape.back(0));
  std::swap(x.strides[axis], x.strides.back(0));
  const Rows rows = rows_of(std::move(x), 1);
  const Threads team(threads);
  const Result out = make(rows.array.framework, rows.array.dtype, rows.array.shape);
  with_floats(rows.array, name, "input", [&]<class T>(T) {
    const nb::gil_scoped_release released;
    function(rows.view<T>(), attn::TensorView2<T>(out.elements<T>(), {rows.count, rows.length}),
             team.execution());
  });
  return axis == rank - 1 ? out.object : out.object.attr("swapaxes")(axis, rank - 1);
}

using NormalizedShape = std::variant<index_t, std::vector<index_t>>;

/// layer_norm or rms_norm over the axes of `normalized`.
template <class Function>
nb::object norm_by(std::string_view name, const Function& function, nb::handle input,
                   const NormalizedShape& normalized, nb::handle weight, nb::handle bias,
                   std::optional<int> threads) {
  Array x = read(input, name, "input");
  const auto* axes = std::get_if<std::vector<index_t>>(&normalized);
  const std::vector<index_t> expected =
      axes != nullptr ? *axes : std::vector<index_t>{std::get<index_t>(normalized)};
  const int count = static_cast<int>(expected.size());
  bool is_good = count >= 1 && count <= x.rank();
  for (int axis = 0; is_good && axis < count; ++axis) {
    is_good = x.shape[x.rank() - count + axis] == expected[static_cast<std::size_t>(axis)];
  }
  if (!is_good) {
    Extents text;
    for (const index_t extent : expected) text.push_back(extent);
    throw_value(name, "normalized_shape", "be the last axes of input, " + x.shape.text(),
                text.text());
  }
  const Rows rows = rows_of(std::move(x), count);
  const std::optional<Array> factors = read_vector(weight, rows.array, name, "weight"),
                             summands = read_vector(bias, rows.array, name, "bias");
  const Threads team(threads);
  const Result out = make(rows.array.framework, rows.array.dtype, rows.array.shape);
  with_floats(rows.array, name, "input", [&]<class T>(T) {
    const nb::gil_scoped_release released;
    function(rows.view<T>(), vector_of<T>(factors), vector_of<T>(summands),
             attn::TensorView2<T>(out.elements<T>(), {rows.count, rows.length}), team.execution());
  });
  return out.object;
}

nb::object softmax(nb::handle input, int dim, std::optional<int> threads) {
  return softmax_by(
      "softmax", [](const auto&... arguments) { attn::softmax(arguments...); }, input, dim,
      threads);
}

nb::object log_softmax(nb::handle input, int dim, std::optional<int> threads) {
  return softmax_by(
      "log_softmax", [](const auto&... arguments) { attn::log_softmax(arguments...); }, input, dim,
      threads);
}

nb::object layer_norm(nb::handle input, const NormalizedShape& normalized_shape, nb::handle weight,
                      nb::handle bias, double eps, std::optional<int> threads) {
  const auto run = [&](const auto& x, const auto& w, const auto& b, const auto& out,
                       const attn::Execution& execution) {
    attn::layer_norm(x, w, b, eps, out, execution);
  };
  return norm_by("layer_norm", run, input, normalized_shape, weight, bias, threads);
}

nb::object rms_norm(nb::handle input, const NormalizedShape& normalized_shape, nb::handle weight,
                    std::optional<double> eps, std::optional<int> threads) {
  const auto run = [&]<class T>(const attn::TensorView2<const T>& x, const auto& w, const auto&,
                                const auto& out, const attn::Execution& execution) {
    using Sum = attn::Accumulator<T>;
    const double epsilon = eps.value_or(double{std::numeric_limits<Sum>::epsilon()});
    attn::rms_norm(x, w, epsilon, out, execution);
  };
  return norm_by("rms_norm", run, input, normalized_shape, weight, nb::none(), threads);
}

}  // namespace

void bind_functions(nb::module_& m) {
  using nb::arg;
  m.def("linear", &linear, arg("input"), arg("weight"), arg("bias") = nb::none(), nb::kw_only(),
        arg("threads") = nb::none(), "input weight^T + bias; weight (out, in), bias (out).",
        nb::sig("def linear(input: Array, weight: Array, bias: Array | None = None, *, "
                "threads: int | None = None) -> Array"));
  m.def(
      "softmax", &softmax, arg("input"), arg("dim") = -1, nb::kw_only(),
      arg("threads") = nb::none(), "exp(input) / sum over dim; 0 where all are -inf.",
      nb::sig("def softmax(input: Array, dim: int = -1, *, threads: int | None = None) -> Array"));
  m.def("log_softmax", &log_softmax, arg("input"), arg("dim") = -1, nb::kw_only(),
        arg("threads") = nb::none(), "The logarithm of softmax.",
        nb::sig("def log_softmax(input: Array, dim: int = -1, *, threads: int | None = None) "
                "-> Array"));
  m.def("layer_norm", &layer_norm, arg("input"), arg("normalized_shape"),
        arg("weight") = nb::none(), arg("bias") = nb::none(), arg("eps") = 1e-5, nb::kw_only(),
        arg("threads") = nb::none(),
        "(input - mean) / sqrt(variance + eps) weight + bias over the last axes.",
        nb::sig("def layer_norm(input: Array, normalized_shape: int | Sequence[int], "
                "weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5, *, "
                "threads: int | None = None) -> Array"));
  m.def(
      "rms_norm", &rms_norm, arg("input"), arg("normalized_shape"), arg("weight") = nb::none(),
      arg("eps") = nb::none(), nb::kw_only(), arg("threads") = nb::none(),
      "input / sqrt(mean of squares + eps) weight over the last axes; eps defaults to the machine "
      "epsilon.",
      nb::sig("def rms_norm(input: Array, normalized_shape: int | Sequence[int], "
              "weight: Array | None = None, eps: float | None = None, *, "
              "threads: int | None = None) -> Array"));
}

}  // namespace attn_python
