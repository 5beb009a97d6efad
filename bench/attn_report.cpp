// attn_report: measures attn on the machine at hand, beside what the machine can do.
#include <array>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "attn/attn.hpp"
#include "attn/io/atomic_file.hpp"

#include "pages/page.hpp"
#include "report/accuracy.hpp"
#include "report/child.hpp"
#include "report/cost.hpp"
#include "report/element_work.hpp"
#include "report/gather_work.hpp"
#include "report/layer_work.hpp"
#include "report/low_precision_work.hpp"
#include "report/memory.hpp"
#include "report/row.hpp"
#include "report/timing.hpp"
#include "report/train.hpp"
#include "report_page.hpp"
#include "support/machine.hpp"

namespace {

using bench::Child;
using bench::Row;
using bench::Timings;

constexpr double kGiga = 1e9, kMilli = 1e-3, kMicro = 1e-6;
constexpr double kMebibyte = 1 << 20;

struct Arguments {
  std::string json, html, from, only, memory_child;
  std::string golden = ATTN_BENCH_GOLDEN_DIR;
  double seconds = 75;
  bool shapes = false;
};

/// One line that is overwritten; on a terminal only.
void progress(const std::string& text) {
  if (isatty(STDERR_FILENO) != 0) {
    std::fprintf(stderr, "\r\033[K%s", text.c_str());
  }
}

bool wanted(const Arguments& arguments, const std::string& name) {
  return name.find(arguments.only) != std::string::npos;
}

/// Measures in several passes over all rows, not one long measurement of each: a disturbance of
/// seconds then spoils one sample of many rows instead of all samples of one.
class Report {
 public:
  explicit Report(const Arguments& arguments)
      : arguments_(arguments), self_(bench::own_path()), comparisons_(bench::all_comparisons()) {
    std::ranges::copy(bench::all_costs(), std::back_inserter(comparisons_));
    std::ranges::copy(bench::training_comparisons(), std::back_inserter(comparisons_));
    std::ranges::copy(bench::gather_comparisons(), std::back_inserter(comparisons_));
  }

  void run() {
    const bench::Clock::time_point start = bench::Clock::now();
    for (const auto& [name, bytes] :
         {std::pair{"memory", &memory_}, {"memory_train", &memory_train_}}) {
      if (!wanted(arguments_, std::string(name) + "@all")) continue;
      progress(std::string(name) + ": attention over 65,536 tokens in two fresh processes");
      // Runs both at once, since their times are not reported.
      Child one({self_, "--memory-child", name}),
          all({self_, "--memory-child", std::string(name) + "@all"});
      *bytes = {one.number().value_or(bench::kAbsent), all.number().value_or(bench::kAbsent)};
    }
    if (wanted(arguments_, "accuracy")) measure_accuracy();
    std::vector<bench::Group> groups;
    std::size_t works = 0;
    std::vector<bench::Group> all_groups = bench::all_groups();
    std::ranges::move(bench::element_groups(), std::back_inserter(all_groups));
    std::ranges::move(bench::low_precision_groups(), std::back_inserter(all_groups));
    std::ranges::move(bench::layer_groups(), std::back_inserter(all_groups));
    std::ranges::move(bench::gather_groups(), std::back_inserter(all_groups));
    std::ranges::move(bench::cost_groups(), std::back_inserter(all_groups));
    std::ranges::move(bench::training_groups(), std::back_inserter(all_groups));
    for (bench::Group& group : all_groups) {
      const auto relevant = std::count_if(group.names.begin(), group.names.end(),
                                          [&](const auto& name) { return needed(name); });
      if (relevant == 0) continue;
      works += static_cast<std::size_t>(relevant);
      groups.push_back(std::move(group));
    }
    if (works == 0) return;
    constexpr int kPasses = 5;
    const double left =
        std::max(arguments_.seconds - bench::seconds_since(start), 0.3 * arguments_.seconds);
    // A tenth of the time is spent on making and checking inputs.
    const double each = 0.9 * left / (kPasses * 2.0 * static_cast<double>(works));
    for (int pass = 1; pass <= kPasses; ++pass) {
      const std::string step =
          "pass " + std::to_string(pass) + " of " + std::to_string(kPasses) + ": ";
      for (const bench::Group& group : groups) {
        measure(group, step, each, pass == 1, [&](const auto& work, bool) { return needed(work); });
      }
    }
    // The disturbance may have ended; measures once more for as long, but no longer.
    for (int time = 2; time <= 3 && bench::seconds_since(start) < 1.5 * arguments_.seconds;
         ++time) {
      measure_disturbed(groups, time, each);
    }
    progress("");
  }

