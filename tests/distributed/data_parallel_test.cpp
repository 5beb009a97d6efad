// Training on any number of ranks has the bits and checkpoints of one process.
#include <thread>  // ranks are of std::thread: the thread sanitizer runs this file
#include <type_traits>

#include <gtest/gtest.h>

#include "distributed/data_parallel_run.hpp"
#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"
#include "support/random.hpp"

namespace attn_test {
namespace {

using attn::Communicator, attn::index_t, attn::ShardedOptimizer;
using namespace std::chrono_literals;
using Alone = DataParallelRun<attn::Adam<float>>;
using Together = DataParallelRun<ShardedOptimizer<attn::Adam<float>>>;

TEST(DistributedTraining, HasTheBitsOfOneProcess) {
  for (int ranks : {1, 2, 3, 4, 7}) {
    SCOPED_TRACE(ranks);
    attn::run_local_ranks(
        ranks, [](Communicator& comm) { EXPECT_TRUE(trains_as_one_process(comm)); }, 60s);
  }
}

TEST(DistributedTraining, SkipsStepsAndClipsAsTheTestExpects) {
  Alone alone;
  double norm = 0;
  for (int n = 0; n < 6; ++n) {
    step_alone(alone);
    norm = std::max(norm, attn::gradient_norm(alone.parameters) / alone.scale.factor());
  }
  EXPECT_GT(alone.adam.steps(), 0);
  EXPECT_LT(alone.adam.steps(), 6);
  EXPECT_GT(norm, 0.5);
}

TEST(DistributedTraining, ACheckpointIsThatOfOneProcessAndLoadsOnOtherRanks) {
  const TempFolder folder;
  Alone alone;
  for (int n = 0; n < 4; ++n) step_alone(alone);
  alone.save(folder / "alone");
  for (int n = 0; n < 3; ++n) step_alone(alone);
  for (const auto& [before, after] : {std::pair{2, 3}, {3, 1}, {1, 7}}) {
    SCOPED_TRACE(std::to_string(before) + " ranks, then " + std::to_string(after));
    attn::run_local_ranks(
        before,
        [&](Communicator& comm) {
          Together run(comm);
          attn::GradientTree<float> tree(comm, run.parameters, kMicroBatches);
          for (int n = 0; n < 4; ++n) step_together(run, tree);
          run.save(folder / "together");
        },
        60s);
    EXPECT_EQ(folder.read("together"), folder.read("alone"));
    attn::run_local_ranks(
        after,
        [&](Communicator& comm) {
          Together run(comm);
          run.load(folder / "together");
          attn::GradientTree<float> tree(comm, run.parameters, kMicroBatches);
          for (int n = 0; n < 3; ++n) step_together(run, tree);
          EXPECT_EQ(run.bits(), alone.bits());
        },
        60s);
  }
}

/// Random parameters and gradients of the sizes 7, 1, 130 and 20,000.
template <class T>
struct DrawnParameters {
  std::vector<T> values, gradients;
  std::vector<attn::TrainedParameter<T>> parameters;

