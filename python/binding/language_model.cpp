// LanguageModel for Python.
// SPDX-License-Identifier: Apache-2.0
#include "attn/models/language_model.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "attn/generation/generate_text.hpp"

#include "arrays.hpp"
#include "bindings.hpp"
#include "precision.hpp"
#include "threads.hpp"

namespace attn_python {

namespace {

/// A session and the threads that it refers to.
struct Session {
  Session(const attn::LanguageModel& model, index_t capacity, std::optional<DType> cache,
          std::optional<int> threads)
      : wanted_threads(threads),
        team(threads),
        session(model.gpt(), 1, capacity, {.execution = team.execution()}, cache) {}

  std::optional<int> wanted_threads;
  Threads team;
  attn::GptSession<float> session;
  std::vector<index_t> ids;  ///< tokens that the session has processed
};

struct GenerationKeywords {
  index_t max_new_tokens, top_k;
  double temperature, top_p, min_p, repetition_penalty;
  std::uint64_t seed;
  std::vector<std::string> stop;
  nb::object on_text;
  bool log_probabilities;
  std::optional<int> threads;
};

/// A model, and the session of its last answer, which the next one continues where both begin
/// alike. Calls from several threads are safe: each takes a session of its own.
class Language {
 public:
  Language(const std::filesystem::path& path, const attn::LanguageModelOptions& options,
           std::optional<DType> cache)
      : model_(path, options), cache_(cache) {}

  const attn::LanguageModel& model() const { return model_; }

  attn::GeneratedText answer(const std::vector<index_t>& ids, const GenerationKeywords& keywords) {
    attn::TextGenerationOptions options{
        .max_new_tokens = keywords.max_new_tokens,
        .logits = {.repetition_penalty = keywords.repetition_penalty},
        .stop = keywords.stop,
        .log_probabilities = keywords.log_probabilities};
    options.on_text = [&](std::string_view text) {
      const nb::gil_scoped_acquire acquired;
      if (PyErr_CheckSignals() != 0) nb::raise_python_error();
      if (keywords.on_text.is_none()) return true;
      const nb::object result = keywords.on_text(nb::str(text.data(), text.size()));
      return !result.is(nb::handle(Py_False));
    };
    if (keywords.temperature > 0) {
      options.sampling = attn::SamplingOptions{.temperature = keywords.temperature,
                                               .top_k = keywords.top_k,
                                               .top_p = keywords.top_p,
                                               .min_p = keywords.min_p,
                                               .seed = keywords.seed};
    } else if (keywords.temperature < 0) {
      throw_value("LanguageModel", "temperature", "be at least 0",
                  attn::to_string(keywords.temperature));
    }
    const nb::gil_scoped_release released;
    std::unique_ptr<Session> taken = take(ids, keywords);
    attn::GeneratedText result = attn::generate_text(model_, taken->session, ids, options);
    taken->ids = result.context;
    taken->ids.resize(static_cast<std::size_t>(taken->session.length()));
    const std::lock_guard lock(mutex_);
    last_ = std::move(taken);
    return result;
  }

  std::vector<double> score(std::string_view text, std::optional<int> threads) const {
    const Threads team(threads);
    const nb::gil_scoped_release released;
    return attn::score_text(model_, model_.encode_raw(text), team.execution());
  }

 private:
  /// The last session, with the beginning that it shares with `ids`, or a new one.
  std::unique_ptr<Session> take(const std::vector<index_t>& ids,
                                const GenerationKeywords& keywords) {
    const index_t wanted = (std::min)(
        std::ssize(ids) + (std::max)(keywords.max_new_tokens, index_t{0}), model_.max_positions());
    std::unique_ptr<Session> taken;
    {
      const std::lock_guard lock(mutex_);
      taken = std::move(last_);
    }
    if (!taken || taken->session.capacity() < wanted || taken->wanted_threads != keywords.threads) {
      constexpr index_t kStep = 1024;  // so that a conversation grows without a new session
      const index_t capacity =
          (std::min)((wanted + kStep - 1) / kStep * kStep, model_.max_positions());
      return std::make_unique<Session>(model_, capacity, cache_, keywords.threads);
    }
    // 13 or more new tokens take the tiled path, as the whole text does in a new session: answers
    // have the same bits.
    const index_t left = (std::min)(std::ssize(ids), index_t{13});
    const auto same =
        std::mismatch(taken->ids.begin(), taken->ids.end(), ids.begin(), ids.end() - left);
    const index_t kept = same.first - taken->ids.begin();
    if (taken->session.caches()[0].options().window > 0 || !taken->session.can_truncate_to(kept)) {
      taken->session.clear();  // a window has forgotten keys, or a recurrent layer earlier states
    } else {
      taken->session.truncate_to(kept);
    }
    return taken;
  }

