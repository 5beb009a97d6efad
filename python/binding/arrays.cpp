// Arrays of Python: see arrays.hpp.
// SPDX-License-Identifier: Apache-2.0
#include "arrays.hpp"

#include <cstdint>
#include <cstring>
#include <optional>

namespace attn_python {

namespace {

namespace dlpack = nb::dlpack;

/// The table that the capsule __dlpack_c_exchange_api__ of a type holds: DLPackExchangeAPI of
/// DLPack 1.3. PyTorch has it from 2.10 on; it takes a twentieth of the time of __dlpack__().
struct ExchangeTable {
  std::uint32_t major, minor;
  const ExchangeTable* previous;
  void (*allocate)();
  void (*managed_from_object)();
  void (*managed_to_object)();
  /// Fills a view that the object owns. Returns 0, or -1 with an exception set. May be null.
  int (*view_of_object)(void* object, dlpack::dltensor* out);
  void (*current_stream)();
};

std::optional<DType> dtype_of(dlpack::dtype type) {
  using Code = dlpack::dtype_code;
  if (type.lanes != 1) return std::nullopt;
  const auto sized = [&](DType b8, DType b16, DType b32, DType b64) {
    return type.bits == 8 ? b8 : type.bits == 16 ? b16 : type.bits == 32 ? b32 : b64;
  };
  switch (static_cast<Code>(type.code)) {
    case Code::Bool:
      return DType::BOOL;
    case Code::Int:
      return sized(DType::I8, DType::I16, DType::I32, DType::I64);
    case Code::UInt:
      return sized(DType::U8, DType::U16, DType::U32, DType::U64);
    case Code::Float:
      if (type.bits == 8 || type.bits > 64) return std::nullopt;
      return sized(DType::F16, DType::F16, DType::F32, DType::F64);
    case Code::Bfloat:
      return DType::BF16;
    default:
      return std::nullopt;
  }
}

/// The type of a struct module's format, such as "f" or "<f"; none for swapped bytes.
std::optional<DType> dtype_of(const char* format, index_t size) {
  if (format == nullptr) return DType::U8;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (format[0] == '\0' || format[1] != '\0') return std::nullopt;
  const auto sized = [&](DType b8, DType b16, DType b32, DType b64) {
    return size == 1 ? b8 : size == 2 ? b16 : size == 4 ? b32 : b64;
  };
  switch (format[0]) {
    case '?':
      return DType::BOOL;
    case 'e':
      return DType::F16;
    case 'f':
      return DType::F32;
    case 'd':
      return DType::F64;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
      return sized(DType::I8, DType::I16, DType::I32, DType::I64);
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
      return sized(DType::U8, DType::U16, DType::U32, DType::U64);
    default:
      return std::nullopt;
  }
}

/// A function of a framework and its types, looked up once and never freed, because Python may be
/// gone when static objects are destroyed.
class Library {
 public:
  explicit Library(nb::object module) : module_(module.release()) {}

  nb::object attribute(const char* name) const { return module_.attr(name); }
  nb::handle empty() {
    if (!empty_) empty_ = attribute("empty").release();
    return empty_;
  }
  nb::handle dtype(DType type) {
    nb::handle& found = dtypes_[static_cast<std::size_t>(type)];
    if (!found) found = attribute(python_name(type)).release();
    return found;
  }