  std::vector<Row> rows() const {
    std::vector<Row> rows;
    const auto add = [&](Row row) {
      if (!wanted(arguments_, row.name)) return;
      if (!row.target) row.target = bench::target_of(row.name);
      rows.push_back(std::move(row));
    };
    for (const char* name :
         {"gemm_1024", "gemm_bert", "gemm_avx2", "sdpa_d64", "sdpa_d128", "sdpa_d80", "sdpa_512",
          "sdpa_avx2", "sdpa_4096", "sdpa_d64_bf16", "sdpa_d128_bf16", "sdpa_d64_high",
          "sdpa_d128_high", "sdpa_d128_int8"}) {
      for (bool all : {false, true}) add(flops_row(name, all));
    }
    for (bool all : {false, true}) {
      add(comparison_row("sdpa_causal", all, "time without the mask"));
    }
    for (bool all : {false, true}) add(flops_row("sdpa_short", all));
    for (bool all : {false, true}) {
      add(reading_row("sdpa_decode", "sdpa_queries_1", "32 key/value heads", all));
    }
    for (const char* name : {"sdpa_decode_bf16", "sdpa_decode_int8"}) {
      for (bool all : {false, true}) add(comparison_row(name, all, "time of a float32 cache"));
    }
    for (const char* name : {"fork_decode", "fork_decode_gqa3", "fork_decode_gqa4"}) {
      for (bool all : {false, true}) add(comparison_row(name, all, "time of 8 caches"));
    }
    for (const bench::Comparison& row : bench::gather_comparisons()) {
      for (bool all : {false, true}) {
        add(comparison_row(row.name, all, "time of keys that lie together"));
      }
    }
    for (bool all : {false, true}) {
      add(reading_row("sdpa_decode_gqa", "sdpa_decode_gqa", "8 key/value heads", all));
    }
    for (bool all : {false, true}) add(grouped_bf16_row(all));
    for (bool all : {false, true}) {
      for (bench::index_t n : bench::kQueryCounts) add(queries_row(n, all));
      add(eight_queries_row(all));
    }
    for (const bench::LinearShape& shape : bench::kLinearShapes) {
      const std::string name(shape.name);
      for (bool all : {false, true}) {
        add(bench::is_read_once(shape) ? reading_row(name, name, "weights as they are", all)
            : bench::is_cached(shape)  ? comparison_row(name, all, "time of packed weights")
                                       : flops_row(name, all));
      }
    }
    for (const char* name : {"batched_16", "batched_128"}) {
      for (bool all : {false, true}) add(flops_row(name, all));
    }
    for (const char* name : {"gemm_1024_high", "gemm_bert_high", "gemm_bf16", "gemm_bf16_bert",
                             "gemm_int8", "gemm_int8_bert", "gemm_q8", "gemm_q4"}) {
      for (bool all : {false, true}) add(flops_row(name, all));
    }
    for (const char* name : {"gemv_bf16", "gemv_int8", "gemv_q8", "gemv_q4"}) {
      for (bool all : {false, true}) add(reading_row(name, name, "weights of a product", all));
    }
    for (const char* name : {"gelu", "silu", "layer_norm"}) {
      for (bool all : {false, true}) add(reading_row(name, name, "read and written", all));
    }
    for (bool all : {false, true}) add(comparison_row("gelu_cached", all, "time of relu"));
    add(softmax_row());
    for (const bench::Comparison& cost : bench::all_costs()) {
      add(comparison_row(cost.name, false, "time of " + cost.baseline));
    }
    for (const char* name : {"mha_bert", "encoder_bert"}) {
      for (bool all : {false, true}) add(flops_row(name, all));
    }
    for (const char* name : {"encoder_bert_high", "encoder_bert_bf16", "encoder_bert_int8"}) {
      for (bool all : {false, true}) add(comparison_row(name, all, "time of encoder_bert"));
    }
    for (bool all : {false, true}) {
      add(reading_row("moe_decode", "moe_decode", "8 experts of 64", all));
    }
    for (bool all : {false, true}) add(flops_row("moe_prefill", all));
    for (bool all : {false, true}) add(latent_row(all));
    for (bool all : {false, true}) add(comparison_row("tree_decode", all, "time of a chain"));
    for (bool all : {false, true}) add(tutorial_row(all));
    for (const char* name : {"sdpa_train_d64", "sdpa_train_d128", "sdpa_train_short"}) {
      for (bool all : {false, true}) add(flops_row(name, all));
    }
    for (const bench::Comparison& row : bench::training_comparisons()) {
      for (bool all : {false, true}) {
        if (all && row.name.starts_with("cost")) continue;
        add(comparison_row(row.name, all, "time of " + row.baseline));
      }
    }
    for (const char* name : {"encoder_train", "chargpt_train", "gpt2_train"}) {
      for (bool all : {false, true}) add(flops_row(name, all));
    }
    add(memory_row("memory", memory_[0], bench::kMemoryInputs));
    add(memory_row("memory@all", memory_[1], bench::kMemoryInputs));
    add(memory_row("memory_train", memory_train_[0], bench::kMemoryTrainInputs));
    add(memory_row("memory_train@all", memory_train_[1], bench::kMemoryTrainInputs));
    add(accuracy_row());
    return rows;
  }

