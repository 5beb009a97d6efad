// The module attn._attn: errors, threads, and the other files' parts.
// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "attn/simd/isa.hpp"

#include "bindings.hpp"
#include "threads.hpp"

namespace nb = nanobind;

namespace {

/// attn's errors as Python's: ShapeError and ValueError derive from std::invalid_argument, which
/// nanobind turns into ValueError.
void translate(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const attn::DTypeError& e) {
    PyErr_SetString(PyExc_TypeError, e.what());
  } catch (const attn::IoError& e) {
    PyErr_SetString(PyExc_OSError, e.what());
  }
}

}  // namespace

NB_MODULE(_attn, m) {
  m.doc() = "Attention, Transformer layers and language models on CPUs.";
  nb::register_exception_translator(translate);
  m.def("set_num_threads", &attn_python::set_num_threads, nb::arg("threads"),
        "Sets the number of threads of calls that are given none.");
  m.def("get_num_threads", &attn_python::num_threads,
        "The number of threads of calls that are given none.");
  m.def(
      "instruction_set", [] { return std::string(attn::name(attn::active_isa())); },
      "The instruction set in use; the environment variable ATTN_ISA selects a lower one.");
  attn_python::bind_attention(m);
  attn_python::bind_functions(m);
  attn_python::bind_multi_head_attention(m);
  attn_python::bind_files(m);
  attn_python::bind_sentence_encoder(m);
  attn_python::bind_language_model(m);
}