 private:
  nb::handle module_, empty_;
  std::array<nb::handle, 32> dtypes_{};
};

/// Not by an import, which could release the GIL while another thread waits for the static object.
/// The package has imported numpy.
Library& numpy() {
  static Library library(nb::borrow(PyImport_AddModule("numpy")));
  return library;
}
Library& torch() {
  static Library library(nb::borrow(PyImport_AddModule("torch")));
  return library;
}

/// torch.Tensor, or null before someone has imported torch.
nb::handle tensor_type() {
  static nb::handle type;
  if (!type) {
    PyObject* modules = PyImport_GetModuleDict();
    PyObject* module = PyDict_GetItemString(modules, "torch");
    // A torch that is still being imported has no Tensor.
    if (module == nullptr || !nb::hasattr(module, "Tensor")) return type;
    type = torch().attribute("Tensor").release();
  }
  return type;
}

bool is_tensor(nb::handle x) {
  const nb::handle type = tensor_type();
  return type && (x.type().is(type) || nb::isinstance(x, type));
}

const ExchangeTable* exchange_table() {
  static const ExchangeTable* table = [] {
    const ExchangeTable* found = nullptr;
    const nb::object capsule = nb::getattr(tensor_type(), "__dlpack_c_exchange_api__", nb::none());
    if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) {
      found = static_cast<const ExchangeTable*>(
          PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    }
    while (found != nullptr && found->major > 1) found = found->previous;
    return found != nullptr && found->view_of_object != nullptr ? found : nullptr;
  }();
  return table;
}

std::string found_text(nb::handle x) { return nb::cast<std::string>(x.type().attr("__name__")); }

constexpr std::string_view kExpected =
    "be a numpy array, a PyTorch tensor on the CPU, or an object with DLPack or the buffer "
    "protocol";

/// An address for arrays without elements, because null means "not given".
alignas(64) constexpr std::byte kNothing[64] = {};

void set_view(Array& array, const dlpack::dltensor& tensor, std::string_view function,
              std::string_view name) {
  if (tensor.device.device_type != nb::device::cpu::value) {
    throw_type(function, name, "lie on the CPU",
               "device type " + std::to_string(tensor.device.device_type));
  }
  const std::optional<DType> dtype = dtype_of(tensor.dtype);
  if (!dtype) {
    throw_type(function, name, "hold numbers of a known type",
               "DLPack's type code " + std::to_string(tensor.dtype.code));
  }
  array.dtype = *dtype;
  for (int axis = 0; axis < tensor.ndim; ++axis) array.shape.push_back(tensor.shape[axis]);
  if (tensor.strides == nullptr) {
    array.strides = contiguous_strides(array.shape);
  } else {
    for (int axis = 0; axis < tensor.ndim; ++axis) array.strides.push_back(tensor.strides[axis]);
  }
  array.data = static_cast<const std::byte*>(tensor.data) + tensor.byte_offset;
}

/// Whether a gradient would be lost.
bool records_gradient(nb::handle tensor) {
  if (!nb::cast<bool>(tensor.attr("requires_grad"))) return false;
  static nb::handle is_enabled = torch().attribute("is_grad_enabled").release();
  return nb::cast<bool>(is_enabled());
}

[[noreturn]] void throw_tensor(nb::handle x, std::string_view function, std::string_view name) {
  const auto text = [&](const char* attribute) {
    const nb::object value = x.attr(attribute);
    return nb::cast<std::string>(nb::str(value));
  };
  throw_type(function, name, "be a dense PyTorch tensor on the CPU",
             attn::detail::join({text("layout"), ", ", text("dtype"), ", on ", text("device")}));
}

/// Reads a PyTorch tensor; returns false if it has no exchange table.
bool read_tensor(Array& array, std::string_view function, std::string_view name) {
  array.framework = Framework::torch;
  nb::object& x = array.object;
  if (records_gradient(x)) {
    throw_value(function, name,
                "not require a gradient, because it would be lost (attn.torch has the functions "
                "with gradients; torch.no_grad() and detach() need none)",
                "a tensor with requires_grad=True");
  }
  // The imaginary part of a conjugate holds the opposite of its numbers.
  if (nb::cast<bool>(x.attr("is_neg")())) x = x.attr("resolve_neg")();
  const ExchangeTable* table = exchange_table();
  if (table == nullptr) return false;
  dlpack::dltensor tensor;
  if (table->view_of_object(x.ptr(), &tensor) != 0) {
    PyErr_Clear();
    throw_tensor(x, function, name);
  }
  set_view(array, tensor, function, name);
  return true;
}

/// Reads an object with the buffer protocol; returns false if it has another one.
bool read_buffer(nb::handle x, Array& array, std::string_view function, std::string_view name) {
  if (!PyObject_CheckBuffer(x.ptr())) return false;
  auto* buffer = new Py_buffer{};
  if (PyObject_GetBuffer(x.ptr(), buffer, PyBUF_RECORDS_RO) != 0) {
    delete buffer;
    PyErr_Clear();
    return false;
  }
  array.owner = std::shared_ptr<const void>(buffer, [](const void* held) {
    auto* released = static_cast<Py_buffer*>(const_cast<void*>(held));
    PyBuffer_Release(released);
    delete released;
  });
  const std::optional<DType> dtype = dtype_of(buffer->format, buffer->itemsize);
  if (!dtype) {
    throw_type(function, name, "hold numbers of a known type in this machine's byte order",
               std::string("the format '") + buffer->format + "'");
  }
  array.dtype = *dtype;
  for (int axis = 0; axis < buffer->ndim; ++axis) {
    const auto at = static_cast<std::size_t>(axis);
    if (buffer->strides[at] % buffer->itemsize != 0) {
      throw_value(function, name, "have strides that are multiples of its elements",
                  std::to_string(buffer->strides[at]) + " bytes");
    }
    array.shape.push_back(buffer->shape[at]);
    array.strides.push_back(buffer->strides[at] / buffer->itemsize);
  }
  array.data = buffer->buf;
  return true;
}

void read_dlpack(Array& array, std::string_view function, std::string_view name) {
  const nb::object& x = array.object;
  auto held = std::make_shared<nb::ndarray<nb::ro>>();
  const bool detached = array.framework == Framework::torch;
  const nb::object source = detached ? nb::object(x.attr("detach")()) : x;
  if (!nb::try_cast(source, *held, false)) throw_type(function, name, kExpected, found_text(x));
  dlpack::dltensor tensor;
  tensor.data = held->data_handle();
  tensor.device = {held->device_type(), held->device_id()};
  tensor.ndim = static_cast<std::int32_t>(held->ndim());
  tensor.dtype = held->dtype();
  tensor.shape = const_cast<std::int64_t*>(held->shape_ptr());
  tensor.strides = const_cast<std::int64_t*>(held->stride_ptr());
  tensor.byte_offset = held->byte_offset();
  set_view(array, tensor, function, name);
  array.owner = std::move(held);
}

void copy_axis(const Array& from, const std::byte* source, int axis, std::byte*& to) {
  const std::size_t size = attn::element_size(from.dtype);
  if (axis == from.rank()) {
    std::memcpy(to, source, size);
    to += size;
    return;
  }
  const index_t step = from.strides[axis] * static_cast<index_t>(size);
  for (index_t i = 0; i < from.shape[axis]; ++i) copy_axis(from, source + i * step, axis + 1, to);
}

/// A contiguous copy.
Array copied(const Array& x) {
  Array result = x;
  const std::size_t size = attn::element_size(x.dtype);
  const auto bytes = static_cast<std::size_t>(x.shape.product()) * size;
  std::shared_ptr<std::byte[]> memory(new std::byte[bytes + 1]);
  std::byte* to = memory.get();
  if (bytes > 0) copy_axis(x, static_cast<const std::byte*>(x.data), 0, to);
  result.strides = contiguous_strides(x.shape);
  result.data = memory.get();
  result.owner = std::move(memory);
  return result;
}

}  // namespace

const char* python_name(DType dtype) {
  switch (dtype) {
    case DType::BOOL:
      return "bool";
    case DType::U8:
      return "uint8";
    case DType::I8:
      return "int8";
    case DType::I16:
      return "int16";
    case DType::U16:
      return "uint16";
    case DType::F16:
      return "float16";
    case DType::BF16:
      return "bfloat16";
    case DType::I32:
      return "int32";
    case DType::U32:
      return "uint32";
    case DType::F32:
      return "float32";
    case DType::C64:
      return "complex64";
    case DType::F64:
      return "float64";
    case DType::I64:
      return "int64";
    case DType::U64:
      return "uint64";
    case DType::F8_E5M2:
      return "float8_e5m2";
    case DType::F8_E4M3:
      return "float8_e4m3fn";
    case DType::F8_E8M0:
      return "float8_e8m0fnu";
  }
  return "?";
}

void Extents::push_back(index_t value) {
  if (size_ == kMaxAxes) {
    throw_value("attn", "an array", "have at most " + std::to_string(kMaxAxes) + " axes", "more");
  }
  values_[static_cast<std::size_t>(size_++)] = value;
}

Extents Extents::first(int count) const {
  Extents result;
  for (int axis = 0; axis < count; ++axis) result.push_back((*this)[axis]);
  return result;
}

index_t Extents::product() const {
  index_t result = 1;
  for (int axis = 0; axis < size_; ++axis) result *= (*this)[axis];
  return result;
}

std::string Extents::text() const {
  std::string result = "(";
  for (int axis = 0; axis < size_; ++axis) {
    result += std::to_string((*this)[axis]) + (axis + 1 < size_ ? ", " : size_ == 1 ? "," : "");
  }
  return result + ")";
}

Extents contiguous_strides(const Extents& shape) {
  Extents strides = shape;
  index_t step = 1;
  for (int axis = shape.size(); axis-- > 0;) {
    strides[axis] = step;
    step *= shape[axis];
  }
  return strides;
}

Array read(nb::handle x, std::string_view function, std::string_view name) {
  Array array;
  array.object = nb::borrow(x);
  const bool is_read =
      is_tensor(x) ? read_tensor(array, function, name) : read_buffer(x, array, function, name);
  if (!is_read) read_dlpack(array, function, name);
  if (array.shape.product() == 0) {
    array.data = kNothing;
  } else if (array.data == nullptr) {
    throw_type(function, name, "have memory", "none");
  }
  return array;
}

Array contiguous(const Array& x) {
  const Extents expected = contiguous_strides(x.shape);
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (x.shape[axis] > 1 && x.strides[axis] != expected[axis]) return copied(x);
  }
  Array result = x;
  result.strides = expected;
  return result;
}

