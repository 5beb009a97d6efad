// `conformance_test OPERATOR` runs every case of OPERATOR.json on every instruction set.
//
// Looks for cases in the folder of make_cases.sh,
// ${ATTN_CONFORMANCE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/attn/onnx-1.23.0}. The last line is
// "Conformance.OPERATOR: N passed, M failed, K skipped (names)"; the exit status is 1 if a case
// failed, and 77, which ctest reports as skipped, if none could run.
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "conformance/cases.hpp"

namespace attn_test {
namespace {

constexpr int kSkipped = 77;

struct Operator {
  std::string_view name;
  int cases;  ///< cases in ONNX: so many count as skipped without data
  const Suite* suite;
};

const Operator kOperators[] = {
    {"Attention", 93, &attention_suite},
    {"FlexAttention", 11, &flex_attention_suite},
    {"RotaryEmbedding", 8, &rotary_embedding_suite},
    {"LayerNormalization", 19, &layer_normalization_suite},
    {"RMSNormalization", 19, &rms_normalization_suite},
    {"Softmax", 7, &softmax_suite},
    {"LogSoftmax", 7, &log_softmax_suite},
    {"Gelu", 4, &gelu_suite},
    {"Swish", 1, &swish_suite},
    {"SwiGLU", 3, &swiglu_suite},
    {"LinearAttention", 14, &linear_attention_suite},
};

struct Tally {
  int passed = 0, failed = 0, skipped = 0;
  std::string skipped_names;

  void skip(const std::string& name, int cases = 1) {
    skipped_names += (skipped > 0 ? ", " : "") + name;
    skipped += cases;
  }
  int total() const { return passed + failed + skipped; }
};

/// Errors to print; empty if the case passed. Throws Unsupported.
std::vector<std::string> failures_of(Case& c, const Suite& suite) {
  try {
    for (const auto& [key, value] : c.attributes().items()) {
      if (suite.attributes.contains(key)) continue;
      throw Unsupported("attribute '" + key + "' = " + value.dump() + " is not known");
    }
    suite.check(c);
  } catch (const Unsupported&) {
    throw;
  } catch (const std::exception& error) {
    return {error.what()};
  }
  if (!c.failures().empty()) return c.failures();
  if (const auto unread = c.unread(); !unread.empty()) {
    std::string names;
    for (const std::string& tensor : unread) names += " '" + tensor + "'";
    throw Unsupported("unused tensors:" + names);
  }
  if (c.checks() == 0) return {"nothing to compare with: the case has no result"};
  return {};
}

Tally run(const Operator& op, const std::filesystem::path& folder) {
  Tally tally;
  const std::string name(op.name);
  std::ifstream stream(folder / (name + ".json"));
  if (!stream) {
    std::cout << "Conformance." << name << ": no " << name << ".json in " << folder
              << "; `sh tests/conformance/make_cases.sh` makes it\n";
    tally.skip("all of them: no data", op.cases);
    return tally;
  }
  const auto json = nlohmann::ordered_json::parse(stream);
  const attn::SafetensorsFile file(folder / (name + ".safetensors"));
  for (const auto& entry : json) {
    Case c(entry.at("name").get<std::string>(), entry.at("attrs"), file);
    const std::string label = "Conformance." + name + "/" + c.name();
    try {
      const std::vector<std::string> failures = failures_of(c, *op.suite);
      ++(failures.empty() ? tally.passed : tally.failed);
      for (const std::string& failure : failures) {
        std::cout << label << ": FAILED: " << failure << '\n';
      }
    } catch (const Unsupported& reason) {
      tally.skip(c.name());
      std::cout << label << ": skipped: " << reason.what() << '\n';
    }
  }
  if (const int absent = op.cases - tally.total(); absent > 0) {
    tally.skip(std::to_string(absent) + " that the manifest does not list", absent);
  }
  return tally;
}

std::filesystem::path cases_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::filesystem::path(value != nullptr ? value : "");
  };
  if (const auto folder = variable("ATTN_CONFORMANCE_DIR"); !folder.empty()) return folder;
  const auto cache = variable("XDG_CACHE_HOME");
  return (cache.empty() ? variable("HOME") / ".cache" : cache) / "attn/onnx-1.23.0";
}

int report(const Operator& op) {
  const Tally tally = run(op, cases_folder());
  std::cout << "Conformance." << op.name << ": " << tally.passed << " passed, " << tally.failed
            << " failed, " << tally.skipped << " skipped (" << tally.skipped_names << ")\n";
  return tally.failed > 0 ? 1 : tally.passed > 0 ? 0 : kSkipped;
}

}  // namespace
}  // namespace attn_test

int main(int argc, char** argv) {
  const std::string_view name = argc == 2 ? argv[1] : "";
  for (const attn_test::Operator& op : attn_test::kOperators) {
    if (op.name != name) continue;
    try {
      return attn_test::report(op);
    } catch (const std::exception& error) {
      std::cerr << "Conformance." << name << ": FAILED: " << error.what() << '\n';
      return 1;
    }
  }
  std::cerr << "usage: conformance_test OPERATOR, one of";
  for (const attn_test::Operator& op : attn_test::kOperators) std::cerr << ' ' << op.name;
  std::cerr << '\n';
  return 2;
}