  nlohmann::ordered_json machine() const {
    nlohmann::ordered_json caches = nlohmann::ordered_json::array();
    for (const bench::Cache& cache : bench::caches()) {
      caches.push_back({{"level", cache.level}, {"bytes", cache.bytes}});
    }
    nlohmann::ordered_json peaks = nlohmann::ordered_json::object();
    for (attn::Isa isa : attn::kAllIsas) {
      if (timings_.peaks().best(isa, 1) == 0) continue;
      peaks[std::string(attn::name(isa))] = {
          {"one", timings_.peaks().best(isa, 1) / kGiga},
          {"all", timings_.peaks().best(isa, bench::all_threads()) / kGiga}};
    }
    nlohmann::ordered_json bandwidths = nlohmann::ordered_json::array();
    for (const bench::index_t bytes : timings_.buffer_sizes()) {
      const auto best = [&](int threads) {
        return timings_.best_bandwidth(bytes, threads) / kGiga;
      };
      bandwidths.push_back(
          {{"bytes", bytes}, {"one", best(1)}, {"all", best(bench::all_threads())}});
    }
    return {{"name", bench::machine_name()},
            {"isa", attn::name(attn::active_isa())},
            {"backend", backend()},
            {"caches", caches},
            {"threads", bench::all_threads()},
            {"counter_ghz", bench::counter_ghz()},
            {"peak_gflops", peaks},
            {"read_gbytes", bandwidths},
            {"compiler", __VERSION__},
            {"attn_version", ATTN_VERSION}};
  }

  /// The kernels of rows that name no instruction set, such as "avx2 of F32, products of 6 x 16".
  static std::string backend() {
    const attn::Tensor4<float> x({1, 1, 64, 64});
    const attn::AttentionExplanation plan = attn::explain(x, x, x);
    return std::string(attn::name(plan.isa)) + " of " + std::string(attn::name(plan.element)) +
           ", products of " + std::to_string(plan.product_queries) + " x " +
           std::to_string(plan.product_keys);
  }

