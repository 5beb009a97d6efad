// SentenceEncoder for Python.
// SPDX-License-Identifier: Apache-2.0
#include "attn/models/sentence_encoder.hpp"

#include <algorithm>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "arrays.hpp"
#include "bindings.hpp"
#include "precision.hpp"
#include "threads.hpp"

namespace attn_python {

namespace {

using Encoder = attn::SentenceEncoder<float>;

void load(Encoder* self, const std::filesystem::path& folder, const std::string& weights,
          const std::string& activations, const std::vector<std::string>& ignore_keys) {
  const auto format = weights_of(weights, "SentenceEncoder");
  const auto products = value_of(kActivations, activations, "SentenceEncoder", "activations");
  const nb::gil_scoped_release released;
  Encoder encoder(folder, {.pack = !format, .ignore_keys = ignore_keys});
  if (format) attn::quantize(encoder, {.weights = *format, .activations = products});
  new (self) Encoder(std::move(encoder));
}

nb::object encode(const Encoder& encoder, const std::vector<std::string>& sentences,
                  const std::string& prompt_name, bool normalize, index_t batch_size,
                  std::optional<int> threads) {
  const Threads team(threads);
  attn::Tensor2<float> vectors;
  {
    const nb::gil_scoped_release released;
    vectors = encoder.encode(sentences, {.prompt = prompt_name,
                                         .normalize = normalize,
                                         .batch_size = batch_size,
                                         .execution = team.execution()});
  }
  const Result made = make(Framework::numpy, DType::F32, {vectors.shape()[0], vectors.shape()[1]});
  std::copy(vectors.elements().begin(), vectors.elements().end(), made.elements<float>());
  return made.object;
}

}  // namespace

void bind_sentence_encoder(nb::module_& m) {
  nb::class_<Encoder>(m, "SentenceEncoder",
                      "A sentence-transformers folder: BERT or RoBERTa, pooled to one vector per "
                      "sentence. Methods may be called from several threads.")
      .def("__init__", &load, nb::arg("folder"), nb::kw_only(), nb::arg("weights") = "float",
           nb::arg("activations") = "exact", nb::arg("ignore_keys") = std::vector<std::string>{},
           "weights: 'float', 'bf16', 'f16', 'int8', 'q8_0', 'q5_1', 'q5_0', 'q4_1' or 'q4_0'. "
           "activations, in products with quantised weights: 'exact', 'bf16', 'int8' or 'int16'. "
           "ignore_keys: unknown keys of config.json to accept.",
           nb::sig("def __init__(self, folder: str | os.PathLike[str], *, weights: str = 'float', "
                   "activations: str = 'exact', ignore_keys: Sequence[str] = ()) -> None"))
      .def("encode", &encode, nb::arg("sentences"), nb::kw_only(), nb::arg("prompt_name") = "",
           nb::arg("normalize") = false, nb::arg("batch_size") = 32,
           nb::arg("threads") = nb::none(),
           "The vectors (sentences, dim) as float32. Longer sentences than max_tokens are cut. A "
           "vector does not depend on the other sentences, batch_size or threads.",
           nb::sig("def encode(self, sentences: Sequence[str], *, prompt_name: str = '', "
                   "normalize: bool = False, batch_size: int = 32, threads: int | None = None) "
                   "-> numpy.ndarray"))
      .def("count_tokens", &Encoder::count_tokens, nb::arg("sentence"), nb::arg("prompt_name") = "",
           "The number of tokens of a sentence, with its prompt and special tokens.",
           nb::sig("def count_tokens(self, sentence: str, prompt_name: str = '') -> int"))
      .def_prop_ro("dim", &Encoder::dim, "The length of a vector.")
      .def_prop_ro(
          "max_tokens", [](const Encoder& self) { return self.options().max_tokens; },
          "The number of tokens that encode() takes of a sentence.")
      .def_prop_ro(
          "prompts", [](const Encoder& self) { return self.options().prompts; },
          "Prompts by name.");
}

}  // namespace attn_python
