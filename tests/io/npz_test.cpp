// .npz files: numpy's, stored and compressed, attn's own, and damaged ones. Needs zlib.
#include "attn/io/npz.hpp"

#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "support/array.hpp"
#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::to_array;

std::string data_path(const std::string& name) {
  return std::string(ATTN_TEST_DATA_DIR) + "/npy/" + name;
}

TEST(Npz, ReadsWhatNumpyWrote) {
  for (const char* name : {"stored.npz", "compressed.npz"}) {
    const NpzFile file(data_path(name));
    EXPECT_EQ(file.names(), (std::vector<std::string>{"a", "b"}));
    const auto a = file.load<double, 3>("a");
    EXPECT_EQ(a(1, 2, 3), 23);
    EXPECT_FALSE(file.contains("a.npy"));
  }
  const NpzFile compressed(data_path("compressed.npz"));
  EXPECT_EQ(compressed.array("b").shape(), (std::vector<index_t>{100, 1000}));
  EXPECT_EQ((NpzFile(data_path("stored.npz")).load<index_t, 3>("b")(0, 1, 0)), 4);
}

TEST(Npz, ReadsWhatItWrites) {
  const attn_test::TempFolder folder;
  attn_test::Random random(1);
  const auto path = folder.path() / "x.npz";
  const auto x = random.tensor<float, 2>({3, 40});
  const Tensor1<index_t> y({2}, {-1, 5});
  save_npz(path, {{"x", x.transpose(0, 1)}, {"layer/\xC3\xA4", y}});
  const NpzFile file(path);
  EXPECT_EQ(file.names(), (std::vector<std::string>{"layer/\xC3\xA4", "x"}));
  EXPECT_EQ(to_array(file.load<float, 2>("x")).data, to_array(x.transpose(0, 1)).data);
  EXPECT_EQ((file.load<index_t, 1>("layer/\xC3\xA4")(1)), 5);
  save_npz(path, std::initializer_list<NamedTensor>{});
  EXPECT_TRUE(NpzFile(path).names().empty());
}

TEST(NpzErrors, NamesAndTypes) {
  const attn_test::TempFolder folder;
  const auto path = folder.path() / "x.npz";
  const Tensor1<float> x({1});
  EXPECT_TRUE(contains(error_of<ValueError>([&] {
                         save_npz(path, {{"x", x}, {"x", x}});
                       }),
                       "[save_npz] every name must occur once"));
  EXPECT_THROW(save_npz(path, {{"\xFF", x}}), ValueError);
  EXPECT_THROW(save_npz(path, {{"x", Tensor1<bfloat16>({1})}}), DTypeError);
  EXPECT_FALSE(std::filesystem::exists(path));
  const NpzFile file(data_path("stored.npz"));
  EXPECT_TRUE(
      contains(error_of<ValueError>([&] { file.array("c"); }), "none of that name among 2"));
}

void read(std::span<const char> bytes) {
  const NpzFile file(std::as_bytes(bytes));
  for (const std::string& name : file.names()) file.array(name);
}

TEST(NpzErrors, DamagedFiles) {
  int refused = 0;
  for (const char* name : {"stored.npz", "compressed.npz"}) {
    std::ifstream stream(data_path(name), std::ios::binary);
    const std::vector<char> whole{std::istreambuf_iterator<char>(stream), {}};
    read(whole);
    for (std::size_t n = 0; n < whole.size(); ++n) {
      // Exact size on the heap, so that a sanitizer reports reads past the end.
      const std::vector<char> cut(whole.begin(), whole.begin() + std::ptrdiff_t(n));
      EXPECT_THROW(read(cut), IoError) << n;
    }
    for (std::size_t at = 0; at < whole.size(); ++at) {
      for (int bit : {0, 3, 7}) {
        std::vector<char> changed = whole;
        changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
        try {
          read(changed);
        } catch (const std::exception&) {
          ++refused;
        }
      }
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace attn