  void print_machine() const {
    std::printf("%s, %s, %s, %d thread%s, counter %.2f GHz\n", bench::machine_name().c_str(),
                backend().c_str(), bench::caches_text().c_str(), bench::all_threads(),
                bench::all_threads() == 1 ? "" : "s", bench::counter_ghz());
  }

 private:
  /// Rows that use the numbers of a work with another name.
  bool needed(const std::string& work) const {
    const auto& only = arguments_.only;
    if (wanted(arguments_, work) || wanted(arguments_, work + "@all")) return true;
    for (const bench::Comparison& comparison : comparisons_) {
      if (work == comparison.baseline && wanted(arguments_, comparison.name + "@all")) return true;
    }
    if (work == "sdpa_queries_1") {
      return std::string("sdpa_decode@all").find(only) != std::string::npos ||
             only.find("queries") != std::string::npos;
    }
    return work.starts_with("sdpa_queries") && only.find("queries") != std::string::npos;
  }

  /// Discards disturbed measurements and repeats them.
  void measure_disturbed(const std::vector<bench::Group>& groups, int time, double seconds) {
    constexpr int kPasses = 3;
    std::set<std::pair<std::string, bool>> disturbed;
    const auto is_disturbed = [&](const std::string& work, bool all) {
      return disturbed.contains({work, all});
    };
    std::vector<bench::Group> again;
    for (const bench::Group& group : groups) {
      const std::size_t before = disturbed.size();
      for (const std::string& work : group.names) {
        for (bool all : {false, true}) {
          if (timings_.disturbance(work, all).empty()) continue;
          timings_.forget(work, all);
          disturbed.emplace(work, all);
        }
      }
      if (disturbed.size() > before) again.push_back(group);
    }
    for (int pass = 1; pass <= kPasses; ++pass) {
      const std::string step = "disturbed, measured for time " + std::to_string(time) + ", pass " +
                               std::to_string(pass) + ": ";
      for (const bench::Group& group : again) measure(group, step, seconds, false, is_disturbed);
    }
  }

  /// The works of a group that `wants(name, all)`. The first call checks their results.
  template <class Wants>
  void measure(const bench::Group& group, const std::string& step, double seconds, bool is_first,
               const Wants& wants) {
    const std::vector<bench::Work> works = group.make();
    for (const bench::Work& work : works) {
      for (bool all : {false, true}) {
        if ((all && work.one_thread) || !wants(work.name, all)) continue;
        progress(step + label(work.name, all));
        const bench::Comparison* comparison = comparison_of(work.name);
        // If pairs follow, a few runs once to check the result.
        if (comparison == nullptr || is_first) {
          timings_.measure(work, all, comparison != nullptr ? 0 : seconds);
        }
        if (comparison != nullptr) {
          const auto baseline = std::ranges::find(works, comparison->baseline, &bench::Work::name);
          // A work on one thread only reports one time in both columns.
          timings_.measure_beside(work, *baseline, all, work.one_thread ? 2 * seconds : seconds);
        }
      }
      if (work.name == "softmax" && wants(work.name, false)) {
        Child eigen({(std::filesystem::path(self_).parent_path() / "eigen_softmax").string(),
                     std::to_string(bench::softmax_rows()), std::to_string(bench::kSoftmaxColumns),
                     std::to_string(seconds)});
        eigen_row_ = std::fmin(eigen_row_, eigen.number().value_or(bench::kAbsent));
      }
      counts_[work.name] = {work.isa, work.flops, work.bytes, work.traffic};
    }
  }

  /// Null if the work has no baseline.
  const bench::Comparison* comparison_of(const std::string& work) const {
    const auto found = std::ranges::find(comparisons_, work, &bench::Comparison::name);
    return found == comparisons_.end() ? nullptr : &*found;
  }

  void measure_accuracy() {
    progress("accuracy: golden cases and large logits");
    try {
      accuracy_ = bench::measure_accuracy(arguments_.golden);
    } catch (const std::exception& error) {
      accuracy_error_ = error.what();
    }
  }

  struct Count {
    attn::Isa isa;
    double flops;
    bench::index_t bytes, traffic;
  };

