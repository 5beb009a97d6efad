// Calls the plain file, and the wide one if the processor can run it, and compares them.
#include <cmath>
#include <cstdio>

double attend_baseline();
double attend_wide();

#define HAS(feature) (__builtin_cpu_supports(#feature) != 0)

int main() {
  const double baseline = attend_baseline();
  std::printf("baseline: %.9g\n", baseline);
  if (!std::isfinite(baseline)) return 1;
  if (!(ATTN_WIDE_CPU_FEATURES)) {
    std::printf("wide: not called, this processor lacks it\n");
    return 0;
  }
  const double wide = attend_wide();
  std::printf("wide: %.9g\n", wide);
  // The sum has 1938 terms of at most 7, each with a few float roundings.
  return std::abs(wide - baseline) <= 1e-3 ? 0 : 1;
}
