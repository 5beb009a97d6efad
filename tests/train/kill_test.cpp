// A run killed again and again ends with the bits of one that was not.
#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "support/random.hpp"
#include "support/small_run.hpp"
#include "support/temp_folder.hpp"

namespace attn_test {
namespace {

/// More than fifty runs of some milliseconds take.
constexpr attn::index_t kSteps = 300;
constexpr int kKills = 50;

/// Goes on from the checkpoint, if there is one, and saves one behind every step.
void train(const std::filesystem::path& path) {
  const attn::SerialExecutor one;
  SmallRun run(one);
  attn::index_t step = 0;
  if (std::filesystem::exists(path)) {
    const attn::TrainingState state = attn::load_checkpoint(path, run.model, run.adam);
    step = state.step;
    run.batches.move_to(state.batches);
  }
  while (step < kSteps) {
    run.step();
    attn::save_checkpoint(path, run.model, run.adam,
                          {.step = ++step, .batches = run.batches.position()});
  }
}

TEST(Checkpoint, SurvivesKills) {
  const TempFolder folder;
  const auto whole = folder / "whole", killed = folder / "killed";
  train(whole);
  Random random;
  int kills = 0;
  for (bool done = false; !done;) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      train(killed);
      _exit(0);
    }
    if (kills < kKills) {
      usleep(static_cast<useconds_t>(random.integer(500, 6000)));
      kill(child, SIGKILL);
    }
    int status = 0;
    waitpid(child, &status, 0);
    done = WIFEXITED(status);
    if (!done) ++kills;
    ASSERT_TRUE(done || WTERMSIG(status) == SIGKILL) << random.trace();
  }
  EXPECT_GT(kills, 0);
  const attn::SafetensorsFile a(whole), b(killed);
  ASSERT_EQ(a.names(), b.names());
  for (const std::string& name : a.names()) {
    if (a.shape(name).size() != 1) continue;
    const auto x = a.load<float, 1>(name), y = b.load<float, 1>(name);
    EXPECT_TRUE(std::ranges::equal(x.elements(), y.elements())) << name;
  }
  EXPECT_EQ(a.metadata(), b.metadata());
}

}  // namespace
}  // namespace attn_test
