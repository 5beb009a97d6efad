// The threads of a call: see threads.hpp.
// SPDX-License-Identifier: Apache-2.0
#include "threads.hpp"

#include <atomic>

namespace attn_python {

namespace {

std::atomic<int> default_threads = 0;  // 0: those of OpenMP

int checked(std::string_view function, int threads) {
  if (threads < 1) {
    throw attn::ValueError(
        attn::message(function, "threads", "be at least 1", std::to_string(threads)));
  }
#if !defined(_OPENMP)
  if (threads > 1) {
    throw attn::ValueError(attn::message(function, "threads",
                                         "be 1, because attn was built without OpenMP",
                                         std::to_string(threads)));
  }
#endif
  return threads;
}

}  // namespace

void set_num_threads(int threads) { default_threads = checked("set_num_threads", threads); }

int num_threads() {
  const int threads = default_threads;
  return threads > 0 ? threads : attn::default_executor().concurrency();
}

#if defined(_OPENMP)
Threads::Threads(std::optional<int> threads)
    : executor_(threads ? checked("attn", *threads) : default_threads.load()) {}
#else
Threads::Threads(std::optional<int> threads) {
  if (threads) checked("attn", *threads);
}
#endif

}  // namespace attn_python