  static std::string label(const std::string& name, bool all) { return name + (all ? "@all" : ""); }
  static int threads(bool all) { return all ? bench::all_threads() : 1; }

  /// Why there is no number, or why it is unreliable.
  bool fill_note(Row& row, const std::string& work, bool all) const {
    if (std::isinf(timings_.seconds(work, all))) {
      row.note = "absent: the machine lacks the instruction set, or the row was not asked for";
      return false;
    }
    row.disturbed = timings_.disturbance(work, all);
    row.times_measured = timings_.times_measured(work, all);
    row.note = timings_.complaint(work, all);
    if (!row.note.empty()) return false;
    return true;
  }

  /// The row's position under the roofline.
  void place(Row& row, const std::string& work, bool all) const {
    const Count& count = counts_.at(work);
    row.gflops = count.flops / timings_.seconds(work, all) / kGiga;
    row.intensity = count.flops / static_cast<double>(count.traffic);
  }

  Row flops_row(const std::string& name, bool all) const {
    Row row{.name = label(name, all), .unit = "GFLOP/s", .limit_name = "FMA peak"};
    if (!fill_note(row, name, all)) return row;
    const Count& count = counts_.at(name);
    place(row, name, all);
    row.value = row.gflops;
    row.limit = timings_.peaks().best(count.isa, threads(all)) / kGiga;
    row.limit_name = std::string(attn::name(count.isa)) + " FMA peak";
    return row;
  }

  /// A work's time relative to its baseline.
  Row comparison_row(const std::string& name, bool all, const std::string& limit_name) const {
    Row row{.name = label(name, all), .unit = "ms", .limit_name = limit_name};
    if (!fill_note(row, name, all)) return row;
    place(row, name, all);
    const Timings::Pair pair = timings_.beside(name, all);
    row.value = pair.seconds / kMilli;
    row.limit = comparison_of(name)->share * pair.baseline / kMilli;
    return row;
  }

  Row reading_row(const std::string& name, const std::string& work, const std::string& note,
                  bool all) const {
    Row row{.name = label(name, all), .unit = "GB/s", .limit_name = "read bandwidth"};
    if (!fill_note(row, work, all)) return row;
    place(row, work, all);
    const Count& count = counts_.at(work);
    const Timings::Pair pair = timings_.beside_reading(work, all);
    row.value = static_cast<double>(count.bytes) / pair.seconds / kGiga;
    row.limit = static_cast<double>(count.bytes) / pair.baseline / kGiga;
    row.limit_name = "read bandwidth on " + bench::bytes_text(count.bytes);
    row.note = note;
    return row;
  }

  /// Four queries per key: limited by reading or by computing, whichever is slower.
  Row grouped_bf16_row(bool all) const {
    const std::string work = "sdpa_decode_gqa_bf16";
    Row row = reading_row(work, work, "8 key/value heads", all);
    if (std::isnan(row.value)) return row;
    const Count& count = counts_.at(work);
    const double peak = timings_.peaks().best(count.isa, threads(all));
    if (count.flops / peak < timings_.beside_reading(work, all).baseline) return row;
    row.unit = "GFLOP/s";
    row.value = row.gflops;
    row.limit = peak / kGiga;
    row.limit_name = std::string(attn::name(count.isa)) + " FMA peak";
    return row;
  }

  /// Sixteen queries per latent: limited by reading or by computing, whichever is slower.
  Row latent_row(bool all) const {
    const std::string work = "mla_decode";
    Row row{.name = label(work, all), .unit = "ms", .limit_name = "reading the latents once"};
    if (!fill_note(row, work, all)) return row;
    place(row, work, all);
    const Count& count = counts_.at(work);
    const Timings::Pair pair = timings_.beside_reading(work, all);
    const double computing = count.flops / timings_.peaks().best(count.isa, threads(all));
    row.value = pair.seconds / kMilli;
    row.limit = std::max(pair.baseline, computing) / kMilli;
    if (computing > pair.baseline) row.limit_name = "its FLOPs at the FMA peak";
    row.note = bench::number_text(pair.ratio()) + " times reading, " +
               bench::number_text(computing / pair.baseline) + " at the FMA peak";
    return row;
  }

