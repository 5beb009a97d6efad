// Timings: measures every work in turn with the limits that it is compared with.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "report/disturbance.hpp"
#include "report/work.hpp"
#include "support/bandwidth.hpp"
#include "support/peak.hpp"

namespace bench {

/// On a shared machine, many short measurements are each disturbed or not, so the best of them is
/// the machine's, for works and limits. A work that is compared with another work takes too long
/// for this: the two run in turn, and the median of their ratios counts. A work limited by memory
/// is compared with reading in the same call of measure(), since other programs take bandwidth for
/// seconds.
class Timings {
 public:
  /// A work's time and that of its baseline, the mean of the runs before and after it.
  struct Pair {
    double seconds, baseline;
    double ratio() const { return seconds / baseline; }
  };

  /// Runs `work` for about `seconds`, with a round of its limit before each handful of runs
  /// (reading takes as long as the runs). The first measurement also checks the result; with 0
  /// seconds it only checks.
  void measure(const Work& work, bool all, double seconds) {
    const Clock::time_point start = Clock::now();
    const int threads = all ? all_threads() : 1;
    const attn::Execution execution = execution_of(work, all);
    const double first = time_once(work, execution, 1);
    Entry& entry = entries_[{work.name, all}];
    if (std::isinf(entry.seconds)) entry.complaint = work.complaint();
    entry.flops = work.flops;
    entry.isa = work.isa;
    entry.beyond_limit = work.beyond_limit;
    const int repeats = repeats_for(first);
    const bool reads = work.beside_reading || work.bytes >= kMemoryBound;
    Pair best{std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
    double peak = 0;
    const auto for_a_handful = [](double& least, auto time) {
      const Clock::time_point handful = Clock::now();
      do {
        least = std::min(least, time());
      } while (seconds_since(handful) < kHandful);
    };
    do {
      peak = std::max(peak, peaks_.measure(work.isa, threads));
      if (reads) {
        for_a_handful(best.baseline, [&] {
          return static_cast<double>(work.bytes) / bandwidth(work.bytes).measure(threads);
        });
      }
      for_a_handful(best.seconds, [&] { return time_once(work, execution, repeats); });
    } while (seconds_since(start) < seconds);
    entry.seconds = std::min(entry.seconds, best.seconds);
    if (reads) entry.reads.push_back(best);
    if (seconds > 0) entry.limits.push_back(reads ? 1 / best.baseline : peak);
  }

  /// Runs `work` and `baseline`, which was measured before, alternately for about `seconds`.
  void measure_beside(const Work& work, const Work& baseline, bool all, double seconds) {
    const Clock::time_point start = Clock::now();
    const attn::Execution execution = execution_of(work, all);
    const int repeats = repeats_for(time_once(baseline, execution, 1));
    Entry& entry = entries_[{work.name, all}];
    double before = time_once(baseline, execution, repeats), least = before;
    do {
      const double between = time_once(work, execution, repeats);
      const double after = time_once(baseline, execution, repeats);
      entry.pairs.push_back({between, (before + after) / 2});
      entry.seconds = std::min(entry.seconds, between);
      least = std::min(least, before = after);
    } while (seconds_since(start) < seconds);
    entry.limits.push_back(1 / least);
  }

  /// Discards disturbed measurements; the result of the work's check is kept.
  void forget(const std::string& name, bool all) {
    Entry& entry = entries_.at({name, all});
    entry = {.complaint = entry.complaint, .times_measured = entry.times_measured + 1};
  }

  /// Why the work's time and limit are unreliable; empty if they are reliable or not measured.
  std::string disturbance(const std::string& name, bool all) const {
    const auto found = entries_.find({name, all});
    if (found == entries_.end()) return "";
    const Entry& entry = found->second;
    double share = kNone;  // a comparison with another work may take longer than that
    if (entry.pairs.empty() && !entry.reads.empty()) {
      share = 1 / median(entry.reads).ratio();
    } else if (entry.pairs.empty() && !entry.beyond_limit) {
      const double peak = peaks_.best(entry.isa, all ? all_threads() : 1);
      share = entry.flops / entry.seconds / peak;
    }
    return bench::disturbance(entry.limits, share);
  }

  /// How often a work was measured: more than once after a disturbance.
  int times_measured(const std::string& name, bool all) const {
    const auto found = entries_.find({name, all});
    return found == entries_.end() ? 0 : found->second.times_measured;
  }

  /// The pair whose ratio is the median. Requires measure_beside().
  Pair beside(const std::string& name, bool all) const {
    return median(entries_.at({name, all}).pairs);
  }

  /// The pair of a work limited by memory and of reading as many bytes, by the median ratio.
  /// Requires measure().
  Pair beside_reading(const std::string& name, bool all) const {
    return median(entries_.at({name, all}).reads);
  }

  /// Seconds of the work; infinite if it was not measured.
  double seconds(const std::string& name, bool all) const {
    const auto found = entries_.find({name, all});
    return found == entries_.end() ? std::numeric_limits<double>::infinity()
                                   : found->second.seconds;
  }
  std::string complaint(const std::string& name, bool all) const {
    const auto found = entries_.find({name, all});
    return found == entries_.end() ? "" : found->second.complaint;
  }

  const Peaks& peaks() const { return peaks_; }

  /// B/s on a buffer of that size; NaN if it was not measured.
  double best_bandwidth(index_t bytes, int threads) const {
    const auto found = bandwidths_.find(bytes);
    return found == bandwidths_.end() ? kNone : found->second->best(threads);
  }

  /// Sizes of the buffers for which there is a bandwidth.
  std::vector<index_t> buffer_sizes() const {
    std::vector<index_t> sizes;
    for (const auto& [bytes, bandwidth] : bandwidths_) sizes.push_back(bytes);
    return sizes;
  }

 private:
  static constexpr double kHandful = 0.06;
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  /// Attention over fewer bytes of keys and values is not limited by memory.
  static constexpr index_t kMemoryBound = 32 << 20;

  struct Entry {
    double seconds = std::numeric_limits<double>::infinity();
    std::string complaint = {};
    std::vector<Pair> pairs = {}, reads = {};
    std::vector<double> limits = {};  ///< speed in each pass: of the peak, reading, or the baseline
    double flops = 0;
    attn::Isa isa = attn::Isa::scalar;
    bool beyond_limit = false;
    int times_measured = 1;
  };

  static Pair median(std::vector<Pair> pairs) {
    const auto middle = pairs.begin() + static_cast<std::ptrdiff_t>(pairs.size() / 2);
    std::ranges::nth_element(pairs, middle, {}, &Pair::ratio);
    return *middle;
  }

  static attn::Execution execution_of(const Work& work, bool all) {
    return {.executor = &executor_of(all), .isa = work.isa};
  }

  /// Reading the clock takes 30 ns: a sample is at least 100 microseconds long.
  static int repeats_for(double seconds) {
    return static_cast<int>(std::max(1.0, std::ceil(1e-4 / std::max(seconds, 1e-9))));
  }

  static double time_once(const Work& work, const attn::Execution& execution, int repeats) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < repeats; ++i) work.run(execution);
    return seconds_since(start) / repeats;
  }

  ReadBandwidth& bandwidth(index_t bytes) {
    std::unique_ptr<ReadBandwidth>& at = bandwidths_[bytes];
    if (!at) at = std::make_unique<ReadBandwidth>(bytes);
    return *at;
  }

  std::map<std::pair<std::string, bool>, Entry> entries_;
  Peaks peaks_;
  std::map<index_t, std::unique_ptr<ReadBandwidth>> bandwidths_;
};

}  // namespace bench
