// semantic_search: finds the lines of a text that are nearest in meaning to a query, by the
// embeddings of all-MiniLM-L6-v2 or of another sentence-transformers folder.
//
//   sh examples/fetch_model.sh        (once)
//   semantic_search --file examples/data/help_center.txt "How do I get my money back?"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iomanip>
#include <iostream>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <unistd.h>
#include <vector>

#include <CLI/CLI.hpp>

#include "attn/models/sentence_encoder.hpp"

#include "support/command_line.hpp"
#include "support/json.hpp"
#include "support/model_dir.hpp"
#include "support/precision.hpp"
#include "support/printable.hpp"

namespace {

struct Options {
  std::optional<std::string> file, model;
  std::string query, precision = "exact";
  std::vector<std::string> ignore_keys;
  long long top = 5;
  bool json = false;
  bool embed = false;
};

struct Hit {
  std::size_t line;  // from 1 on
  double score;      // cosine, in [-1, 1]
};

using examples::UsageError;
using Encoder = attn::SentenceEncoder<float>;

// The first of these prompts that the model has, or the model's default.
std::string_view prompt_of(const Encoder& model, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (model.options().prompts.contains(std::string(name))) return name;
  }
  return {};
}

// The lines of a stream. A line ends at '\n' or at the end of the stream. A '\r' before '\n', as in
// files from Windows, is part of the line end.
std::vector<std::string> read_lines(std::istream& in, const std::string& name) {
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    lines.push_back(std::move(line));
  }
  // The C stream reports a failed read, which std::cin treats as the end of input.
  if (in.bad() || (&in == &std::cin && std::ferror(stdin) != 0)) {
    throw UsageError("cannot read " + name);
  }
  return lines;
}

std::vector<std::string> read_input(const std::optional<std::string>& named) {
  if (!named) return read_lines(std::cin, "standard input");
  const std::string& file = *named;
  if (std::filesystem::is_directory(file)) throw UsageError(file + " is a directory");
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  if (!in)
    throw UsageError("cannot read '" + file + "': " + std::generic_category().message(errno));
  return read_lines(in, file);
}

// A bar of ten cells, full at 1.
std::string bar(double share) {
  const long filled = std::lround(std::clamp(share, 0.0, 1.0) * 10.0);
  std::string result;
  for (long i = 0; i < 10; ++i) result += i < filled ? "█" : "░";
  return result;
}

// Number of lines per batch: limits memory for long texts, and lets the progress bar advance.
constexpr std::size_t kLinesAtOnce = 512;

// Progress on standard error: a bar on a terminal, and the speed at the end; with text output, also
// without a terminal.
class Progress {
 public:
  Progress(std::size_t total, bool for_people)
      : total_(total),
        for_people_(for_people),
        on_terminal_(isatty(STDERR_FILENO) != 0),
        start_(Clock::now()) {}

  void show(std::size_t done) const {
    if (!on_terminal_) return;
    std::cerr << '\r' << bar(static_cast<double>(done) / static_cast<double>(total_)) << "  "
              << done << " of " << examples::counted(total_, "line") << "\033[K" << std::flush;
  }

  // Clears the line for the program's output.
  void hide() const {
    if (on_terminal_) std::cerr << "\r\033[K" << std::flush;
  }

