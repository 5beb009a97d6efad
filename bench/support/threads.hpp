// Runs threads that start at the same time, and measures their total time.
#pragma once

#include <algorithm>
#include <barrier>
#include <chrono>
#include <thread>
#include <vector>

namespace bench {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Runs work(0) .. work(threads - 1), each on its own thread, and returns the seconds from the
/// first start to the last end. The caller is one of the threads.
template <class Work>
double run_together(int threads, const Work& work) {
  if (threads <= 1) {
    const Clock::time_point start = Clock::now();
    work(0);
    return seconds_since(start);
  }
  std::barrier start_line(threads);
  std::vector<Clock::time_point> begins(static_cast<std::size_t>(threads));
  std::vector<Clock::time_point> ends(begins.size());
  const auto body = [&](int id) {
    start_line.arrive_and_wait();
    begins[static_cast<std::size_t>(id)] = Clock::now();
    work(id);
    ends[static_cast<std::size_t>(id)] = Clock::now();
  };
  std::vector<std::thread> others;
  for (int id = 1; id < threads; ++id) others.emplace_back(body, id);
  body(0);
  for (std::thread& other : others) other.join();
  const auto first = *std::min_element(begins.begin(), begins.end());
  const auto last = *std::max_element(ends.begin(), ends.end());
  return std::chrono::duration<double>(last - first).count();
}

}  // namespace bench
