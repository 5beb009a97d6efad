// Costs of single calls for docs/performance.md: first calls on OpenMP, functors of std::tanh.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

#include <attn/attention.hpp>
#include <attn/core.hpp>

namespace {

using Clock = std::chrono::steady_clock;

template <class F>
double milliseconds(const F& call) {
  const Clock::time_point start = Clock::now();
  call();
  return 1e3 * std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + std::ssize(x) / 2, x.end());
  return x[x.size() / 2];
}

attn::Tensor4<float> numbers(const attn::Shape<4>& shape) {
  attn::Tensor4<float> x(shape);
  attn::fill_normal(x, {.seed = 1});
  return x;
}

}  // namespace

int main() {
  {
    const attn::Tensor4<float> q = numbers({1, 8, 64, 64});
    attn::Tensor4<float> out(q.shape());
    std::vector<double> times;
    for (int n = 0; n < 400; ++n) {
      times.push_back(milliseconds([&] { attn::scaled_dot_product_attention(q, q, q, out, {}); }));
    }
    const double settled = median({times.begin() + 200, times.end()});
    const double worst = *std::max_element(times.begin() + 1, times.begin() + 50);
    std::printf(
        "8 heads of 64 x 64: first call %.2f ms, worst of the next 49 %.2f ms, later %.3f ms\n",
        times[0], worst, settled);
  }
  const attn::Tensor4<float> q = numbers({1, 8, 1024, 64});
  attn::Tensor4<float> out(q.shape());
  const attn::SerialExecutor one_thread;
  const auto time = [&](attn::AttentionOptions<float> options, const auto&... functors) {
    options.execution.executor = &one_thread;
    std::vector<double> times;
    for (int n = 0; n < 9; ++n) {
      times.push_back(milliseconds(
          [&] { attn::scaled_dot_product_attention(q, q, q, out, options, functors...); }));
    }
    return median(times);
  };
  const double plain = time({});
  std::printf("8 heads of 1024 x 1024, one thread: %.1f ms\n", plain);
  std::printf("  score_mod, score + 0.1f * float(i - j)      %.2f times that\n",
              time({}, attn::score_mod([](float score, int, int, int i, int j) {
                     return score + 0.1f * static_cast<float>(i - j);
                   })) /
                  plain);
  std::printf("  .softcap = 30                               %.2f\n",
              time({.softcap = 30}) / plain);
  std::printf("  score_mod, 30 * std::tanh(score / 30)       %.2f\n",
              time({}, attn::score_mod([](float score, int, int, int, int) {
                     return 30 * std::tanh(score / 30);
                   })) /
                  plain);
  std::printf("  score_mod, score + std::exp(-0.01f * (i-j)) %.2f\n",
              time({}, attn::score_mod([](float score, int, int, int i, int j) {
                     return score + std::exp(-0.01f * static_cast<float>(i - j));
                   })) /
                  plain);
}