Array with_unit_stride(Array x) {
  const bool is_unit = x.rank() == 0 || x.shape.back(0) <= 1 || x.strides.back(0) == 1;
  const auto address = reinterpret_cast<std::uintptr_t>(x.data);
  return is_unit && address % attn::element_size(x.dtype) == 0 ? x : copied(x);
}

template <class T>
Array converted(const Array& x, std::string_view function, std::string_view name) {
  if (x.dtype == attn::dtype_of<T>()) return x;
  return with_floats(x, function, name, [&]<class From>(From) {
    const Array plain = contiguous(x);
    const auto count = static_cast<std::size_t>(x.shape.product());
    std::shared_ptr<T[]> memory(new T[count + 1]);
    for (std::size_t i = 0; i < count; ++i) memory[i] = static_cast<T>(plain.elements<From>()[i]);
    Array result = plain;
    result.dtype = attn::dtype_of<T>();
    result.data = memory.get();
    result.owner = std::move(memory);
    return result;
  });
}
template Array converted<float>(const Array&, std::string_view, std::string_view);
template Array converted<double>(const Array&, std::string_view, std::string_view);

std::vector<index_t> read_integers(nb::handle x, std::string_view function, std::string_view name) {
  if (nb::isinstance<nb::sequence>(x) && !is_tensor(x) && !PyObject_CheckBuffer(x.ptr())) {
    std::vector<index_t> values;
    if (nb::try_cast(x, values)) return values;
    throw_type(function, name, "hold integers", found_text(x));
  }
  const Array array = contiguous(read(x, function, name));
  const auto count = static_cast<std::size_t>(array.shape.product());
  std::vector<index_t> values(count);
  const auto take = [&]<class From>(From) {
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = static_cast<index_t>(array.elements<From>()[i]);
    }
  };
  const bool is_integer =
      attn::detail::with_dtype<std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t,
                               std::uint16_t, std::uint32_t>(array.dtype, take);
  if (!is_integer) throw_type(function, name, "hold integers", python_name(array.dtype));
  return values;
}

