// Rows of attn_report that another program disturbed are reported and measured again.
#include <chrono>
#include <limits>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "attn/attn.hpp"

#include "report/timing.hpp"

namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

TEST(Disturbance, IsALimitThatVariedByMoreThanATenth) {
  EXPECT_EQ(bench::disturbance({}, kNone), "");
  EXPECT_EQ(bench::disturbance(std::vector<double>{100}, kNone), "");
  EXPECT_EQ(bench::disturbance(std::vector<double>{95, 100, 91}, 0.9), "");
  EXPECT_EQ(bench::disturbance(std::vector<double>{95, 100, 77}, 0.9), "the limit varied by 23 %");
}

TEST(Disturbance, IsAShareAboveOne) {
  EXPECT_EQ(bench::disturbance(std::vector<double>{100}, 1), "");
  EXPECT_EQ(bench::disturbance(std::vector<double>{100}, 1.76), "1.76 of the limit");
  EXPECT_EQ(bench::disturbance(std::vector<double>{100, 50}, 1.76), "1.76 of the limit");
}

bench::Work sleeps(const char* name, const int& milliseconds) {
  bench::Work work{name, attn::Isa::scalar};
  work.run = [&](const attn::Execution&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  };
  work.complaint = [] { return ""; };
  return work;
}

TEST(Disturbance, GoesWhereTheRowIsMeasuredAgain) {
  int work_takes = 1, baseline_takes = 20;
  const bench::Work work = sleeps("work", work_takes),
                    baseline = sleeps("baseline", baseline_takes);
  bench::Timings timings;
  EXPECT_EQ(timings.disturbance("work", false), "");
  timings.measure_beside(work, baseline, false, 0);
  EXPECT_EQ(timings.disturbance("work", false), "") << "one pass";
  baseline_takes = 1;
  timings.measure_beside(work, baseline, false, 0);
  EXPECT_NE(timings.disturbance("work", false), "");
  EXPECT_EQ(timings.times_measured("work", false), 1);

  timings.forget("work", false);
  timings.measure_beside(work, baseline, false, 0);
  EXPECT_EQ(timings.disturbance("work", false), "");
  EXPECT_EQ(timings.times_measured("work", false), 2);
  // Pairs with the disturbed baseline are discarded.
  EXPECT_LT(timings.beside("work", false).baseline, 0.02);
}

}  // namespace
