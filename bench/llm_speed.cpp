// llm_speed: prefill and decode speed of a language model, one number per run.
#include <algorithm>
#include <deque>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "attn/generation/generate_text.hpp"
#include "attn/models/quantize.hpp"

#include "support/bandwidth.hpp"
#include "support/command_line.hpp"
#include "support/json.hpp"
#include "support/model_dir.hpp"
#include "support/threads.hpp"

namespace {

using attn::index_t;

constexpr index_t kPrompt = 512, kShortPrompt = 16, kDecoded = 128, kConversations = 8,
                  kContext = 4096, kDecodedLong = 16;

struct Options {
  std::string row, model;
  double seconds = 5;
};

// The result of one row: the shortest time, the number of tokens, and the most likely next token,
// by which two libraries are compared.
struct Measured {
  double seconds;
  index_t tokens, next;
};

using Session = attn::GptSession<float>;

// The same words repeated: any number of tokens, with a predictable continuation.
std::vector<index_t> prompt_ids(const attn::LanguageModel& model, index_t count) {
  std::string text;
  for (index_t i = 0; i < count; ++i) text += "The quick brown fox jumps over the lazy dog. ";
  std::vector<index_t> ids = model.tokenizer().encode(text);
  ids.resize(static_cast<std::size_t>(count));
  return ids;
}

index_t step(Session& session, const std::vector<index_t>& ids, attn::Tensor2<float>& logits) {
  session.step({ids.data(), {1, std::ssize(ids)}}, logits);
  return attn::likeliest_token(logits.view().select(0, 0));
}

// The shortest time of at least two calls, repeated for this many seconds.
double best_seconds(double seconds, const std::function<void()>& prepare,
                    const std::function<void()>& call) {
  double best = std::numeric_limits<double>::infinity();
  const bench::Clock::time_point first = bench::Clock::now();
  for (int i = 0; i < 3 || bench::seconds_since(first) < seconds; ++i) {
    prepare();
    const bench::Clock::time_point start = bench::Clock::now();
    call();
    if (i > 0) best = std::min(best, bench::seconds_since(start));  // the first allocates
  }
  return best;
}

Measured prefill(const attn::LanguageModel& model, double seconds) {
  Session session(model.gpt(), 1, kPrompt);
  const std::vector<index_t> ids = prompt_ids(model, kPrompt);
  attn::Tensor2<float> logits({1, session.vocab_size()});
  index_t next = 0;
  const double best = best_seconds(
      seconds, [&] { session.clear(); }, [&] { next = step(session, ids, logits); });
  return {best, kPrompt, next};
}

// Decodes `decoded` tokens of the same text after a prompt of `prompt` tokens.
Measured decode(const attn::LanguageModel& model, double seconds, index_t prompt, index_t decoded,
                attn::DType element) {
  Session session(model.gpt(), 1, prompt + decoded, {}, element);
  const std::vector<index_t> ids = prompt_ids(model, prompt + decoded);
  attn::Tensor2<float> logits({1, session.vocab_size()});
  step(session, {ids.begin(), ids.begin() + prompt}, logits);
  index_t next = 0;
  const double best = best_seconds(
      seconds, [&] { session.truncate_to(prompt); },
      [&] {
        for (auto id = ids.begin() + prompt; id != ids.end(); ++id) {
          next = step(session, {*id}, logits);
        }
      });
  return {best, decoded, next};
}

// Several conversations at once, each a token longer than the previous one.
Measured decode_batch(const attn::LanguageModel& model, double seconds) {
  std::deque<Session> sessions;
  std::vector<Session*> together;
  const std::vector<index_t> ids = prompt_ids(model, kShortPrompt + kConversations + kDecoded);
  attn::Tensor2<float> logits({kConversations, model.gpt().vocab_size()});
  const auto seen = [](index_t n) { return kShortPrompt + n; };
  for (index_t n = 0; n < kConversations; ++n) {
    together.push_back(&sessions.emplace_back(model.gpt(), 1, seen(n) + kDecoded));
    attn::Tensor2<float> first({1, model.gpt().vocab_size()});
    step(sessions.back(), {ids.begin(), ids.begin() + seen(n)}, first);
  }
  attn::Tensor1<index_t> tokens({kConversations});
  const double best = best_seconds(
      seconds,
      [&] {
        for (index_t n = 0; n < kConversations; ++n) {
          together[static_cast<std::size_t>(n)]->truncate_to(seen(n));
        }
      },
      [&] {
        for (index_t i = 0; i < kDecoded; ++i) {
          for (index_t n = 0; n < kConversations; ++n) {
            tokens(n) = ids[static_cast<std::size_t>(seen(n) + i)];
          }
          Session::step_together(together, tokens, logits);
        }
      });
  const index_t next = attn::likeliest_token(logits.view().select(0, 0));
  return {best, kConversations * kDecoded, next};
}

// The time from opening the file to the first token of an answer.
Measured first_token(const std::filesystem::path& path, const attn::LanguageModelOptions& loading,
                     double seconds) {
  index_t next = 0;
  const double best = best_seconds(
      seconds, [] {},
      [&] {
        const attn::LanguageModel model(path, loading);
        Session session(model.gpt(), 1, kPrompt);
        attn::Tensor2<float> logits({1, session.vocab_size()});
        next = step(session, prompt_ids(model, kShortPrompt), logits);
      });
  return {best, 1, next};
}

void run(const Options& options) {
  if (options.model.empty() && !examples::llm_is_present()) {
    throw examples::UsageError(examples::missing_llm_message());
  }
  const std::filesystem::path path =
      options.model.empty() ? examples::llm_path() : std::filesystem::path(options.model);
  attn::LanguageModelOptions loading{.activations = attn::ActivationFormat::int8};
  if (options.row == "llm_prefill_exact") loading.activations = attn::ActivationFormat::exact;
  if (options.row == "llm_prefill_bf16") {
    loading.activations = attn::ActivationFormat::bf16;
    loading.dequantize = true;
    loading.weights = attn::WeightFormat::bf16;
  }
  const double s = options.seconds;
  const auto of_model = [&](auto f) { return f(attn::LanguageModel(path, loading)); };
  using Model = attn::LanguageModel;
  const std::map<std::string, std::function<Measured()>> rows = {
      {"llm_prefill", [&] { return of_model([&](const Model& m) { return prefill(m, s); }); }},
      {"llm_prefill_exact",
       [&] { return of_model([&](const Model& m) { return prefill(m, s); }); }},
      {"llm_prefill_bf16", [&] { return of_model([&](const Model& m) { return prefill(m, s); }); }},
      {"llm_decode",
       [&] {
         return of_model([&](const Model& m) {
           return decode(m, s, kShortPrompt, kDecoded, attn::DType::F32);
         });
       }},
      {"llm_decode_batch",
       [&] { return of_model([&](const Model& m) { return decode_batch(m, s); }); }},
      {"llm_long",
       [&] {
         return of_model(
             [&](const Model& m) { return decode(m, s, kContext, kDecodedLong, attn::DType::I8); });
       }},
      {"llm_first_token", [&] { return first_token(path, loading, s); }},
  };
  const auto row = rows.find(options.row);
  if (row == rows.end()) {
    std::string names;
    for (const auto& [name, ignored] : rows) names += (names.empty() ? "" : ", ") + name;
    throw examples::UsageError("ROW must be one of " + names + "; found " + options.row);
  }
  const Measured found = row->second();
  const int threads = attn::default_executor().concurrency();
  examples::Json result = {{"seconds", found.seconds},
                           {"tokens", found.tokens},
                           {"tokens_per_second", static_cast<double>(found.tokens) / found.seconds},
                           {"next", found.next},
                           {"threads", threads}};
  if (options.row == "llm_decode") {
    // Decoding a token reads all weights once: compares that with the machine's bandwidth.
    const index_t bytes = of_model([](const Model& m) {
      attn::Gpt<float> gpt = m.gpt();  // which shares its weights
      return attn::weight_bytes(gpt);
    });
    bench::ReadBandwidth bandwidth(bytes);
    for (int i = 0; i < 20; ++i) bandwidth.measure(threads);
    const double read =
        static_cast<double>(bytes) * static_cast<double>(found.tokens) / found.seconds;
    result["weight_bytes"] = bytes;
    result["share_of_read_bandwidth"] = read / bandwidth.best(threads);
  }
  std::cout << result.dump() << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Measures one row of bench/peers on a language model and prints the shortest time as JSON.");
  app.footer("Without --model it is SmolLM2-135M-Instruct: sh examples/fetch_llm.sh");
  app.add_option("ROW", options.row, "Such as llm_decode")->required();
  app.add_option("--model", options.model, "A GGUF file")->type_name("FILE");
  app.add_option("--seconds", options.seconds, "About how long to measure")->capture_default_str();
  return examples::run_program(app, "llm_speed", argc, argv, [&] { run(options); });
}
