// quantize: converts the matrices of a GGUF file to another type.
#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "attn/io/gguf/writer.hpp"
#include "attn/io/stored_elements.hpp"

#include "support/command_line.hpp"

namespace {

using attn::GgufType;
using examples::UsageError;

struct Options {
  std::string in, out, type = "Q8_0";
};

// The value of general.file_type for a file with most matrices of this type. Source: ggml, enum
// ggml_ftype.
std::uint32_t file_type(GgufType type) {
  switch (type) {
    case GgufType::F32:
      return 0;
    case GgufType::F16:
      return 1;
    case GgufType::Q4_0:
      return 2;
    case GgufType::Q4_1:
      return 3;
    case GgufType::Q8_0:
      return 7;
    case GgufType::Q5_0:
      return 8;
    case GgufType::Q5_1:
      return 9;
    default:
      return 24;  // BF16
  }
}

// The tensor's elements in another type; errors name the tensor.
std::vector<std::byte> converted(const std::string& name, const attn::GgufTensor& tensor,
                                 GgufType type) {
  std::vector<float> values(static_cast<std::size_t>(attn::size_of(tensor.shape)));
  attn::dequantize_gguf(tensor.type, tensor.bytes, values);
  try {
    return attn::quantize_gguf(type, values);
  } catch (const attn::ValueError& error) {
    throw attn::ValueError("tensor " + name + ": " + error.what());
  }
}

void run(const Options& options) {
  if (options.out.empty()) throw UsageError("IN and OUT are needed; see --help");
  const auto type = attn::gguf_type(std::string_view(options.type));
  if (!type || !attn::can_quantize(*type)) {
    throw UsageError("--type must be F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0 or Q5_1; found " +
                     options.type);
  }
  const attn::GgufFile file(options.in);
  attn::GgufMetadata metadata;
  for (const auto& [key, value] : file.metadata()) metadata.set(key, value);
  metadata.set("general.file_type", file_type(*type));
  metadata.set("general.quantization_version", std::uint32_t{2});
  // Vectors, such as the weights of norms, and matrices whose rows are not whole blocks stay
  // unchanged.
  std::vector<attn::NamedGgufTensor> tensors;
  std::vector<std::vector<std::byte>> made;
  made.reserve(file.names().size());
  std::size_t before = 0, after = 0;
  for (const std::string& name : file.names()) {
    attn::GgufTensor tensor = file.tensor(name);
    before += tensor.bytes.size();
    const bool is_matrix = tensor.shape.size() > 1;
    if (is_matrix && tensor.type != *type &&
        tensor.shape.back() % static_cast<attn::index_t>(attn::block_elements(*type)) == 0) {
      made.push_back(converted(name, tensor, *type));
      tensor.type = *type;
      tensor.bytes = made.back();
    }
    after += tensor.bytes.size();
    tensors.push_back({name, tensor});
  }
  attn::save_gguf(options.out, metadata, tensors);
  std::cout << std::fixed << std::setprecision(1) << made.size() << " of "
            << examples::counted(tensors.size(), "tensor") << " became " << options.type << ": "
            << static_cast<double>(before) / 1e6 << " MB, now " << static_cast<double>(after) / 1e6
            << " MB\n";
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Writes the GGUF file IN to OUT with its matrices in another type.");
  app.footer(
      "Quantising again loses accuracy.\nMatrices of a type that this program cannot write, such "
      "as Q4_K, can be converted to one that it can.");
  app.add_option("IN", options.in, "A GGUF file");
  app.add_option("OUT", options.out, "May be the same file as IN, which is replaced atomically");
  app.add_option("--type", options.type, "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0 or Q5_1")
      ->capture_default_str();
  return examples::run_program(app, "quantize", argc, argv, [&] { run(options); });
}
