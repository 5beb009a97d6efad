// chat: talks to a language model in a GGUF file or a Hugging Face folder, continues a text, or
// computes the likelihood of a text. Compiled with CHAT_HAS_MPI it is chat_mpi, whose ranks share the
// model.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <unistd.h>
#include <vector>

#include <CLI/CLI.hpp>

#include "attn/generation/generate_texts.hpp"
#include "attn/generation/saved_session.hpp"
#if defined(CHAT_HAS_MPI)
#include "attn/distributed/mpi.hpp"
#include "attn/distributed/shard.hpp"
#endif

#include "support/command_line.hpp"
#include "support/json.hpp"
#include "support/line_editor.hpp"
#include "support/memory.hpp"
#include "support/model_dir.hpp"
#include "support/precision.hpp"
#include "support/printable.hpp"

namespace {

using attn::index_t;
using examples::UsageError;
using Clock = std::chrono::steady_clock;

struct Options {
  std::optional<std::string> model, system, prompt, file, score, draft, prompt_cache;
  std::vector<std::string> stop, ignore_keys;
  index_t tokens = 512, min_tokens = 0, context = 4096, lookup = 0, draft_tree = 1;
  std::optional<index_t> keep, samples;
  attn::SamplingOptions sampling{.temperature = 0};  // temperature 0: greedy
  attn::LogitOptions logits;
  int threads = 0;
  std::string precision = "int8", weights = "float";
  bool stats = false, json = false, raw = false;
};

const std::map<std::string, std::optional<attn::WeightFormat>> kWeights = {
    {"float", std::nullopt},
    {"bf16", attn::WeightFormat::bf16},
    {"f16", attn::WeightFormat::f16},
    {"int8", attn::WeightFormat::int8},
    {"q8_0", attn::WeightFormat::q8_0},
    {"q5_1", attn::WeightFormat::q5_1},
    {"q5_0", attn::WeightFormat::q5_0},
    {"q4_1", attn::WeightFormat::q4_1},
    {"q4_0", attn::WeightFormat::q4_0}};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}
double rate(index_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

std::string read_file(const std::string& path) {
  if (std::filesystem::is_directory(path)) throw UsageError(path + " is a directory");
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in)
    throw UsageError("cannot read '" + path + "': " + std::generic_category().message(errno));
  return {std::istreambuf_iterator<char>(in), {}};
}

void check(const Options& o) {
  const auto need = [](bool good, const std::string& what, const std::string& found) {
    if (!good) throw UsageError(what + "; found " + found);
  };
  need(examples::kActivations.contains(o.precision), "--precision must be exact, bf16 or int8",
       o.precision);
  need(kWeights.contains(o.weights),
       "--weights must be float, bf16, f16, int8, q8_0, q5_1, q5_0, q4_1 or q4_0", o.weights);
  need(!o.keep || *o.keep < o.context, "--keep must be below --ctx",
       std::to_string(o.keep.value_or(0)));
#if !defined(_OPENMP)
  need(o.threads <= 1, "--threads must be at most 1 in a program without OpenMP",
       std::to_string(o.threads));
#endif
  need(o.min_tokens <= o.tokens, "--min-tokens must be at most --tokens",
       std::to_string(o.min_tokens));
  for (const std::string& stop : o.stop) need(!stop.empty(), "--stop must not be empty", "''");
  if (o.json && !o.prompt && !o.file && !o.score) {
    throw UsageError("--json needs --prompt, --file or --score");
  }
  if (o.draft_tree > 1 && !o.draft && o.lookup == 0) {
    throw UsageError("--draft-tree needs --draft or --lookup");
  }
  if (o.samples && !o.prompt && !o.file) throw UsageError("--samples needs --prompt or --file");
  need(!o.samples || o.sampling.temperature > 0, "--samples needs a --temperature above 0",
       attn::to_string(o.sampling.temperature));
#if defined(CHAT_HAS_MPI)
  need(o.prompt || o.file || o.score, "chat_mpi needs --prompt, --file or --score", "none");
  need(!o.prompt_cache, "--prompt-cache must not be given to chat_mpi",
       o.prompt_cache.value_or(""));
#endif
}

std::filesystem::path model_path(const Options& options) {
  if (options.model) return *options.model;
  if (!examples::llm_is_present()) throw UsageError(examples::missing_llm_message());
  return examples::llm_path();
}

// JSON holds only UTF-8: other bytes become U+FFFD.
void print(const examples::Json& json) {
  std::cout << json.dump(-1, ' ', false, examples::Json::error_handler_t::replace) << '\n';
}