Result make(Framework framework, DType dtype, const Extents& shape) {
  if (framework == Framework::numpy && dtype == DType::BF16) {
    throw_type("attn", "a result of bfloat16", "be a PyTorch tensor, because numpy lacks this type",
               "numpy");
  }
  Library& library = framework == Framework::torch ? torch() : numpy();
  nb::object extents = nb::steal(PyTuple_New(shape.size()));
  for (int axis = 0; axis < shape.size(); ++axis) {
    PyTuple_SetItem(extents.ptr(), axis, PyLong_FromSsize_t(shape[axis]));
  }
  Result result;
  if (framework == Framework::torch) {
    static nb::handle cpu = library.attribute("device")("cpu").release();  // not the default device
    result.object =
        library.empty()(extents, nb::arg("dtype") = library.dtype(dtype), nb::arg("device") = cpu);
  } else {
    result.object = library.empty()(extents, nb::arg("dtype") = library.dtype(dtype));
  }
  Array written;
  if (framework == Framework::numpy) {
    read_buffer(result.object, written, "attn", "the result");
  } else if (exchange_table() != nullptr) {
    dlpack::dltensor tensor;
    if (exchange_table()->view_of_object(result.object.ptr(), &tensor) != 0) {
      nb::raise_python_error();
    }
    set_view(written, tensor, "attn", "the result");
  } else {
    written.data =
        reinterpret_cast<const void*>(nb::cast<std::uintptr_t>(result.object.attr("data_ptr")()));
  }
  result.data = const_cast<void*>(shape.product() == 0 ? kNothing : written.data);
  return result;
}

void throw_type(std::string_view function, std::string_view name, std::string_view expected,
                std::string_view found) {
  throw attn::DTypeError(attn::message(function, name, expected, found));
}
void throw_value(std::string_view function, std::string_view name, std::string_view expected,
                 std::string_view found) {
  throw attn::ValueError(attn::message(function, name, expected, found));
}

void check_same_elements(const Array& x, const Array& first, std::string_view function,
                         std::string_view name, std::string_view whose) {
  if (x.dtype == first.dtype) return;
  throw_type(function, name,
             attn::detail::join({"hold ", python_name(first.dtype), ", as ", whose, " does"}),
             python_name(x.dtype));
}

}  // namespace attn_python
