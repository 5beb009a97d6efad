// json_answer: a language model fills in a given JSON shape and cannot write anything else.
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "attn/generation/generate_text.hpp"

#include "support/command_line.hpp"
#include "support/json_shape.hpp"
#include "support/model_dir.hpp"

namespace {

using attn::index_t;

struct Options {
  std::string question = "Tell me about Paris.";
  std::string shape =
      R"({"city": "string", "country": "string", "continent": "Africa|America|Asia|Europe|Oceania", "population": "integer"})";
  std::string model;
};

void run(const Options& options) {
  if (options.model.empty() && !examples::llm_is_present()) {
    throw examples::UsageError(examples::missing_llm_message());
  }
  const examples::Json example = examples::Json::parse(options.shape, nullptr, false);
  if (!example.is_object() && !example.is_array()) {
    throw examples::UsageError("--shape must be an object or an array of JSON; found " +
                               options.shape);
  }
  const examples::JsonShape shape(example);
  const attn::LanguageModel model(
      options.model.empty() ? examples::llm_path() : std::filesystem::path(options.model),
      {.activations = attn::ActivationFormat::int8});
  const std::vector<attn::ChatMessage> messages = {
      {"user", options.question + " Answer by JSON like " + options.shape}};
  const std::vector<index_t> ids = model.encode_chat(messages);
  attn::GptSession<float> session(model.gpt(), 1, model.max_positions());
  attn::TextGenerationOptions generation{
      .max_new_tokens = session.capacity() - std::ssize(ids),
      .logit_processor = examples::JsonOnly(model, shape, ids.size())};
  const attn::GeneratedText answer = attn::generate_text(model, session, ids, generation);
  std::cout << examples::Json::parse(answer.text).dump() << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Lets a language model fill in a given shape of JSON and nothing else.");
  app.footer("Without --model it is SmolLM2-135M-Instruct: sh examples/fetch_llm.sh");
  app.add_option("QUESTION", o.question, "The question")->capture_default_str();
  app.add_option("--shape", o.shape,
                 "JSON whose texts name the values to fill in: string, integer, or one|of|these");
  app.add_option("--model", o.model, "A GGUF file of the llama architecture")->type_name("FILE");
  return examples::run_program(app, "json_answer", argc, argv, [&] { run(o); });
}
