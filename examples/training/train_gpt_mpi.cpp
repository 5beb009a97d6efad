// train_gpt_mpi: train_gpt on the ranks of an MPI program, with the same bits on any number of them.
#include <attn/distributed/mpi.hpp>

#include "support/gpt_training.hpp"

int main(int argc, char** argv) {
  CLI::App app(
      "Trains as train_gpt does, on the ranks of mpirun -n RANKS train_gpt_mpi. The losses do not\n"
      "depend on the number of ranks, only on that of micro-batches.");
  examples::GptTrainingOptions options{.micro_batches = 4};
  examples::add_training_options(app, options);
  examples::add_number(app, "--micro-batches", options.micro_batches, attn::index_t{1},
                       "Parts of a step's batch of 12, which ranks share");
  return examples::run_program(app, "train_gpt_mpi", argc, argv, [&] {
    if (options.batch % options.micro_batches != 0) {
      throw examples::UsageError("--micro-batches must divide 12; found " +
                                 std::to_string(options.micro_batches));
    }
    attn::MpiCommunicator comm;
    try {
      examples::train_gpt(options, comm);
    } catch (const std::exception& error) {
      if (comm.size() > 1) comm.fail(error.what());  // the others would wait
      throw;
    }
  });
}
