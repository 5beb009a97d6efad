// train_gpt: trains a small GPT on the characters of Shakespeare's plays; writes a checkpoint,
// samples and a page of losses.
#include "support/gpt_training.hpp"

int main(int argc, char** argv) {
  CLI::App app("Trains a small GPT on Shakespeare's plays, character by character.");
  examples::GptTrainingOptions options;
  examples::add_training_options(app, options);
  return examples::run_program(app, "train_gpt", argc, argv, [&] {
    attn::LocalCommunicator alone;
    examples::train_gpt(options, alone);
  });
}