  Row queries_row(bench::index_t n, bool all) const {
    const std::string work = "sdpa_queries_" + std::to_string(n);
    Row row{.name = label(work, all), .unit = "ms", .limit_name = "line from 1 to 64 queries"};
    if (!fill_note(row, work, all)) return row;
    const double first = timings_.seconds("sdpa_queries_1", all);
    const double last = timings_.seconds("sdpa_queries_64", all);
    place(row, work, all);
    row.value = timings_.seconds(work, all) / kMilli;
    row.limit = (first + (last - first) * static_cast<double>(n - 1) / 63) / kMilli;
    row.target = {.at = 1, .at_most = true};
    return row;
  }

  Row eight_queries_row(bool all) const {
    Row row = comparison_row("sdpa_queries_8", all, "time of 1 query");
    row.name = label("sdpa_queries", all);
    if (std::isnan(row.value)) return row;
    const Count& count = counts_.at("sdpa_queries_8");
    const double computing = count.flops / timings_.peaks().best(count.isa, threads(all));
    const double reading =
        static_cast<double>(count.bytes) / timings_.best_bandwidth(count.bytes, threads(all));
    const bool memory_bound = computing < reading;
    row.note = memory_bound ? "8 queries are memory-bound" : "8 queries are compute-bound";
    if (memory_bound) row.target = {.at = 1.6, .at_most = true};
    return row;
  }

  Row softmax_row() const {
    Row row{.name = "softmax",
            .unit = "ns/row",
            .limit = eigen_row_,
            .limit_name = "Eigen, -march=native"};
    if (!fill_note(row, "softmax", false)) return row;
    row.value =
        timings_.seconds("softmax", false) * kGiga / static_cast<double>(bench::softmax_rows());
    if (std::isnan(eigen_row_)) {
      row.note = "eigen_softmax was not found beside this program";
    } else {
      row.note = bench::number_text(eigen_row_ / row.value) + " times as fast";
    }
    return row;
  }

  Row tutorial_row(bool all) const {
    const std::string work = "mha_tutorial";
    Row row{.name = label(work, all), .unit = "us", .limit_name = "its FLOPs at the FMA peak"};
    if (!fill_note(row, work, all)) return row;
    const Count& count = counts_.at(work);
    place(row, work, all);
    row.value = timings_.seconds(work, all) / kMicro;
    row.limit = count.flops / timings_.peaks().best(count.isa, threads(all)) / kMicro;
    row.note = bench::number_text(row.value * 1000 * bench::counter_ghz()) + " counter cycles";
    return row;
  }

  static Row memory_row(const std::string& name, double bytes, double given) {
    Row row{.name = name,
            .value = bytes / kMebibyte,
            .unit = "MiB",
            .limit = given / kMebibyte,
            .limit_name = "inputs and outputs"};
    if (std::isnan(bytes)) {
      row.note = "absent: the child process failed";
    } else {
      row.note = "beyond them, the program included";
    }
    return row;
  }

  Row accuracy_row() const {
    Row row{.name = "accuracy", .unit = "error", .limit_name = "naive float formula"};
    row.note = accuracy_error_;
    if (!accuracy_error_.empty()) return row;
    row.value = accuracy_.worse().ours;
    row.limit = accuracy_.worse().naive;
    row.limit_name += " on " + accuracy_.worse().where;
    row.note = std::to_string(accuracy_.cases) +
               " golden cases: " + bench::number_text(accuracy_.golden.ratio()) + ", " +
               std::to_string(accuracy_.skipped) +
               " skipped; logits of 50: " + bench::number_text(accuracy_.large_logits.ratio());
    return row;
  }