// Escapes what would move the terminal's cursor, change its colours or reverse lines.
std::string on_terminal(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of("\n\t"), text.size());
    result += examples::printable(text.substr(0, end));
    result += text.substr(end, 1);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result;
}

#if defined(CHAT_HAS_MPI)
attn::Communicator& ranks() {
  static attn::MpiCommunicator all;
  return all;
}
#endif

attn::LanguageModel load_model(const std::filesystem::path& path, const Options& options) {
  attn::LanguageModel model(path, {.weights = kWeights.at(options.weights),
                                   .activations = examples::kActivations.at(options.precision),
                                   .ignore_keys = options.ignore_keys});
#if defined(CHAT_HAS_MPI)
  attn::shard(model.gpt(), ranks());
#endif
  return model;
}

// One model, one session, and the tokens of the conversation so far.
class Chat {
 public:
  explicit Chat(const Options& options)
      : options_(options),
        model_(load_model(model_path(options), options)),
#if defined(_OPENMP)
        threads_(options.threads),
#endif
        session_(model_.gpt(), 1, capacity(), attention(), cache_element()) {
    if (options.system) messages_.push_back({"system", *options.system});
    if (options.lookup > 0) draft_ = attn::PromptLookup(options.lookup, options.draft_tree);
    if (!options.draft) return;
    draft_model_.emplace(load_model(*options.draft, options));
    check_same_tokens();
    draft_session_.emplace(draft_model_->gpt(), 1,
                           std::min(capacity(), draft_model_->max_positions()), attention(),
                           cache_element());
    const index_t vocab = draft_session_->vocab_size();
    if (options.draft_tree > vocab) {
      throw UsageError("--draft-tree must be at most the vocabulary's size, " +
                       std::to_string(vocab) + "; found " + std::to_string(options.draft_tree));
    }
    drafts_.emplace(*draft_session_, options.draft_tree);
    draft_ = std::ref(*drafts_);
  }

  const attn::LanguageModel& model() const { return model_; }

  std::vector<double> score(const std::vector<index_t>& ids) const {
    if (std::ssize(ids) > capacity()) throw too_long(std::ssize(ids), capacity());
    return attn::score_text(model_, ids, attention().execution);
  }

  // Answers a message of the user or continues a text; passes each piece of the result to `say`.
  attn::GeneratedText answer(const std::string& text, std::function<bool(std::string_view)> say) {
    read(text);
    attn::TextGenerationOptions generation = next_options();
    generation.on_text = std::move(say);
    generation.keep = options_.keep;
    generation.draft = draft_;
    attn::GeneratedText result = timed(generation, [&] {
      return std::vector{attn::generate_text(model_, session_, ids_, generation)};
    })[0];
    drafted = result.drafted;
    accepted = result.accepted;
    ids_ = result.context;
    if (model_.is_end(ids_.back())) ids_.pop_back();  // the template adds it
    if (!options_.raw)
      messages_.push_back({"assistant", model_.chat_template().answer_in(result.text)});
    return result;
  }

  // Answers of different seeds to one message or text, which end where `goes_on` returns false.
  std::vector<attn::GeneratedText> samples(const std::string& text,
                                           const std::function<bool(std::string_view)>& goes_on) {
    read(text);
    std::vector<attn::TextGenerationOptions> generation;
    for (index_t n = 0; n < *options_.samples; ++n) {
      generation.push_back(next_options());
      generation.back().on_text = goes_on;
    }
    return timed(generation[0],
                 [&] { return attn::generate_samples(model_, session_, ids_, generation); });
  }

  // For --stats, on standard error.
  void print_stats() const {
    if (!options_.stats) return;
    std::cerr << std::fixed << std::setprecision(1) << examples::counted(tokens_read, "token")
              << " read, " << prefill_rate << " a second; "
              << examples::counted(tokens_said, "token") << " said, " << decode_rate
              << " a second; " << session_.length() << " of "
              << examples::counted(session_.capacity(), "token") << " of context";
    if (drafted > 0) {
      std::cerr << "; " << accepted << " of " << examples::counted(drafted, "drafted token")
                << " accepted, "
                << 100 * static_cast<double>(accepted) / static_cast<double>(drafted) << " %";
    }
    std::cerr << '\n';
  }

  // Statistics of the last answer.
  std::vector<index_t> prompt_ids;
  index_t tokens_read = 0, tokens_said = 0, drafted = 0, accepted = 0;
  double prefill_rate = 0, decode_rate = 0;  // tokens per second

