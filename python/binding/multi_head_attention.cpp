// MultiHeadAttention of each element type for Python; attn/multihead_attention.py selects one.
// SPDX-License-Identifier: Apache-2.0
#include "attn/layers/multi_head_attention.hpp"

#include <algorithm>
#include <map>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "attn/io/quote.hpp"

#include "arrays.hpp"
#include "bindings.hpp"
#include "threads.hpp"

namespace attn_python {

namespace {

constexpr std::string_view kFunction = "MultiheadAttention";

/// Copies an array of any floating-point type into a parameter. Throws ShapeError.
template <class T, int Rank>
void load_parameter(const std::string& name, const Array& given,
                    const attn::TensorView<T, Rank>& out) {
  Extents expected;
  for (const index_t extent : out.shape()) expected.push_back(extent);
  if (given.shape.text() != expected.text()) {
    throw attn::ShapeError(attn::message("load_state_dict", attn::detail::quote(name),
                                         attn::detail::join({"have shape ", expected.text()}),
                                         given.shape.text()));
  }
  const Array plain = contiguous(given);
  with_floats(plain, "load_state_dict", name, [&]<class From>(From) {
    const attn::Tensor<From, Rank> values(
        attn::TensorView<const From, Rank>(plain.elements<From>(), out.shape()));
    attn::Tensor<T, Rank> loaded(out.shape());
    std::transform(values.elements().begin(), values.elements().end(), loaded.elements().begin(),
                   [](From x) { return static_cast<T>(x); });
    attn::copy(loaded, out);
  });
}

template <class T>
class Attention {
 public:
  using Score = attn::Accumulator<T>;

  explicit Attention(const attn::MultiHeadAttentionOptions& options) : module_(options) {}

  /// Everything is checked before anything is written.
  void load_state_dict(const nb::dict& state) {
    std::map<std::string, Array> given;
    for (const auto& [name, value] : state) {
      const auto text = nb::cast<std::string>(name);
      // Its gradient is not lost: the parameter is copied.
      const nb::object plain =
          nb::hasattr(value, "detach") ? nb::object(value.attr("detach")()) : nb::borrow(value);
      given.emplace(text, read(plain, "load_state_dict", text));
    }
    attn::MultiHeadAttention<T> loaded(module_.options());
    std::vector<std::string> missing;
    loaded.visit_parameters(
        [&]<int Rank>(std::string_view name, attn::TensorView<T, Rank> parameter) {
          const auto found = given.find(std::string(name));
          if (found == given.end()) return missing.emplace_back(name), void();
          load_parameter<T, Rank>(found->first, found->second, parameter);
          given.erase(found);
        });
    std::vector<std::string> unexpected;
    for (const auto& one : given) unexpected.push_back(one.first);
    if (!missing.empty() || !unexpected.empty()) {
      throw_value("load_state_dict", "the dict", "hold the module's tensors and no others",
                  attn::detail::join({attn::detail::list_text(missing, "missing"), " and ",
                                      attn::detail::list_text(unexpected, "unexpected")}));
    }
    loaded.pack();
    module_ = std::move(loaded);
  }

  /// Copies in numpy; 16-bit parameters as float32.
  nb::dict state_dict() const {
    nb::dict state;
    module_.visit_parameters(
        [&]<int Rank>(std::string_view name, attn::TensorView<const T, Rank> parameter) {
          Extents shape;
          for (const index_t extent : parameter.shape()) shape.push_back(extent);
          const Result made = make(Framework::numpy, attn::dtype_of<Score>(), shape);
          const attn::Tensor<T, Rank> values(parameter);
          std::copy(values.elements().begin(), values.elements().end(), made.elements<Score>());
          state[nb::str(name.data(), name.size())] = made.object;
        });
    return state;
  }

