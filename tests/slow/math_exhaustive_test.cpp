// Every function of simd/math.inc over all 2^32 floats and millions of doubles, on every
// instruction set: no error above the stated bound. Prints the largest errors. Four minutes on two
// cores, for two instruction sets.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attn/exec/executor.hpp"

#include "simd/ulps.hpp"
#include "simd/vec_ops.hpp"
#include "support/isas.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::available_isas;
using attn_test::Random;
using attn_test::UlpRuler;

constexpr index_t kBlock = index_t{1} << 16;

/// The stated bounds of one function.
struct Promise {
  const char* name;
  VecOp op;
  double bound;              ///< in ULP
  double bound_without_fma;  ///< on the baseline
  bool flushes = false;  ///< a result below the smallest normal number may be anything from 0 to it
  double last = std::numeric_limits<double>::infinity();  ///< the largest argument allowed
};

struct Worst {
  double ulps = 0.5;  ///< results that are rounded correctly are not measured
  double at = 0;

  /// Of equal errors, keeps that of the smaller argument, whichever thread finds it first.
  void take(double error, double x) {
    if (error > ulps || (error == ulps && x < at)) ulps = error, at = x;
  }
};

/// Compares with `exact` (double for floats, long double for doubles) at the arguments that `fill`
/// writes, one block per task.
template <class T, class Exact, class Function, class Fill>
void expect_kept(const std::vector<Promise>& promises, index_t blocks, Function exact, Fill fill) {
  const auto sets = available_isas();
  const Executor& threads = default_executor();
  const UlpRuler<T, Exact> ulps;
  // By worker, then by function and instruction set.
  std::vector<std::vector<Worst>> worst(static_cast<std::size_t>(threads.concurrency()),
                                        std::vector<Worst>(promises.size() * sets.size()));
  threads.run(blocks, [&](index_t block, int worker) {
    thread_local std::vector<T> x(kBlock), y(kBlock);
    thread_local std::vector<Exact> expected(kBlock);
    fill(block, x);
    for (std::size_t i = 0; i < x.size(); ++i) expected[i] = exact(static_cast<Exact>(x[i]));
    auto* of_worker = worst[static_cast<std::size_t>(worker)].data();
    for (const Promise& promise : promises) {
      for (const Isa set : sets) {
        vec_ops<T>(set).apply(promise.op, kBlock, x.data(), x.data(), x.data(), y.data());
        Worst most;
        for (std::size_t i = 0; i < x.size(); ++i) {
          if (y[i] == static_cast<T>(expected[i]) || x[i] > promise.last) continue;
          constexpr T kLeastNormal = std::numeric_limits<T>::min();
          if (promise.flushes && expected[i] < kLeastNormal && y[i] >= 0 && y[i] <= kLeastNormal) {
            continue;
          }
          most.take(ulps(y[i], expected[i]), x[i]);
        }
        (of_worker++)->take(most.ulps, most.at);
      }
    }
  });
  std::size_t which = 0;
  for (const Promise& promise : promises) {
    for (const Isa set : sets) {
      Worst most;
      for (const auto& of_worker : worst) most.take(of_worker[which].ulps, of_worker[which].at);
      ++which;
      const std::string what = std::string(promise.name) + " of " +
                               (sizeof(T) == 4 ? "float" : "double") + " on " +
                               std::string(name(set));
      std::printf("%-30s %.3f ULP at %.9g (%a)\n", what.c_str(), most.ulps, most.at, most.at);
      std::fflush(stdout);
      EXPECT_LE(most.ulps, set == Isa::scalar ? promise.bound_without_fma : promise.bound) << what;
    }
  }
}

/// Block b consists of the floats whose upper half is b.
template <class Function>
void expect_kept_by_floats(const std::vector<Promise>& promises, Function exact) {
  const auto fill = [](index_t block, std::vector<float>& x) {
    auto bits = static_cast<std::uint32_t>(block * kBlock);
    for (float& value : x) value = std::bit_cast<float>(bits++);
  };
  expect_kept<float, double>(promises, index_t{1} << 16, exact, fill);
}

/// 2^24 doubles: every second one from an even grid of [least, most], the others with random sign,
/// exponent and mantissa.
template <class Function>
void expect_kept_by_doubles(const std::vector<Promise>& promises, double least, double most,
                            Function exact) {
  const auto fill = [=](index_t block, std::vector<double>& x) {
    Random random(static_cast<std::uint64_t>(block));
    const auto half = [&] { return static_cast<std::uint64_t>(random.uniform() * 0x1p32); };
    for (std::size_t i = 0; i < x.size(); i += 2) {
      x[i] = least + (most - least) * random.uniform();
      x[i + 1] = std::bit_cast<double>(half() << 32 | half());
    }
  };
  expect_kept<double, long double>(promises, index_t{1} << 8, exact, fill);
}

constexpr auto exact_exp2 = [](auto x) { return std::exp2(x); };
constexpr auto exact_exp = [](auto x) { return std::exp(x); };
constexpr auto exact_tanh = [](auto x) { return std::tanh(x); };
constexpr auto exact_log = [](auto x) { return std::log(x); };

TEST(MathExhaustive, Exp2) {
  expect_kept_by_floats(
      {{"exp2", VecOp::exp2, 1.1, 1.3}, {"exp2_flush", VecOp::exp2_flush, 1.1, 1.3, true, 127}},
      exact_exp2);
  expect_kept_by_doubles(
      {{"exp2", VecOp::exp2, 1.1, 1.3}, {"exp2_flush", VecOp::exp2_flush, 1.1, 1.3, true, 1023}},
      -1080, 1030, exact_exp2);
}

TEST(MathExhaustive, Exp) {
  expect_kept_by_floats(
      {{"exp", VecOp::exp, 1.5, 1.5}, {"exp_flush", VecOp::exp_flush, 5, 1.5, true, 88}},
      exact_exp);
  expect_kept_by_doubles(
      {{"exp", VecOp::exp, 1.5, 1.5}, {"exp_flush", VecOp::exp_flush, 1.5, 1.5, true, 709}}, -750,
      715, exact_exp);
}

TEST(MathExhaustive, Tanh) {
  expect_kept_by_floats({{"tanh", VecOp::tanh, 1.5, 1.5}}, exact_tanh);
  expect_kept_by_doubles({{"tanh", VecOp::tanh, 1.5, 1.5}}, -20, 20, exact_tanh);
}

TEST(MathExhaustive, Silu) {
  expect_kept_by_floats({{"silu", VecOp::silu, 4, 4}}, attn_test::exact_silu);
  expect_kept_by_doubles({{"silu", VecOp::silu, 4, 4}}, -760, 40, attn_test::exact_silu);
}

TEST(MathExhaustive, Gelu) {
  expect_kept_by_floats({{"gelu", VecOp::gelu, 7, 7}}, attn_test::exact_gelu);
  expect_kept_by_doubles({{"gelu", VecOp::gelu, 7, 7}}, -40, 10, attn_test::exact_gelu);
}

TEST(MathExhaustive, Log) {
  expect_kept_by_floats({{"log", VecOp::log, 0.9, 0.9}}, exact_log);
  expect_kept_by_doubles({{"log", VecOp::log, 0.9, 0.9}}, 0, 3, exact_log);
}

}  // namespace
}  // namespace attn