 private:
  // Adds a message of the user, or takes a text, to ids_, and forgets tokens that do not fit it.
  void read(const std::string& text) {
    if (options_.raw) {
      ids_ = model_.encode_raw(text);
      session_.clear();
      if (ids_.empty()) throw UsageError("an empty text cannot be continued");
    } else {
      messages_.push_back({"user", text});
      // After an answer, the conversation continues from its own tokens.
      const auto rest = messages_.size() > 2 && !ids_.empty()
                            ? model_.chat_template().render_after(messages_, messages_.size() - 2)
                            : std::nullopt;
      if (rest) {
        for (const index_t id : model_.tokenizer().encode(*rest)) ids_.push_back(id);
      } else {
        std::vector<index_t> ids = model_.encode_chat(messages_);
        // Keeps the tokens that the session has processed.
        const auto same = std::mismatch(ids_.begin(), ids_.end(), ids.begin(), ids.end() - 1).first;
        keep_tokens(std::min<index_t>(session_.length(), same - ids_.begin()));
        ids_ = std::move(ids);
      }
    }
    read_prompt_cache();
    if (std::ssize(ids_) > session_.capacity()) {
      if (!options_.keep) throw too_long(std::ssize(ids_), session_.capacity());
      ids_ = attn::shortened_context(std::move(ids_), session_.capacity(), *options_.keep);
      session_.clear();
    }
    prompt_ids = ids_;
    tokens_read = std::ssize(ids_) - session_.length();
  }
  // The options of the next answer, which has a seed of its own.
  attn::TextGenerationOptions next_options() {
    attn::TextGenerationOptions generation{.max_new_tokens = options_.tokens,
                                           .min_new_tokens = options_.min_tokens,
                                           .logits = options_.logits,
                                           .stop = options_.stop};
    if (options_.sampling.temperature > 0) {
      generation.sampling = options_.sampling;
      generation.sampling->seed += answers_++;
    }
    return generation;
  }
  // Runs `generate`, of which `first` are the first options, and measures its speed.
  template <class Generate>
  std::vector<attn::GeneratedText> timed(attn::TextGenerationOptions& first,
                                         const Generate& generate) {
    // The first logits exist once the prompt has been prefilled.
    const Clock::time_point start = Clock::now();
    double prefill = 0;
    Clock::time_point begin_decode = start;
    first.logit_processor = [&](attn::TensorView1<float>, std::span<const index_t>) {
      if (prefill > 0) return;
      prefill = seconds_since(start);
      write_prompt_cache();
      begin_decode = Clock::now();
    };
    std::vector<attn::GeneratedText> result = generate();
    const double decode = seconds_since(begin_decode);
    tokens_said = 0;
    for (const attn::GeneratedText& one : result) tokens_said += std::ssize(one.ids);
    prefill_rate = rate(tokens_read, prefill);
    decode_rate = rate(tokens_said - std::ssize(result), decode);
    return result;
  }
  static UsageError too_long(index_t length, index_t capacity) {
    return UsageError("the text has " + examples::counted(length, "token") + ", the context " +
                      std::to_string(capacity) + " (--ctx)");
  }
  // The first text may begin with tokens that an earlier run saved: these are not prefilled again.
  void read_prompt_cache() {
    if (!options_.prompt_cache || session_.length() > 0 ||
        !std::filesystem::exists(*options_.prompt_cache)) {
      return;
    }
    // Without the file, all tokens are prefilled at once: fewer in the last step may take the decode
    // path, whose sums round differently and could change the answer. Models with recurrent layers
    // have no such number, since they cannot forget tokens; their attention takes no more.
    const index_t least = session_.min_prefill_tokens().value_or(attn::detail::kMaxDecodeRows + 1);
    const index_t left = std::min<index_t>(std::ssize(ids_), least);
    const std::vector<index_t> seen = attn::load_session(*options_.prompt_cache, session_);
    const auto same =
        std::mismatch(seen.begin(), seen.end(), ids_.begin(), ids_.end() - left).first;
    keep_tokens(same - seen.begin());
  }
  // Recurrent layers cannot go back to every length.
  void keep_tokens(index_t length) {
    session_.can_truncate_to(length) ? session_.truncate_to(length) : session_.clear();
  }
  // Saves the first text only: answers are not prefilled in one step.
  void write_prompt_cache() {
    if (!options_.prompt_cache || cache_is_written_) return;
    attn::save_session(*options_.prompt_cache, session_, ids_);
    cache_is_written_ = true;
  }
  void check_same_tokens() const {
    const attn::Tokenizer &ours = model_.tokenizer(), &theirs = draft_model_->tokenizer();
    bool same = ours.vocab_size() == theirs.vocab_size();
    for (index_t id = 0; same && id < ours.vocab_size(); ++id)
      same = ours.piece(id) == theirs.piece(id);
    if (!same) throw UsageError("--draft must have the tokens of the model; found others");
  }
  // The element type of keys and values.
  std::optional<attn::DType> cache_element() const {
    if (options_.precision == "int8") return attn::DType::I8;
    if (options_.precision == "bf16") return attn::DType::BF16;
    return std::nullopt;
  }
  index_t capacity() const { return std::min(options_.context, model_.max_positions()); }
  attn::AttentionOptions<float> attention() const {
    attn::AttentionOptions<float> options;
#if defined(_OPENMP)
    options.execution.executor = &threads_;
#endif
    return options;
  }