  void finish() const {
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    if (!on_terminal_ && !for_people_) return;
    const auto speed = static_cast<std::size_t>(static_cast<double>(total_) / seconds + 0.5);
    std::cerr << std::fixed << std::setprecision(2) << examples::counted(total_, "line") << " in "
              << seconds << " s, " << examples::counted(speed, "sentence") << " per second\n";
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::size_t total_;
  bool for_people_, on_terminal_;
  Clock::time_point start_;
};

// Calls f(first, embeddings) for one batch of lines after another. Reports how many lines were
// truncated.
template <class F>
void for_each_run(const Encoder& model, const attn::Execution& execution,
                  std::span<const std::string> lines, bool for_people, F&& f) {
  const Progress progress(lines.size(), for_people);
  const std::string_view prompt = prompt_of(model, {"document", "passage", "corpus"});
  const auto is_cut = [&](const std::string& line) { return model.is_cut(line, prompt); };
  std::size_t num_cut = 0;
  for (std::size_t first = 0; first < lines.size(); first += kLinesAtOnce) {
    progress.show(first);
    const std::size_t count = std::min(kLinesAtOnce, lines.size() - first);
    const std::span<const std::string> part = lines.subspan(first, count);
    num_cut += static_cast<std::size_t>(std::count_if(part.begin(), part.end(), is_cut));
    const attn::Tensor2<float> embeddings =
        model.encode(part, {.prompt = prompt, .normalize = true, .execution = execution});
    progress.hide();
    f(first, embeddings);
  }
  progress.finish();
  if (num_cut > 0) {
    std::cerr << examples::counted(num_cut, "line") << (num_cut == 1 ? " was" : " were")
              << " cut: only the first " << model.options().max_tokens << " tokens count\n";
  }
}

void print_embeddings(const Encoder& model, const attn::Execution& execution,
                      const std::vector<std::string>& lines) {
  std::cout << std::setprecision(9);
  for_each_run(model, execution, lines, false,
               [](std::size_t, const attn::Tensor2<float>& embeddings) {
                 for (attn::index_t row = 0; row < embeddings.extent(0); ++row) {
                   for (attn::index_t i = 0; i < embeddings.extent(1); ++i) {
                     std::cout << (i > 0 ? " " : "") << embeddings(row, i);
                   }
                   std::cout << '\n';
                 }
               });
}

// The `top` best lines, best first; the earlier line comes first if scores are equal.
std::vector<Hit> search(const Encoder& model, const attn::Execution& execution,
                        const std::vector<std::string>& lines, const std::string& query,
                        std::size_t top, bool for_people) {
  const attn::Tensor2<float> wanted = model.encode(
      std::span(&query, 1),
      {.prompt = prompt_of(model, {"query"}), .normalize = true, .execution = execution});
  std::vector<Hit> hits;
  for_each_run(model, execution, lines, for_people,
               [&](std::size_t first, const attn::Tensor2<float>& embeddings) {
                 for (attn::index_t row = 0; row < embeddings.extent(0); ++row) {
                   // Embeddings have norm 1, so that their dot product is their cosine.
                   const float* a = &embeddings(row, 0);
                   const double score =
                       std::inner_product(a, a + embeddings.extent(1), wanted.data(), 0.0);
                   hits.push_back({first + static_cast<std::size_t>(row) + 1, score});
                 }
               });
  top = std::min(top, hits.size());
  std::partial_sort(hits.begin(), hits.begin() + static_cast<std::ptrdiff_t>(top), hits.end(),
                    [](const Hit& a, const Hit& b) {
                      return a.score != b.score ? a.score > b.score : a.line < b.line;
                    });
  hits.resize(top);
  return hits;
}

void print_json(const std::vector<Hit>& hits, const std::vector<std::string>& lines) {
  examples::Json result = examples::Json::array();
  for (const Hit& hit : hits) {
    result.push_back({{"line", hit.line},
                      {"score", examples::seven_decimals(hit.score)},
                      {"text", lines[hit.line - 1]}});
  }
  // `replace`: bytes that are not UTF-8 become U+FFFD, because JSON cannot hold them.
  std::cout << examples::printable(
                   result.dump(-1, ' ', false, examples::Json::error_handler_t::replace))
            << '\n';
}

void print_table(const std::vector<Hit>& hits, const std::vector<std::string>& lines) {
  const auto width =
      static_cast<int>(std::max<std::size_t>(4, std::to_string(lines.size()).size()));
  std::cout << "rank   score              " << std::setw(width) << "line"
            << "  text\n"
            << std::fixed;
  std::size_t rank = 0;
  for (const Hit& hit : hits) {
    std::cout << std::setw(4) << ++rank << std::setw(8) << std::setprecision(3) << hit.score << "  "
              << bar(hit.score) << "  " << std::setw(width) << hit.line << "  "
              << examples::printable(lines[hit.line - 1]) << '\n';
  }
}

void run(const Options& options) {
  if (!options.embed && options.query.empty()) throw UsageError("a query is needed; see --help");
  examples::check_precision(options.precision);
  if (!options.model && !examples::model_is_present()) {
    throw UsageError(examples::missing_model_message());
  }
  const std::vector<std::string> lines = read_input(options.file);
  const attn::Execution execution{.matmul_precision =
                                      examples::matmul_precision(options.precision)};
  Encoder model(
      options.model ? std::filesystem::path(*options.model) : examples::model_dir(),
      {.matmul_precision = execution.matmul_precision, .ignore_keys = options.ignore_keys});
  examples::set_precision(model, options.precision);
  if (options.embed) {
    print_embeddings(model, execution, lines);
  } else {
    const auto hits = search(model, execution, lines, options.query,
                             static_cast<std::size_t>(options.top), !options.json);
    options.json ? print_json(hits, lines) : print_table(hits, lines);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Finds the lines of a text that are nearest in meaning to QUERY.");
  app.footer(
      "Lines end at \\n or \\r\\n. An empty line is a line too. Lines are truncated to 256 tokens, "
      "about 200 words.\nNeeds the weights of all-MiniLM-L6-v2, sh examples/fetch_model.sh, or "
      "--model.");
  app.add_option("--file", options.file, "Text to search; default: standard input");
  app.add_option("--model", options.model,
                 "Folder of sentence-transformers (BERT, RoBERTa); default: all-MiniLM-L6-v2");
  examples::add_ignored_keys(app, options.ignore_keys);
  examples::add_precision(app, options.precision);
  examples::add_number(app, "--top", options.top, 1LL, "Number of lines to print");
  CLI::Option* json = app.add_flag("--json", options.json,
                                   R"(Answer as [{"line": 1, "score": 0.9, "text": ".."}])");
  CLI::Option* embed =
      app.add_flag("--embed", options.embed,
                   "Print the embedding of every line instead: 384 numbers with norm 1");
  CLI::Option* query = app.add_option("QUERY", options.query, "The query");
  embed->excludes(json)->excludes(query);
  return examples::run_program(app, "semantic_search", argc, argv, [&] { run(options); });
}
