// Instruction sets: names, available sets, and selection by the environment.
#include "attn/simd/isa.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/isas.hpp"

namespace attn {
namespace {

using attn_test::available_isas;
using attn_test::contains;
using attn_test::error_of;
using attn_test::extended_isas;

TEST(Isa, NamesGoBothWays) {
  for (Isa isa : kAllIsas) EXPECT_EQ(isa_from_name(name(isa)), isa);
  EXPECT_EQ(name(Isa::scalar), "scalar");
  EXPECT_EQ(name(Isa::avx2), "avx2");
  EXPECT_EQ(name(Isa::avxvnni), "avxvnni");
  EXPECT_EQ(name(Isa::avx512), "avx512");
  EXPECT_EQ(name(Isa::avx512vnni), "avx512vnni");
  EXPECT_EQ(name(Isa::avx512bf16), "avx512bf16");
  EXPECT_EQ(name(Isa::amx), "amx");
  EXPECT_EQ(name(Isa::neon), "neon");
  EXPECT_EQ(name(Isa::neondot), "neondot");
}

TEST(Isa, ASetThatAddsInstructionsHasABase) {
  EXPECT_EQ(base(Isa::avxvnni), Isa::avx2);
  EXPECT_EQ(base(Isa::avx512vnni), Isa::avx512);
  EXPECT_EQ(base(Isa::avx512bf16), Isa::avx512);
  EXPECT_EQ(base(Isa::amx), Isa::avx512);
  EXPECT_EQ(base(Isa::neondot), Isa::neon);
  for (Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512, Isa::neon}) EXPECT_EQ(base(isa), isa);
  for (Isa isa : kAllIsas) {
    EXPECT_TRUE(!is_available(isa) || is_available(base(isa)));
  }
}

TEST(Isa, UnknownNameThrows) {
  EXPECT_EQ(error_of<ValueError>([] { isa_from_name("sse9"); }),
            "[isa_from_name] the instruction set must be one of: scalar avx2 avxvnni avx512 "
            "avx512vnni avx512bf16 amx neon neondot; found 'sse9'.");
  EXPECT_THROW(isa_from_name(""), ValueError);
  EXPECT_THROW(isa_from_name("AVX2"), ValueError);
}

TEST(Isa, BestAndActiveAreAvailable) {
  ASSERT_FALSE(available_isas().empty());
  EXPECT_TRUE(is_available(active_isa()));
#if !defined(ATTN_PIN_ISA)
  EXPECT_TRUE(is_available(best_isa()));
  EXPECT_EQ(available_isas().front(), Isa::scalar);
  EXPECT_EQ(available_isas().back(), base(best_isa()));
  // An instruction set of the machine may be slower than those before it.
  EXPECT_TRUE(best_isa() == extended_isas().back() || extended_isas().back() == Isa::avx512bf16);
#endif
}

TEST(Isa, UnavailableSetThrows) {
  for (Isa isa : kAllIsas) {
    if (is_available(isa)) {
      EXPECT_EQ(require_isa(isa), isa);
    } else {
      EXPECT_TRUE(contains(error_of<ValueError>([&] { require_isa(isa); }),
                           "[require_isa] the instruction set must be one that this machine and "
                           "this build have"));
    }
  }
}

#if !defined(ATTN_PIN_ISA)
// active_isa() reads the environment once, so each value needs its own process.
class IsaDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  void TearDown() override { select(""); }

  static void select(const std::string& isa) {
#if defined(_WIN32)
    ::_putenv_s("ATTN_ISA", isa.c_str());
#else
    ::setenv("ATTN_ISA", isa.c_str(), 1);
#endif
  }

  static int active_or_99() {
    try {
      return static_cast<int>(active_isa());
    } catch (const ValueError& e) {
      std::fputs(e.what(), stderr);
      return 99;
    }
  }
};

TEST_F(IsaDeathTest, EnvironmentSelectsALowerSet) {
  for (Isa isa : available_isas()) {
    select(std::string(name(isa)));
    EXPECT_EXIT(std::exit(active_or_99()), ::testing::ExitedWithCode(static_cast<int>(isa)), "");
  }
}

TEST_F(IsaDeathTest, EmptyEnvironmentMeansTheBest) {
  select("");
  EXPECT_EXIT(std::exit(active_or_99()), ::testing::ExitedWithCode(static_cast<int>(best_isa())),
              "");
}

TEST_F(IsaDeathTest, NonsenseInTheEnvironmentThrows) {
  select("mmx");
  EXPECT_EXIT(std::exit(active_or_99()), ::testing::ExitedWithCode(99),
              "active_isa. the variable ATTN_ISA must be one of: scalar avx2 avxvnni avx512 "
              "avx512vnni avx512bf16 amx neon neondot; found 'mmx'");
  if (!is_available(Isa::avx512)) {
    select("avx512");
    EXPECT_EXIT(std::exit(active_or_99()), ::testing::ExitedWithCode(99),
                "active_isa. the variable ATTN_ISA must be one that this machine");
  }
}
#endif

}  // namespace
}  // namespace attn