  Options options_;
  bool cache_is_written_ = false;
  attn::LanguageModel model_;
#if defined(_OPENMP)
  attn::OpenMPExecutor threads_;
#endif
  attn::GptSession<float> session_;
  std::optional<attn::LanguageModel> draft_model_;
  std::optional<attn::GptSession<float>> draft_session_;
  std::optional<attn::DraftModel<float>> drafts_;
  attn::Draft draft_;
  std::vector<attn::ChatMessage> messages_;
  std::vector<index_t> ids_;
  std::uint64_t answers_ = 0;
};

void print_score(Chat& chat, const Options& options) {
  const std::vector<index_t> ids = chat.model().encode_raw(*options.score);
  const std::vector<double> log_probabilities = chat.score(ids);
  if (options.json) {
    examples::Json values = examples::Json::array();
    for (const double x : log_probabilities) values.push_back(static_cast<float>(x));
    print({{"ids", ids}, {"logprobs", values}});
    return;
  }
  double sum = 0;
  std::cout << std::fixed << std::setprecision(4);
  for (std::size_t i = 0; i < log_probabilities.size(); ++i) {
    sum += log_probabilities[i];
    std::cout << std::setw(10) << log_probabilities[i] << "  "
              << examples::printable(
                     examples::Json(chat.model().tokenizer().piece(ids[i + 1]))
                         .dump(-1, ' ', false, examples::Json::error_handler_t::replace))
              << '\n';
  }
  std::cout << std::setw(10) << sum << "  in all\n";
}

bool goes_on(std::string_view) {
#if defined(CHAT_HAS_MPI)
  return true;  // ranks go on together until mpirun ends them
#else
  return !examples::Interrupt::came();
#endif
}
void print_text(std::string_view text) {
  std::cout << (isatty(STDOUT_FILENO) != 0 ? on_terminal(text) : std::string(text)) << std::flush;
}
bool say(std::string_view piece) {
  print_text(piece);
  return goes_on(piece);
}

// Error text of a conversation that ends because its context is full.
constexpr const char* kFull = "the context is full (--ctx; with --keep it goes on)";
// That of samples, which --keep excludes.
constexpr const char* kSamplesFull = "the context is full (--ctx)";

examples::Json speed_of(const Chat& chat) {
  return {{"prefill", static_cast<float>(chat.prefill_rate)},
          {"decode", static_cast<float>(chat.decode_rate)}};
}

// Each sample below a line with its number and seed, with an empty line between two of them.
void print_samples(Chat& chat, const Options& options) {
  const std::string prompt = options.prompt ? *options.prompt : read_file(*options.file);
  const examples::Interrupt interrupt;
  const std::vector<attn::GeneratedText> samples = chat.samples(prompt, goes_on);
  examples::Json list = examples::Json::array();
  for (std::size_t n = 0; n < samples.size(); ++n) {
    list.push_back(
        {{"seed", options.sampling.seed + n}, {"ids", samples[n].ids}, {"text", samples[n].text}});
    if (options.json) continue;
    std::cout << (n > 0 ? "\n" : "") << "[sample " << n + 1 << ", seed "
              << options.sampling.seed + n << "]\n";
    print_text(samples[n].text);
    std::cout << '\n';
  }
  if (options.json) {
    print({{"prompt_ids", chat.prompt_ids},
           {"samples", list},
           {"tokens_per_second", speed_of(chat)}});
  }
  std::cout << std::flush;
  chat.print_stats();
  const auto is_full = [](const auto& one) { return one.end == attn::AnswerEnd::context; };
  if (!options.json && std::ranges::any_of(samples, is_full)) throw UsageError(kSamplesFull);
}

