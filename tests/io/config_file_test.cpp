// ConfigFile: values by key with types and ranges, nested objects, unread keys, hostile text.
#include "attn/io/config_file.hpp"

#include <fstream>
#include <optional>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;

TEST(ConfigFile, ValuesByKey) {
  const ConfigFile config(R"({"n": 3, "x": 2.5, "ok": true, "name": "abc", "none": null,
                              "inner": {"a": 1, "b": 2}, "list": ["u", "v"], "sizes": [4, 5]})",
                          "c.json");
  EXPECT_EQ(config.get<index_t>("n"), 3);
  EXPECT_EQ(config.get<double>("n"), 3.0);
  EXPECT_EQ(config.get<double>("x"), 2.5);
  EXPECT_TRUE(config.get<bool>("ok"));
  EXPECT_EQ(config.get<std::string>("name"), "abc");
  EXPECT_EQ(config.get<index_t>("none", 7), 7);
  EXPECT_EQ(config.get<index_t>("missing", 8), 8);
  EXPECT_EQ(config.texts("list"), (std::vector<std::string>{"u", "v"}));
  EXPECT_EQ(config.counts("sizes"), (std::vector<index_t>{4, 5}));
  EXPECT_EQ(config.counts("n"), (std::vector<index_t>{3}));
  const ConfigFile inner = config.object("inner");
  EXPECT_EQ(inner.count("a"), 1);
  EXPECT_EQ(inner.unread(), (std::vector<std::string>{"inner.b"}));
  EXPECT_TRUE(config.unread().empty());
  EXPECT_EQ(ConfigFile(R"({"b": 1, "a": null, "c": 2})", "c").unread(),
            (std::vector<std::string>{"b", "c"}));
}

TEST(ConfigFile, ListsAndObjectsWithin) {
  std::optional<ConfigFile> inner;
  {
    const ConfigFile config(R"({"ids": [0, 7], "id": 0, "pairs": [["a", "b"], []], "text": "t",
                                "texts": ["t"], "vocab": {"b": 1, "a": 0}, "steps": [{"x": 1}, {}]})",
                            "c.json");
    EXPECT_EQ(config.indices("ids"), (std::vector<index_t>{0, 7}));
    EXPECT_EQ(config.indices("id"), (std::vector<index_t>{0}));
    EXPECT_EQ(config.text_lists("pairs"), (std::vector<std::vector<std::string>>{{"a", "b"}, {}}));
    EXPECT_TRUE(config.holds_text("text") && config.holds_text("texts"));
    EXPECT_FALSE(config.holds_text("pairs") || config.holds_text("id") || config.holds_text("no"));
    EXPECT_EQ(config.named_indices("vocab"),
              (std::vector<std::pair<std::string, index_t>>{{"a", 0}, {"b", 1}}));
    const std::vector<ConfigFile> steps = config.objects("steps");
    ASSERT_EQ(steps.size(), 2u);
    inner = steps[0];
    const auto error = [&](auto f) { return error_of<ValueError>([&] { f(config); }); };
    EXPECT_TRUE(contains(error([&](auto&) { steps[1].count("x"); }), "key \"steps.1.x\""));
    EXPECT_TRUE(contains(error([](auto& c) { c.indices("texts"); }), "be whole numbers from 0 on"));
    EXPECT_TRUE(contains(error([](auto& c) { c.text_lists("texts"); }), "be a list of lists"));
    EXPECT_TRUE(contains(error([](auto& c) { c.named_indices("ids"); }), "be an object"));
    EXPECT_TRUE(contains(error([](auto& c) { c.objects("texts"); }), "be a list of objects"));
  }
  // A nested object keeps the file's values alive.
  EXPECT_EQ(inner->count("x"), 1);
}

TEST(ConfigFile, ErrorsNameFileAndKey) {
  const ConfigFile config(R"({"n": 3, "x": 2.5, "big": 9223372036854775808, "neg": -1,
                              "list": [1, "u"], "inner": {"a": "b"}})",
                          "c.json");
  const auto error = [&](auto f) { return error_of<ValueError>([&] { f(config); }); };
  EXPECT_EQ(error([](auto& c) { c.template get<index_t>("m"); }),
            "[ConfigFile] \"c.json\": key \"m\" must be given; found none.");
  EXPECT_EQ(error([](auto& c) { c.template get<index_t>("x"); }),
            "[ConfigFile] \"c.json\": key \"x\" must be a whole number that fits; found \"2.5\".");
  EXPECT_TRUE(contains(error([](auto& c) { c.template get<index_t>("big"); }), "that fits"));
  EXPECT_TRUE(contains(error([](auto& c) { c.count("neg"); }), "lie in 1 .. 2^24; found -1"));
  EXPECT_TRUE(contains(error([](auto& c) { c.template get<bool>("n"); }), "be true or false"));
  EXPECT_TRUE(contains(error([](auto& c) { c.template get<std::string>("n"); }), "be a text"));
  EXPECT_TRUE(contains(error([](auto& c) { c.texts("list"); }), "be a list of texts; found \"1\""));
  EXPECT_TRUE(contains(error([](auto& c) { c.counts("list"); }), "be sizes of 1 .. 2^24"));
  EXPECT_TRUE(contains(error([](auto& c) { c.object("n"); }), "be an object"));
  EXPECT_TRUE(contains(error([](auto& c) { c.object("inner").count("a"); }), "key \"inner.a\""));
}

TEST(ConfigFile, TextsThatAreNoObject) {
  const auto fails = [](std::string_view text, std::string_view part) {
    const std::string error = error_of<IoError>([&] { ConfigFile(text, "c.json"); });
    EXPECT_TRUE(contains(error, part)) << text.substr(0, 20);
    EXPECT_TRUE(contains(error, "c.json"));
    EXPECT_LT(error.size(), 500u);
  };
  fails("", "be JSON");
  fails("{\"a\": 1,}", "be JSON");
  fails("{\"a\": \"\xff\"}", "be JSON");
  fails("3", "hold a JSON object; found number");
  fails("{\"a\": {\"b\": 1, \"b\": 2}}", "key \"b\" again");
  fails(std::string(200000, '['), "be JSON");
  fails("{\"" + std::string(100000, 'x') + "\": }", "be JSON");
}

}  // namespace
}  // namespace attn
