// `golden_test MANIFEST` runs every case of MANIFEST.json against MANIFEST.safetensors.
//
// Reads both from the folder in the environment variable ATTN_GOLDEN_DIR, or from tests/data. The
// last line is "Golden.MANIFEST: N passed, M failed, K skipped (names), G gradients"; the exit
// status is 1 if a case failed or none was listed.
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "golden/case.hpp"

namespace attn_test {
namespace {

const Suite* find_suite(std::string_view manifest) {
  const std::map<std::string_view, const Suite*> suites{
      {"sdpa", &sdpa_suite},
      {"multihead_attention", &multihead_attention_suite},
      {"transformer_layers", &transformer_layers_suite},
      {"tutorials", &tutorials_suite},
      {"training", &training_suite}};
  const auto at = suites.find(manifest);
  return at == suites.end() ? nullptr : at->second;
}

/// By the README of the golden files, text attributes are comments unless they are known options.
void require_known_attributes(const Case& c, const Suite& suite) {
  for (const auto& [key, value] : c.attributes().items()) {
    if (suite.attributes.contains(key) || value.is_string() || value.is_null()) continue;
    throw Unsupported("attribute '" + key + "' = " + value.dump() + " is not known");
  }
}

/// Errors to print; empty if the case passed. Throws Unsupported.
std::vector<std::string> failures_of(Case& c, const Suite& suite) {
  try {
    require_known_attributes(c, suite);
    suite.check(c);
  } catch (const Unsupported&) {
    throw;
  } catch (const std::exception& error) {
    return {error.what()};
  }
  if (const auto unread = c.unread(); !unread.empty()) {
    std::string names;
    for (const std::string& tensor : unread) names += " '" + tensor + "'";
    throw Unsupported("unused tensors:" + names);
  }
  if (c.checks() == 0) return {"nothing to compare with: the case has no result"};
  return c.failures();
}

struct Tally {
  int passed = 0, failed = 0, skipped = 0, gradients = 0;
  std::string skipped_names;
};

int run(const std::string& manifest, const Suite& suite) {
  const char* other = std::getenv("ATTN_GOLDEN_DIR");
  const std::filesystem::path folder =
      other != nullptr && *other != '\0' ? other : ATTN_TEST_DATA_DIR;
  std::ifstream stream(folder / (manifest + ".json"));
  if (!stream) throw std::runtime_error("cannot read " + (folder / (manifest + ".json")).string());
  const auto json = nlohmann::ordered_json::parse(stream);
  const attn::SafetensorsFile file(folder / (manifest + ".safetensors"));

  Tally tally;
  for (const auto& [key, attributes] : json.at("cases").items()) {
    // Cases by name, or a list of cases with names.
    const std::string name =
        json.at("cases").is_array() ? attributes.at("name").get<std::string>() : key;
    Case c(name, attributes, file);
    const std::string label = "Golden." + manifest + "/" + name;
    try {
      const std::vector<std::string> failures = failures_of(c, suite);
      ++(failures.empty() ? tally.passed : tally.failed);
      tally.gradients += c.gradients();
      for (const std::string& failure : failures) {
        std::cout << label << ": FAILED: " << failure << '\n';
      }
    } catch (const Unsupported& reason) {
      tally.skipped_names += (tally.skipped++ > 0 ? ", " : "") + name;
      std::cout << label << ": skipped: " << reason.what() << '\n';
    }
  }
  const bool any = tally.passed + tally.failed + tally.skipped > 0;
  if (!any) std::cout << "Golden." << manifest << ": FAILED: the manifest lists no case\n";
  std::cout << "Golden." << manifest << ": " << tally.passed << " passed, " << tally.failed
            << " failed, " << tally.skipped << " skipped (" << tally.skipped_names << "), "
            << tally.gradients << " gradients\n";
  return any && tally.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace attn_test

int main(int argc, char** argv) {
  const std::string manifest = argc == 2 ? argv[1] : "";
  const attn_test::Suite* suite = attn_test::find_suite(manifest);
  if (suite == nullptr) {
    std::cerr
        << "usage: golden_test sdpa|multihead_attention|transformer_layers|tutorials|training\n";
    return 2;
  }
  try {
    return attn_test::run(manifest, *suite);
  } catch (const std::exception& error) {
    std::cerr << "Golden." << manifest << ": FAILED: " << error.what() << '\n';
    return 1;
  }
}