  attn::LanguageModel model_;
  std::optional<DType> cache_;
  std::mutex mutex_;
  std::unique_ptr<Session> last_;
};

void load(Language* self, const std::filesystem::path& path, const std::string& weights,
          const std::string& activations, const std::string& cache, index_t max_positions,
          const std::vector<std::string>& ignore_keys) {
  constexpr std::pair<std::string_view, std::optional<DType>> kCaches[] = {
      {"float", std::nullopt}, {"bf16", DType::BF16}, {"f16", DType::F16}, {"int8", DType::I8}};
  const attn::LanguageModelOptions options{
      .max_positions = max_positions,
      .weights = weights_of(weights, "LanguageModel"),
      .activations = value_of(kActivations, activations, "LanguageModel", "activations"),
      .ignore_keys = ignore_keys};
  const std::optional<DType> element = value_of(kCaches, cache, "LanguageModel", "cache");
  const nb::gil_scoped_release released;
  new (self) Language(path, options, element);
}

GenerationKeywords keywords_of(index_t max_new_tokens, double temperature, index_t top_k,
                               double top_p, double min_p, double repetition_penalty,
                               std::uint64_t seed, std::vector<std::string> stop,
                               nb::object on_text, bool log_probabilities,
                               std::optional<int> threads) {
  return {.max_new_tokens = max_new_tokens,
          .top_k = top_k,
          .temperature = temperature,
          .top_p = top_p,
          .min_p = min_p,
          .repetition_penalty = repetition_penalty,
          .seed = seed,
          .stop = std::move(stop),
          .on_text = std::move(on_text),
          .log_probabilities = log_probabilities,
          .threads = threads};
}

attn::ChatMessage message_of(nb::handle message) {
  const bool is_mapping = PyMapping_Check(message.ptr()) != 0 && nb::hasattr(message, "keys");
  attn::ChatMessage result;
  const bool is_read = is_mapping ? nb::try_cast(message["role"], result.role) &&
                                        nb::try_cast(message["content"], result.content)
                                  : nb::isinstance<nb::tuple>(message) && nb::len(message) == 2 &&
                                        nb::try_cast(message[0], result.role) &&
                                        nb::try_cast(message[1], result.content);
  if (is_read) return result;
  throw_type("LanguageModel", "a message", "be {'role': str, 'content': str} or (role, content)",
             nb::cast<std::string>(message.type().attr("__name__")));
}

template <class... Arguments>
attn::GeneratedText generate(Language& self, const std::string& prompt, Arguments... arguments) {
  const std::vector<index_t> ids = self.model().encode_raw(prompt);
  if (ids.empty()) throw_value("LanguageModel", "prompt", "not be empty", "no token");
  return self.answer(ids, keywords_of(std::move(arguments)...));
}

template <class... Arguments>
attn::GeneratedText chat(Language& self, nb::handle messages, Arguments... arguments) {
  std::vector<attn::ChatMessage> read;
  if (nb::isinstance<nb::str>(messages)) {
    read.push_back({"user", nb::cast<std::string>(messages)});
  } else {
    for (const nb::handle message : messages) read.push_back(message_of(message));
  }
  return self.answer(self.model().encode_chat(read), keywords_of(std::move(arguments)...));
}

const char* end_of(const attn::GeneratedText& text) {
  switch (text.end) {
    case attn::AnswerEnd::end_token:
      return "end_token";
    case attn::AnswerEnd::stop_text:
      return "stop_text";
    case attn::AnswerEnd::length:
      return "length";
    case attn::AnswerEnd::context:
      return "context";
    case attn::AnswerEnd::caller:
      break;
  }
  return "caller";
}

#define ATTN_PYTHON_GENERATION                                                               \
  "max_new_tokens: int = 128, *, temperature: float = 0.0, top_k: int = 0, "                 \
  "top_p: float = 1.0, min_p: float = 0.0, repetition_penalty: float = 1.0, seed: int = 0, " \
  "stop: Sequence[str] = (), on_text: Callable[[str], object] | None = None, "               \
  "log_probabilities: bool = False, threads: int | None = None) -> GeneratedText"

/// Defines generate() or chat().
template <class Class, class Function>
void define_generation(Class& of, const char* name, Function function, const char* argument,
                       const nb::sig& signature, const char* documentation) {
  of.def(name, function, nb::arg(argument), nb::arg("max_new_tokens") = 128, nb::kw_only(),
         nb::arg("temperature") = 0.0, nb::arg("top_k") = 0, nb::arg("top_p") = 1.0,
         nb::arg("min_p") = 0.0, nb::arg("repetition_penalty") = 1.0, nb::arg("seed") = 0,
         nb::arg("stop") = std::vector<std::string>{}, nb::arg("on_text") = nb::none(),
         nb::arg("log_probabilities") = false, nb::arg("threads") = nb::none(), signature,
         documentation);
}

}  // namespace

void bind_language_model(nb::module_& m) {
  nb::class_<attn::GeneratedText>(m, "GeneratedText", "An answer; str() of it is its text.")
      .def_ro("text", &attn::GeneratedText::text, "Without the end token and a stop text.")
      .def_ro("ids", &attn::GeneratedText::ids, "Tokens, with the end token.")
      .def_ro("log_probabilities", &attn::GeneratedText::log_probabilities,
              "The natural logarithm of each token's probability, if wanted.")
      .def_prop_ro("end", &end_of,
                   "Why it ended: 'end_token', 'stop_text', 'length' (max_new_tokens), 'context' "
                   "(no position left) or 'caller' (on_text returned False).")
      .def("__str__", [](const attn::GeneratedText& self) { return self.text; })
      .def("__repr__", [](const attn::GeneratedText& self) {
        return "GeneratedText(" + nb::cast<std::string>(nb::repr(nb::str(self.text.c_str()))) +
               ", end='" + end_of(self) + "')";
      });

  nb::class_<Language> language(
      m, "LanguageModel",
      "A decoder with its tokenizer and chat template, from a GGUF file or a folder of Hugging "
      "Face's transformers. Methods may be called from several threads.");
  language.def("__init__", &load, nb::arg("path"), nb::kw_only(), nb::arg("weights") = "float",
               nb::arg("activations") = "exact", nb::arg("cache") = "float",
               nb::arg("max_positions") = 0, nb::arg("ignore_keys") = std::vector<std::string>{},
               "weights: 'float', 'bf16', 'f16', 'int8', 'q8_0', 'q5_1', 'q5_0', 'q4_1' or 'q4_0'; "
               "quantised weights of a file keep their format. activations, in products with "
               "quantised weights: 'exact', 'bf16', 'int8' or 'int16'. cache, of keys and values: "
               "'float', 'bf16', 'f16' or 'int8'. max_positions: 0 is the model's. ignore_keys: "
               "unknown keys of the configuration to accept.",
               nb::sig("def __init__(self, path: str | os.PathLike[str], *, "
                       "weights: str = 'float', activations: str = 'exact', cache: str = 'float', "
                       "max_positions: int = 0, ignore_keys: Sequence[str] = ()) -> None"));
  using Generate = attn::GeneratedText(
      Language&, const std::string&, index_t, double, index_t, double, double, double,
      std::uint64_t, std::vector<std::string>, nb::object, bool, std::optional<int>);
  using Chat = attn::GeneratedText(Language&, nb::handle, index_t, double, index_t, double, double,
                                   double, std::uint64_t, std::vector<std::string>, nb::object,
                                   bool, std::optional<int>);
  define_generation(
      language, "generate", static_cast<Generate*>(&generate), "prompt",
      nb::sig("def generate(self, prompt: str, " ATTN_PYTHON_GENERATION),
      "Continues a text. temperature 0 takes the most likely token. on_text gets each "
      "piece of the text as soon as it is certain; False ends the answer.");
  define_generation(language, "chat", static_cast<Chat*>(&chat), "messages",
                    nb::sig("def chat(self, messages: str | Sequence[Mapping[str, str] | "
                            "tuple[str, str]], " ATTN_PYTHON_GENERATION),
                    "Answers a conversation, messages with 'role' and 'content', or a text of the "
                    "user. Needs a known chat template. Keywords as in generate().");
  language
      .def(
          "score", &Language::score, nb::arg("text"), nb::kw_only(),
          nb::arg("threads") = nb::none(),
          "The natural logarithm of the probability of each token of encode(text) after the first.",
          nb::sig("def score(self, text: str, *, threads: int | None = None) -> list[float]"))
      .def(
          "encode",
          [](const Language& self, std::string_view text) { return self.model().encode_raw(text); },
          nb::arg("text"),
          "Tokens of a text, after the beginning-of-text token if the model has one.")
      .def(
          "decode",
          [](const Language& self, const std::vector<index_t>& ids) {
            attn::TextStream stream(self.model().tokenizer());
            std::string text;
            for (const index_t id : ids) {
              if (id < 0 || id >= self.model().tokenizer().vocab_size()) {
                throw_value("LanguageModel", "ids", "be tokens of the vocabulary",
                            std::to_string(id));
              }
              text += stream.push(id);
            }
            return text + stream.finish();
          },
          nb::arg("ids"), "The text of tokens.",
          nb::sig("def decode(self, ids: Sequence[int]) -> str"))
      .def_prop_ro(
          "vocab_size", [](const Language& self) { return self.model().gpt().vocab_size(); },
          "The number of tokens.")
      .def_prop_ro(
          "max_positions", [](const Language& self) { return self.model().max_positions(); },
          "The number of tokens of the longest context.")
      .def_prop_ro(
          "has_chat_template",
          [](const Language& self) { return self.model().has_chat_template(); },
          "Whether chat() is possible.");
}

}  // namespace attn_python