  /// (result, weights or None). `weights`: "none", "average" or "heads".
  nb::tuple forward(nb::handle query, nb::handle key, nb::handle value, nb::handle key_padding_mask,
                    nb::handle attn_mask, bool is_causal, const std::string& weights,
                    bool batch_first, std::optional<int> threads) const {
    const Array q = input(query, "query", batch_first), k = input(key, "key", batch_first),
                v = input(value, "value", batch_first);
    const index_t batch = q.shape[0], q_len = q.shape[1], heads = module_.options().num_heads;
    const index_t keys = k.shape[1] + module_.appended_keys();

    attn::AttentionOptions<Score> options;
    attn::Mask masked;
    if (is_causal) masked = attn::causal();
    std::optional<Array> padding, mask;
    if (!key_padding_mask.is_none()) {
      padding = read_mask(key_padding_mask, "key_padding_mask");
      if (padding->rank() != 2) {
        throw attn::ShapeError(attn::message(kFunction, "key_padding_mask",
                                             "have shape (batch, kv_len)", padding->shape.text()));
      }
      masked = masked & (padding->dtype == DType::BOOL
                             ? attn::Mask(attn::key_padding_mask(view<bool, 2>(*padding)))
                             : attn::Mask(attn::key_padding_mask(view<Score, 2>(*padding))));
    }
    if (!attn_mask.is_none()) {
      mask = read_mask(attn_mask, "attn_mask");
      masked = masked & (mask->dtype == DType::BOOL
                             ? attn::drop_mask(mask_view<bool>(*mask, batch))
                             : attn::Mask(attn::additive_mask(mask_view<Score>(*mask, batch))));
    }
    options.mask = masked;
    options.offset = attn::top_left;

    Extents shape = q.shape;
    shape[2] = module_.out_dim();
    if (!batch_first) std::swap(shape[0], shape[1]);
    const Result out = make(q.framework, q.dtype, shape);
    attn::TensorView3<T> result(out.elements<T>(), {shape[0], shape[1], shape[2]});
    if (!batch_first) result = result.transpose(0, 1);
    Result made;
    if (weights == "average") {
      made = make(q.framework, attn::dtype_of<Score>(), {batch, q_len, keys});
      options.average_weights =
          attn::TensorView3<Score>(made.elements<Score>(), {batch, q_len, keys});
    } else if (weights == "heads") {
      made = make(q.framework, attn::dtype_of<Score>(), {batch, heads, q_len, keys});
      options.weights =
          attn::TensorView4<Score>(made.elements<Score>(), {batch, heads, q_len, keys});
    }
    const Threads team(threads);
    options.execution = team.execution();
    {
      const nb::gil_scoped_release released;
      module_.forward(view<T, 3>(q), view<T, 3>(k), view<T, 3>(v), result, options);
    }
    return nb::make_tuple(out.object, made.object ? made.object : nb::none());
  }

 private:
  /// (batch, seq, features)
  static Array input(nb::handle given, std::string_view name, bool batch_first) {
    Array x = with_unit_stride(read(given, kFunction, name));
    if (x.rank() != 3) {
      throw attn::ShapeError(attn::message(kFunction, name, "have 3 axes", x.shape.text()));
    }
    if (x.dtype != attn::dtype_of<T>()) {
      throw_type(
          kFunction, name,
          attn::detail::join({"hold ", python_name(attn::dtype_of<T>()), ", as the module does"}),
          python_name(x.dtype));
    }
    if (!batch_first) {
      std::swap(x.shape[0], x.shape[1]);
      std::swap(x.strides[0], x.strides[1]);
    }
    return x;
  }

  static Array read_mask(nb::handle given, std::string_view name) {
    const Array x = read(given, kFunction, name);
    return x.dtype == DType::BOOL ? x : converted<Score>(x, kFunction, name);
  }

  /// (q_len, kv_len), (batch * num_heads, q_len, kv_len) or (batch, num_heads, q_len, kv_len)
  template <class Element>
  attn::TensorView4<const Element> mask_view(const Array& mask, index_t batch) const {
    if (mask.rank() == 2) return view<Element, 2>(mask).unsqueeze(0).unsqueeze(0);
    if (mask.rank() == 4) return view<Element, 4>(mask);
    const index_t heads = module_.options().num_heads;
    if (mask.rank() == 3 && mask.shape[0] == batch * heads) {
      return view<Element, 3>(mask).split(0, batch);
    }
    throw attn::ShapeError(attn::message(
        kFunction, "attn_mask",
        "have shape (q_len, kv_len), (batch * num_heads, q_len, kv_len) or (batch, num_heads, "
        "q_len, kv_len)",
        mask.shape.text()));
  }

  attn::MultiHeadAttention<T> module_;
};

template <class T>
void bind(nb::module_& m, const char* name) {
  using Class = Attention<T>;
  nb::class_<Class>(m, name)
      .def(
          "__init__",
          [](Class* self, index_t embed_dim, index_t num_heads, bool bias, bool add_bias_kv,
             bool add_zero_attn, std::optional<index_t> kdim, std::optional<index_t> vdim) {
            new (self) Class(attn::MultiHeadAttentionOptions{.embed_dim = embed_dim,
                                                             .num_heads = num_heads,
                                                             .bias = bias,
                                                             .kdim = kdim.value_or(0),
                                                             .vdim = vdim.value_or(0),
                                                             .add_bias_kv = add_bias_kv,
                                                             .add_zero_attn = add_zero_attn});
          },
          nb::arg("embed_dim"), nb::arg("num_heads"), nb::arg("bias"), nb::arg("add_bias_kv"),
          nb::arg("add_zero_attn"), nb::arg("kdim").none(), nb::arg("vdim").none())
      .def("load_state_dict", &Class::load_state_dict, nb::arg("state_dict"))
      .def("state_dict", &Class::state_dict)
      .def("forward", &Class::forward, nb::arg("query"), nb::arg("key"), nb::arg("value"),
           nb::arg("key_padding_mask").none(), nb::arg("attn_mask").none(), nb::arg("is_causal"),
           nb::arg("weights"), nb::arg("batch_first"), nb::arg("threads") = nb::none());
}

}  // namespace

void bind_multi_head_attention(nb::module_& m) {
  bind<float>(m, "MultiheadAttentionFloat32");
  bind<double>(m, "MultiheadAttentionFloat64");
  bind<attn::bfloat16>(m, "MultiheadAttentionBfloat16");
  bind<attn::float16>(m, "MultiheadAttentionFloat16");
}

}  // namespace attn_python