  DrawnParameters() : values(20138), gradients(20138) {
    Random random(3);
    for (T& x : values) x = static_cast<T>(random.normal());
    for (T& x : gradients) x = static_cast<T>(random.normal());
    index_t at = 0;
    for (const index_t size : {7, 1, 130, 20000}) {
      parameters.push_back({.name = "weight" + std::to_string(size),
                            .value = values.data() + at,
                            .gradient = gradients.data() + at,
                            .size = size});
      at += size;
    }
  }
};

template <class Optimizer>
void expect_same_steps(const typename Optimizer::Options& options) {
  using Drawn = DrawnParameters<typename Optimizer::Element>;
  Drawn alone;
  Optimizer optimizer(alone.parameters, options);
  for (int n = 0; n < 3; ++n) optimizer.step(0.1, {}, 0.5);
  for (int ranks : {1, 2, 3, 4, 7}) {
    SCOPED_TRACE(ranks);
    attn::run_local_ranks(
        ranks,
        [&](Communicator& comm) {
          Drawn drawn;
          ShardedOptimizer<Optimizer> sharded(comm, drawn.parameters, options);
          index_t stored = 0;
          sharded.visit_parts(
              [&](const auto&, index_t, const auto&, const auto& own) { stored += own.size(); });
          EXPECT_LE(stored, (2 * 20138) / ranks + 2);
          for (int n = 0; n < 3; ++n) sharded.step(0.1, {}, 0.5);
          EXPECT_EQ(drawn.values, alone.values);
        },
        60s);
  }
}

TEST(DistributedTraining, EachOptimizerHasTheBitsOfOneProcess) {
  expect_same_steps<attn::Adam<float>>({.weight_decay = 0.1});
  expect_same_steps<attn::Adam<double>>({.weight_decay = 0.1, .decoupled = true});
  expect_same_steps<attn::Sgd<float>>({.momentum = 0.9, .nesterov = true, .weight_decay = 0.1});
  expect_same_steps<attn::Sgd<double>>({});
}

TEST(DistributedTraining, TheNormNeedsOnlyTheGradientsOfEachPart) {
  DrawnParameters<float> alone;
  const double expected = attn::gradient_norm(alone.parameters);
  for (int ranks : {1, 2, 3, 4, 7}) {
    SCOPED_TRACE(ranks);
    attn::run_local_ranks(
        ranks,
        [&](Communicator& comm) {
          DrawnParameters<float> drawn;
          const index_t share = (20138 + ranks - 1) / ranks;
          for (index_t n = 0; n < 20138; ++n) {
            if (n / share != comm.rank()) drawn.gradients[std::size_t(n)] = std::nanf("");
          }
          ShardedOptimizer<attn::Sgd<float>> sharded(comm, drawn.parameters);
          EXPECT_EQ(sharded.gradient_norm(), expected);
          EXPECT_EQ(sharded.gradient_norm(), expected);
        },
        60s);
  }
}

TEST(DistributedTraining, TheTreeRefusesAnOptimizerOfOtherParameters) {
  attn::run_local_ranks(
      2,
      [](Communicator& comm) {
        DrawnParameters<float> drawn;
        ShardedOptimizer<attn::Sgd<float>> whole(comm, drawn.parameters);
        attn::GradientTree<float> tree(comm, drawn.parameters, 2);
        drawn.parameters.pop_back();
        ShardedOptimizer<attn::Sgd<float>> fewer(comm, drawn.parameters);
        tree.add(comm.rank());
        const std::string text =
            "[GradientTree::finish] optimizer must have the tree's communicator and parameters; "
            "found others.";
        EXPECT_EQ(error_of<attn::ValueError>([&] { tree.finish(fewer); }), text);
        EXPECT_EQ(error_of<attn::ValueError>([&] {
                    if (comm.rank() == 0) {
                      tree.finish(whole);
                    } else {
                      tree.finish();
                    }
                  }),
                  "[GradientTree::finish] whether an optimizer is given must be the same on every "
                  "rank; found 1 on rank 0, 0 on rank 1.");
        tree.finish(whole);  // of the same step
      },
      60s);
}

TEST(DistributedTraining, RefusesWhatDiffersBetweenRanks) {
  attn::run_local_ranks(
      2,
      [](Communicator& comm) {
        DrawnParameters<float> drawn;
        const auto before = drawn.values;
        ShardedOptimizer<attn::Sgd<float>> sharded(comm, drawn.parameters);
        EXPECT_EQ(error_of<attn::ValueError>([&] { sharded.step(comm.rank() + 0.5); }),
                  "[ShardedOptimizer::step] learning_rate must be the same on every rank; found "
                  "another on rank 1 than on rank 0.");
        EXPECT_EQ(error_of<attn::ValueError>([&] { sharded.step(-1); }),
                  "[Sgd] step's learning_rate must be finite and at least 0; found -1.000000.");
        EXPECT_EQ(drawn.values, before);
      },
      60s);
}

TEST(DistributedTraining, RefusesOtherParametersOrOptionsOnOneRank) {
  attn::run_local_ranks(
      2,
      [](Communicator& comm) {
        DrawnParameters<float> drawn;
        const bool other = comm.rank() == 1;
        const auto expect = [&]<class Optimizer>(std::type_identity<Optimizer>,
                                                 std::string_view what, const auto& options) {
          EXPECT_EQ(error_of<attn::ValueError>(
                        [&] { ShardedOptimizer<Optimizer>(comm, drawn.parameters, options); }),
                    "[ShardedOptimizer] " + std::string(what) +
                        " must be the same on every rank; found another on rank 1 than on rank 0.");
        };
        const auto adam = [&](std::string_view what, const attn::AdamOptions& options) {
          expect(std::type_identity<attn::Adam<float>>(), what, options);
        };
        const auto sgd = [&](std::string_view what, const attn::SgdOptions& options) {
          expect(std::type_identity<attn::Sgd<float>>(), what, options);
        };
        const double tenth = other ? 0.1 : 0;
        adam("beta1", {.beta1 = tenth});
        adam("beta2", {.beta2 = tenth});
        adam("eps", {.eps = tenth});
        adam("weight_decay", {.weight_decay = tenth});
        adam("decoupled", {.decoupled = other});
        sgd("momentum", {.momentum = tenth});
        sgd("nesterov", {.momentum = 0.5, .nesterov = other});
        sgd("weight_decay", {.weight_decay = tenth});
        const auto all = [](std::string_view) { return true; };
        const auto none = [](std::string_view) { return false; };
        adam("the groups of the parameters", {.groups = {{all, 1 + tenth}}});
        adam("the groups of the parameters", {.groups = {{all, 1, tenth}}});
        sgd("the groups of the parameters",
            {.groups = {
                 {[other](std::string_view name) { return other == (name == "weight7"); }, 0.5},
                 {all}}});
        if (other) {
          sgd("the groups of the parameters", {.groups = {{none}}});
        } else {
          sgd("the groups of the parameters", {.groups = {{all}}});
        }
        if (other) drawn.parameters[2].name = "bias";
        adam("the names of the parameters", {});
        EXPECT_EQ(error_of<attn::ValueError>(
                      [&] { attn::GradientTree<float>(comm, drawn.parameters, 4); }),
                  "[GradientTree] the names of the parameters must be the same on every rank; "
                  "found another on rank 1 than on rank 0.");
      },
      60s);
}

TEST(DistributedTraining, AFileThatOneRankCannotUseIsAnErrorOnAll) {
  const TempFolder folder;
  attn::run_local_ranks(
      2,
      [&](Communicator& comm) {
        Together run(comm);
        const auto error = [&](const auto& f) -> std::string {
          try {
            f();
          } catch (const std::exception& e) {
            return e.what();
          }
          return "none";
        };
        const std::string saving = error([&] { run.save("/nonexistent/file"); });
        EXPECT_NE(saving.find("/nonexistent/file"), std::string::npos) << saving;
        EXPECT_EQ(saving.starts_with("[save_checkpoint] rank 0: "), comm.rank() == 1) << saving;
        run.save(folder / "file");
        const std::string loading =
            error([&] { run.load(folder / (comm.rank() == 0 ? "file" : "missing")); });
        EXPECT_NE(loading.find("missing"), std::string::npos) << loading;
        EXPECT_EQ(loading.starts_with("[load_checkpoint] rank 1: "), comm.rank() == 0) << loading;
      },
      60s);
}

/// The bits of parameters, then of this rank's states, then the number of steps.
std::vector<std::byte> everything(Together& run) {
  std::vector<std::byte> all = run.bits();
  const auto add = [&](std::span<const std::byte> bytes) {
    all.insert(all.end(), bytes.begin(), bytes.end());
  };
  run.adam.visit_parts([&](const auto&, index_t, const auto&, const auto& own) {
    add(std::as_bytes(std::span(own.data(), std::size_t(own.size()))));
  });
  const index_t steps = run.adam.steps();
  add(std::as_bytes(std::span(&steps, 1)));
  return all;
}

TEST(DistributedTraining, AFailedLoadLeavesEveryRankUnchanged) {
  const TempFolder folder;
  Alone alone;
  for (int n = 0; n < 3; ++n) step_alone(alone);
  alone.save(folder / "file");
  ++alone.masters.blocks.layers[0].norm1.weight(0);  // another model at the same step
  alone.save(folder / "other");
  std::string cut = folder.read("file");
  folder.write("cut", cut.substr(0, cut.size() - 1));
  ++cut.back();  // another state
  folder.write("state", cut);
  for (const auto& file :
       {std::pair{"missing", "rank 1: [MappedFile]"},
        {"cut", "rank 1: [SafetensorsFile]"},
        {"other",
         "the file's bytes must be the same on every rank; found another on rank 1 than "
         "on rank 0."},
        {"state", "the file's bytes must be the same on every rank"}}) {
    SCOPED_TRACE(file.first);
    attn::run_local_ranks(
        2,
        [&](Communicator& comm) {
          Together run(comm);
          const std::vector<std::byte> before = everything(run);
          const auto path = folder / (comm.rank() == 1 ? file.first : "file");
          if (comm.rank() == 0) {
            EXPECT_TRUE(contains(error_of<attn::ValueError>([&] { run.load(path); }), file.second));
          } else {
            EXPECT_ANY_THROW(run.load(path));
          }
          EXPECT_EQ(everything(run), before);
          run.load(folder / "file");
          EXPECT_NE(everything(run), before);
        },
        60s);
  }
}

TEST(MicroBatch, IsAPartOfABatch) {
  const std::vector<index_t> batch{5, 3, 8, 1, 9, 2};
  const auto part = attn::micro_batch(batch, 1, 3);
  EXPECT_EQ(std::vector<index_t>(part.begin(), part.end()), (std::vector<index_t>{8, 1}));
  EXPECT_EQ(error_of<attn::ValueError>([&] { attn::micro_batch(batch, 0, 4); }),
            "[micro_batch] count must divide the batch's size, 6; found 4.");
  EXPECT_EQ(error_of<attn::ValueError>([&] { attn::micro_batch(batch, 3, 3); }),
            "[micro_batch] n must lie in 0 .. 2; found 3.");
}

}  // namespace
}  // namespace attn_test
