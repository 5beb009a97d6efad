// Training that is killed repeatedly ends with the bits of an uninterrupted run. Not on Windows,
// which has no fork().
#if !defined(_WIN32)
#include <chrono>
#include <csignal>
#include <filesystem>
#include <limits>
#include <sys/wait.h>
#include <type_traits>
#include <unistd.h>

#include <gtest/gtest.h>

#include "support/files/temp_folder.hpp"
#include "support/models/small_run.hpp"
#include "support/random.hpp"

namespace attn_test {
namespace {

constexpr int kKills = 50;

/// Continues from the checkpoint, if it exists, up to `steps`, saves after every step, and returns
/// the number of steps done.
attn::index_t train(const std::filesystem::path& path, attn::index_t steps) {
  const attn::SerialExecutor one;
  SmallRun run(one);
  attn::index_t step = 0;
  if (std::filesystem::exists(path)) {
    const attn::TrainingState state = attn::load_checkpoint(path, run.model, run.adam);
    step = state.step;
    run.batches.move_to(state.batches);
  }
  while (step < steps) {
    run.step();
    attn::save_checkpoint(path, run.model, run.adam,
                          {.step = ++step, .batches = run.batches.position()});
  }
  return step;
}

void expect_same(const std::filesystem::path& one, const std::filesystem::path& other) {
  const attn::SafetensorsFile a(one), b(other);
  ASSERT_EQ(a.names(), b.names());
  for (const std::string& name : a.names()) {
    const auto compare = [&]<int Rank>(std::integral_constant<int, Rank>) {
      if (a.shape(name).size() != std::size_t{Rank}) return;
      const auto x = a.load<float, Rank>(name), y = b.load<float, Rank>(name);
      EXPECT_TRUE(std::ranges::equal(x.elements(), y.elements())) << name;
    };
    compare(std::integral_constant<int, 1>{});
    compare(std::integral_constant<int, 2>{});
  }
  EXPECT_EQ(a.metadata(), b.metadata());
}

/// Waits for a child; true if it was killed.
bool was_killed(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

TEST(Checkpoint, SurvivesKills) {
  const TempFolder folder;
  const auto whole = folder / "whole", killed = folder / "killed";
  Random random;
  const auto begin = std::chrono::steady_clock::now();
  train(whole, 1);
  const std::chrono::duration<double, std::micro> one_step =
      std::chrono::steady_clock::now() - begin;
  for (int kills = 0; kills < kKills; ++kills) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      train(killed, std::numeric_limits<attn::index_t>::max());
      _exit(0);
    }
    // The last child lives until there is a checkpoint, however slow the machine is, or a minute.
    for (int ms = 0; kills == kKills - 1 && !std::filesystem::exists(killed) && ms < 60000; ++ms) {
      usleep(1000);
    }
    const double steps = 0.03 * static_cast<double>(random.integer(1, 100));
    usleep(static_cast<useconds_t>(steps * one_step.count()));
    kill(child, SIGKILL);
    ASSERT_TRUE(was_killed(child)) << random.trace();
  }
  // Left by a kill while writing.
  const auto unfinished = std::distance(std::filesystem::directory_iterator(folder.path()), {}) - 2;
  RecordProperty("kills_while_writing", static_cast<int>(unfinished));
  const attn::index_t done = train(killed, 0);
  EXPECT_GT(done, 0);
  train(killed, done + 20);
  train(whole, done + 20);
  expect_same(whole, killed);
}

TEST(Checkpoint, SurvivesAKillWhileItIsWritten) {
  const TempFolder folder;
  const auto run = folder / "run", before = folder / "before";
  train(run, 3);
  std::filesystem::copy_file(run, before);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    attn::AtomicFile file(run);
    const std::vector<std::byte> half(1000);
    file.write(half);
    kill(getpid(), SIGKILL);
  }
  ASSERT_TRUE(was_killed(child));
  expect_same(run, before);
  EXPECT_EQ(train(run, 5), 5);
}

}  // namespace
}  // namespace attn_test
#endif