  Arguments arguments_;
  std::string self_;
  std::vector<bench::Comparison> comparisons_;
  Timings timings_;
  std::map<std::string, Count> counts_;
  double eigen_row_ = bench::kAbsent;
  /// On one thread and on all threads.
  std::array<double, 2> memory_{bench::kAbsent, bench::kAbsent},
      memory_train_{bench::kAbsent, bench::kAbsent};
  bench::Accuracy accuracy_;
  std::string accuracy_error_;
};

using Json = nlohmann::ordered_json;

Json measure(const Arguments& arguments) {
  Report measured(arguments);
  measured.print_machine();
  measured.run();
  const std::vector<Row> rows = measured.rows();
  if (rows.empty()) throw std::runtime_error("no row's name contains " + arguments.only);
  bench::print_table(rows);
  Json all = Json::array();
  for (const Row& row : rows) all.push_back(bench::to_json(row));
  return {{"machine", measured.machine()}, {"rows", all}};
}

/// The table of shapes, under the names that bench/peers/common.py uses.
Json shapes() {
  Json all = Json::object();
  const auto add = [&](std::string_view prefix, std::string_view name, const char* operation,
                       const Json& shape) {
    Json& row = all[std::string(prefix) + std::string(name)] = {{"operation", operation}};
    row.update(shape);
  };
  const auto add_attention = [&](const bench::AttentionShape& s, bool is_bf16) {
    Json shape = {{"batch", s.batch},  {"heads", s.num_heads}, {"kv_heads", s.num_kv_heads},
                  {"q_len", s.q_len},  {"kv_len", s.kv_len},   {"dim", s.head_dim},
                  {"causal", s.causal}};
    if (is_bf16) shape["element"] = "bfloat16";
    add("sdpa_", std::string(s.name) + (is_bf16 ? "_bf16" : ""), "Attention", shape);
  };
  for (const bench::AttentionShape& s : bench::kAttentionShapes) add_attention(s, false);
  for (const char* name : {"d64", "d128", "decode", "decode_gqa"}) {
    add_attention(bench::shape_of(bench::kAttentionShapes, name), true);
  }
  for (const bench::SmallGemmShape& s : bench::kSmallGemmShapes) {
    // The other libraries have no formats with a scale per block.
    if (s.element != "bfloat16" && s.element != "int8") continue;
    add("", s.name, "Gemm",
        {{"m", s.m}, {"n", s.n}, {"k", s.k}, {"packed", true}, {"element", s.element}});
  }
  for (const bench::GemmShape& s : bench::kGemmShapes) {
    Json shape = {{"m", s.m}, {"n", s.n}, {"k", s.k}};
    if (s.batch > 1) {
      shape["batch"] = s.batch;
    } else {
      shape["packed"] = s.packed;
    }
    add("", s.name, s.batch > 1 ? "BatchedGemm" : "Gemm", shape);
  }
  // The other libraries may choose the layout of the weights.
  for (const bench::LinearShape& s : bench::kLinearShapes) {
    add("", s.name, "Gemm",
        {{"m", s.rows}, {"n", s.out_features}, {"k", s.in_features}, {"packed", true}});
  }
  for (const bench::RowsShape& s : bench::kRowsShapes) {
    add("", s.name, "Elements", {{"kind", s.function}, {"rows", s.rows}, {"columns", s.columns}});
  }
  add("", "softmax", "Softmax",
      {{"rows", bench::softmax_rows()}, {"columns", bench::kSoftmaxColumns}});
  for (const bench::ModuleShape& s : bench::kModuleShapes) {
    Json shape = {{"batch", s.batch}, {"seq", s.seq}, {"width", s.width}, {"heads", s.heads}};
    if (s.hidden > 0) shape["hidden"] = s.hidden;
    add("", s.name, s.hidden > 0 ? "EncoderLayer" : "MultiHead", shape);
    if (s.hidden == 0) continue;
    for (const auto& [suffix, element] : {std::pair{"_bf16", "bfloat16"}, {"_int8", "int8"}}) {
      shape["element"] = element;
      add("", std::string(s.name) + suffix, "EncoderLayer", shape);
    }
  }
  for (const bench::ExpertsShape& s : bench::kExpertsShapes) {
    add("", s.name, "Experts",
        {{"tokens", s.tokens},
         {"width", s.width},
         {"hidden", s.hidden},
         {"experts", s.experts},
         {"chosen", s.chosen}});
  }
  for (const bench::AttentionShape& s : bench::kAttentionTrainShapes) {
    add("", s.name, "AttentionTrain",
        {{"batch", s.batch},
         {"heads", s.num_heads},
         {"kv_heads", s.num_kv_heads},
         {"q_len", s.q_len},
         {"kv_len", s.kv_len},
         {"dim", s.head_dim},
         {"causal", s.causal}});
  }
  const bench::ModuleShape& e = bench::kEncoderTrain;
  add("", e.name, "EncoderTrain",
      {{"batch", e.batch},
       {"seq", e.seq},
       {"width", e.width},
       {"heads", e.heads},
       {"hidden", e.hidden}});
  for (const bench::GptShape& s : bench::kGptTrainShapes) {
    add("", s.name, "GptTrain",
        {{"batch", s.batch},
         {"seq", s.seq},
         {"vocab", s.vocab},
         {"layers", s.layers},
         {"width", s.width},
         {"heads", s.heads}});
  }
  return all;
}

/// The results that an earlier run wrote by --json.
Json saved(const std::string& path) {
  std::ifstream file(path);
  if (!file || std::filesystem::is_directory(path)) throw std::runtime_error("cannot read " + path);
  Json report = Json::parse(file, nullptr, false);
  if (!report.contains("machine") || !report.contains("rows")) {
    throw std::runtime_error(path + " is no report of --json");
  }
  return report;
}

void report(const Arguments& arguments) {
  // Opened before the measurements, so that a wrong path fails at once.
  std::optional<attn::AtomicFile> json, html;
  if (!arguments.json.empty()) json.emplace(arguments.json);
  if (!arguments.html.empty()) html.emplace(arguments.html);
  const Json all = arguments.from.empty() ? measure(arguments) : saved(arguments.from);
  const auto write = [](std::optional<attn::AtomicFile>& file, const std::string& text) {
    file->write(std::as_bytes(std::span(text)));
    file->commit();
  };
  if (json) write(json, all.dump(2) + '\n');
  if (html) write(html, pages::with_data(pages::report_page, all));
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "Measures attn on this machine beside the machine's own peak and bandwidth. NAME runs on one "
      "thread, "
      "NAME@all on all of them. ATTN_ISA selects a lower instruction set.");
  CLI::Option* json =
      app.add_option("--json", arguments.json, "Write the rows to FILE as JSON")->type_name("FILE");
  CLI::Option* html =
      app.add_option("--html", arguments.html, "Draw the roofline and the ratios as a page")
          ->type_name("FILE");
  app.add_option("--from", arguments.from, "Draw what an earlier --json wrote; measure nothing")
      ->type_name("FILE")
      ->needs(html)
      ->excludes(json);
  app.add_option("--only", arguments.only, "Only rows whose name contains TEXT")->type_name("TEXT");
  app.add_option("--seconds", arguments.seconds, "About how long to measure")
      ->capture_default_str()
      ->check(CLI::Range(1.0, 3600.0));
  app.add_option("--golden", arguments.golden, "Folder of the golden cases")->type_name("DIR");
  app.add_flag("--shapes", arguments.shapes, "Print the rows' shapes as JSON; measure nothing");
  app.add_option("--memory-child", arguments.memory_child, "A row about memory")->group("");
  CLI11_PARSE(app, argc, argv);
  try {
    if (!arguments.memory_child.empty()) {
      const std::string& row = arguments.memory_child;
      const bool all = row.ends_with("@all");
      std::printf("%.0f\n", row.starts_with("memory_train") ? bench::measure_training_memory(all)
                                                            : bench::measure_memory(all));
      return 0;
    }
    if (arguments.shapes) {
      std::printf("%s\n", shapes().dump(2).c_str());
      return 0;
    }
    report(arguments);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "attn_report: %s\n", error.what());
    return 1;
  }
}