void print_answer(Chat& chat, const Options& options) {
  const std::string prompt = options.prompt ? *options.prompt : read_file(*options.file);
  const examples::Interrupt interrupt;
  if (!options.json) {
    const attn::GeneratedText answer = chat.answer(prompt, say);
    std::cout << '\n' << std::flush;
    chat.print_stats();
    if (answer.end == attn::AnswerEnd::context) throw UsageError(kFull);
    return;
  }
  const attn::GeneratedText answer = chat.answer(prompt, {});
  print({{"prompt_ids", chat.prompt_ids},
         {"ids", answer.ids},
         {"text", answer.text},
         {"tokens_per_second", speed_of(chat)}});
  chat.print_stats();
}

void converse(Chat& chat, const Options& options) {
  examples::LineEditor editor;
  if (editor.on_terminal()) {
    std::cout << "Precision " << options.precision
              << ". Ctrl-C ends an answer, Ctrl-D the conversation.\n";
  }
  while (const auto line = editor.read("> ")) {
    if (line->empty()) continue;
    const examples::Interrupt interrupt;
    const attn::GeneratedText answer = chat.answer(*line, say);
    std::cout << '\n' << std::flush;
    chat.print_stats();
    if (answer.end == attn::AnswerEnd::context) {
      throw UsageError(kFull);
    }
  }
  if (editor.on_terminal()) std::cout << '\n';
}

// Prints to standard error, like all of --stats.
void print_loading(double seconds) {
  std::cerr << std::fixed << std::setprecision(2) << "ready in " << seconds << " s";
  if (const auto memory = examples::memory_use()) {
    std::cerr << std::setprecision(0) << "; " << memory->resident << " MB of memory, "
              << memory->most << " MB at most";
  }
  std::cerr << '\n';
}

void run(const Options& options) {
  check(options);
  const Clock::time_point start = Clock::now();
  Chat chat(options);
  if (options.stats) print_loading(seconds_since(start));
  if (!options.raw && !options.score) chat.model().chat_template();  // throws if it has none
  if (options.score) {
    print_score(chat, options);
  } else if (options.samples) {
    print_samples(chat, options);
  } else if (options.prompt || options.file) {
    print_answer(chat, options);
  } else {
    converse(chat, options);
  }
}

// Sampling options and penalties, which --help shows as a group.
void add_sampling(CLI::App& app, attn::SamplingOptions& o, attn::LogitOptions& logits) {
  constexpr const char* kGroup = "Sampling";
  const auto add = [&](const char* name, double& value, const examples::RealRange& range,
                       const char* description) {
    examples::add_real(app, name, value, range, description)->group(kGroup);
  };
  constexpr examples::RealRange kShare{.most = 1, .open = true}, kProbability{.most = 1};
  const auto add_count = [&](const char* name, auto& value, const char* description) {
    examples::add_number(app, name, value, {}, description)->group(kGroup);
  };
  add("--temperature", o.temperature, {}, "Sampling temperature; 0: always the most likely token");
  add("--top-n-sigma", o.top_n_sigma, {},
      "Sample from logits within this many standard deviations of the largest; 0: from all");
  add_count("--top-k", o.top_k, "Sample from the k most likely tokens; 0: from all");
  add("--top-p", o.top_p, kShare, "Sample from the most likely tokens with this total probability");
  add("--min-p", o.min_p, kProbability,
      "Sample from tokens at least this many times as likely as the most likely one");
  add("--typical-p", o.typical_p, kShare,
      "Sample from the tokens of the most typical surprise with this total probability");
  add("--xtc-probability", o.xtc_probability, kProbability,
      "XTC: leave out all top choices but the least likely, with this probability");
  add("--xtc-threshold", o.xtc_threshold, kProbability, "XTC: probability of a top choice");
  add("--mirostat-tau", o.mirostat_tau, {}, "Mirostat 2: surprise of tokens in bits; 0: off");
  add("--mirostat-eta", o.mirostat_eta, {}, "Mirostat 2: learning rate");
  add_count("--seed", o.seed, "Seed of the sampling");
  add("--repeat-penalty", logits.repetition_penalty, {.open = true},
      "Divide the logits of tokens that occurred by this");
  add("--presence-penalty", logits.presence_penalty, {},
      "Subtract this from the logits of tokens that occurred");
  add("--frequency-penalty", logits.frequency_penalty, {},
      "Subtract this from the logit of a token for each time that it occurred");
  add("--dry-multiplier", logits.dry_multiplier, {},
      "DRY: penalty of a token that continues a repetition; 0: off");
  add("--dry-base", logits.dry_base, {.least = 1},
      "DRY: growth of the penalty with each repeated token");
  examples::add_number(app, "--dry-allowed-length", logits.dry_allowed_length, index_t{1},
                       "DRY: the shortest repetition that is penalised")
      ->group(kGroup);
  add_count("--no-repeat-ngram", logits.no_repeat_ngram,
            "Let no sequence of this many tokens occur twice; 0: off");
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app(
      "Talks to a language model, a GGUF file or a Hugging Face folder: line by line, or by "
      "--prompt, "
      "--file or --score.");
  app.footer("Without --model it is SmolLM2-135M-Instruct: sh examples/fetch_llm.sh");
  app.add_option("--model", o.model, "A GGUF file, or a Hugging Face folder");
  examples::add_ignored_keys(app, o.ignore_keys);
  app.add_option("--system", o.system, "System message; default: the model's own");
  CLI::Option* prompt = app.add_option("--prompt", o.prompt, "Answer this prompt and exit");
  CLI::Option* file = app.add_option("--file", o.file, "Answer the prompt in this file and exit");
  CLI::Option* score =
      app.add_option("--score", o.score, "Print the log-probability of each token of this text");
  prompt->excludes(file)->excludes(score);
  file->excludes(score);
  examples::add_number(app, "--tokens", o.tokens, index_t{1},
                       "Maximum number of tokens of an answer, including its end token");
  examples::add_number(app, "--min-tokens", o.min_tokens, index_t{0},
                       "Number of tokens before an answer may end");
  add_sampling(app, o.sampling, o.logits);
  app.add_option("--stop", o.stop, "Stop text: an answer ends before it; may be repeated")
      ->take_all()
      ->allow_extra_args(false);
  examples::add_number(app, "--ctx", o.context, index_t{1},
                       "Maximum number of tokens of a conversation");
  CLI::Option* keep = examples::add_number(
      app, "--keep", o.keep, index_t{0},
      "When the context is full, keep this many first tokens and the newest half; default: end");
  CLI::Option* lookup =
      examples::add_number(app, "--lookup", o.lookup, index_t{0},
                           "Speculate on repetitions of up to this many last tokens; same answer");
  CLI::Option* draft =
      app.add_option("--draft", o.draft,
                     "A smaller model with the same vocabulary for speculation; same answer")
          ->excludes(lookup);
  examples::add_number(app, "--draft-tree", o.draft_tree, index_t{1},
                       "Speculate on this many continuations at once; 1: one; same answer");
  examples::add_number(app, "--samples", o.samples, index_t{1},
                       "Print this many answers, decoded together; sample i has the seed --seed + "
                       "i - 1")
      ->excludes(keep)
      ->excludes(lookup)
      ->excludes(draft);
  app.add_option("--prompt-cache", o.prompt_cache,
                 "Reuse the KV cache in this file for the start of the text, and update the file")
      ->type_name("FILE");
  examples::add_number(app, "--threads", o.threads, 0, "Number of threads; 0: OpenMP's default");
  app.add_option("--precision", o.precision,
                 "Format of activations and KV cache: int8, bf16 or exact (float)")
      ->capture_default_str();
  app.add_option("--weights", o.weights,
                 "Format of float weights: float, bf16, f16, int8, q8_0, q5_1, q5_0, q4_1 or "
                 "q4_0")
      ->capture_default_str();
  app.add_flag("--stats", o.stats,
               "Print load time, and the speed of each answer, to standard error");
  app.add_flag("--json", o.json, "Print one JSON object");
  app.add_flag(
      "--raw", o.raw,
      "Continue texts as they are, without the chat template; control tokens in them are parsed");
#if defined(CHAT_HAS_MPI)
  return examples::run_program(app, "chat_mpi", argc, argv, [&] {
    attn::Communicator& comm = ranks();
    // Rank 0 prints.
    if (comm.rank() != 0 && std::freopen("/dev/null", "w", stdout) == nullptr) {
      throw std::runtime_error("cannot open /dev/null");
    }
    try {
      run(o);
    } catch (const std::exception& error) {
      if (comm.size() > 1) comm.fail(error.what());  // the others would wait
      throw;
    }
  });
#else
  return examples::run_program(app, "chat", argc, argv, [&] { run(o); });
#endif
}
