// .npy files: numpy's (make_arrays.py), attn's own, and unusual or invalid ones.
#include "attn/io/npy.hpp"

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

std::string path_of(const std::string& name) {
  return std::string(ATTN_TEST_DATA_DIR) + "/npy/" + name + ".npy";
}

template <class T>
void expect_counting(const Tensor3<T>& x) {
  ASSERT_EQ(x.shape(), (Shape<3>{2, 3, 4}));
  for (index_t i = 0; i < 24; ++i) {
    EXPECT_EQ(static_cast<double>(x.elements()[std::size_t(i)]), static_cast<double>(i));
  }
}

TEST(Npy, ReadsWhatNumpyWrote) {
  expect_counting(NpyArray(path_of("c_f4")).load<float, 3>());
  expect_counting(NpyArray(path_of("c_f4")).load<bfloat16, 3>());
  expect_counting(NpyArray(path_of("fortran_f8")).load<float, 3>());
  expect_counting(NpyArray(path_of("big_f4")).load<double, 3>());
  expect_counting(NpyArray(path_of("big_fortran_i2")).load<index_t, 3>());
  expect_counting(NpyArray(path_of("f2")).load<float, 3>());
  expect_counting(NpyArray(path_of("u8")).load<std::int8_t, 3>());
  EXPECT_TRUE((NpyArray(path_of("bool")).load<bool, 3>()(1, 2, 3)));
  EXPECT_EQ((NpyArray(path_of("scalar")).load<double, 1>()(0)), 7);
  EXPECT_EQ((NpyArray(path_of("empty")).load<float, 2>().shape()), (Shape<2>{0, 5}));
}

TEST(Npy, ViewsLieInTheFile) {
  NpyArray file(path_of("fortran_f8"));
  EXPECT_TRUE(file.is_fortran_order());
  EXPECT_EQ(file.dtype(), DType::F64);
  const NpyArray moved = std::move(file);
  const auto x = moved.view<double, 3>();
  EXPECT_EQ(x.strides(), (Shape<3>{1, 2, 6}));
  expect_counting(Tensor3<double>(x));
  const NpyArray plain(path_of("c_f4"));
  EXPECT_TRUE((plain.view<float, 3>().is_contiguous()));
}

TEST(Npy, ReadsWhatItWrites) {
  const attn_test::TempFolder folder;
  attn_test::Random random(1);
  const auto path = folder.path() / "x.npy";
  const auto x = random.tensor<double, 3>({3, 4, 5});
  save_npy(path, x.permute({2, 0, 1}));
  const NpyArray file(path);
  EXPECT_EQ(to_array(file.load<double, 3>()).data, to_array(x.permute({2, 0, 1})).data);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file.view<double, 3>().data()) % 64, 0u);
  const auto flags = folder.path() / "flags.npy";  // Windows may not replace a mapped file
  save_npy(flags, Tensor1<bool>({2}, {true, false}));
  EXPECT_TRUE((NpyArray(flags).load<bool, 1>()(0)));
  EXPECT_THROW(save_npy(path, Tensor1<bfloat16>({1})), DTypeError);
}

TEST(NpyErrors, OtherTypesShapesAndOrders) {
  const NpyArray file(path_of("c_f4"));
  EXPECT_THROW((file.view<double, 3>()), DTypeError);
  EXPECT_THROW((file.load<int, 3>()), DTypeError);
  EXPECT_TRUE(contains(error_of<ShapeError>([&] { file.load<float, 2>(); }), "have rank 2"));
  EXPECT_TRUE(contains(error_of<ValueError>([] {
                         const NpyArray big(path_of("big_f4"));
                         big.view<float, 3>();
                       }),
                       "little-endian to be viewed"));
  EXPECT_TRUE(contains(error_of<DTypeError>([] { NpyArray(path_of("text")); }), "found \"<U1\""));
}

std::string file_of(std::string header, std::size_t data, int version = 1) {
  std::string text = std::string("\x93NUMPY") + static_cast<char>(version) + '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) {
    text += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  }
  return text + header + std::string(data, '\1');
}

NpyArray array_of(const std::string& text) { return NpyArray(std::as_bytes(std::span(text))); }

/// Headers that numpy reads, written by numpy of Python 2, by other libraries or by hand.
TEST(Npy, ReadsOtherHeadersThatNumpyReads) {
  const auto dtype_of = [](const std::string& descr) {
    const std::string header =
        "{'descr': " + descr + ", 'fortran_order': False, 'shape': (0,), }\n";
    return array_of(file_of(header, 0)).dtype();
  };
  const std::pair<DType, std::vector<std::string>> types[] = {
      {DType::BOOL, {"'|b1'", "'b1'", "'<b1'", "'?'", "'|?'", "'bool'"}},
      {DType::U8, {"'|u1'", "'u1'", "'<u1'", "'>u1'", "'B'", "'uint8'", "'ubyte'"}},
      {DType::I8, {"'|i1'", "'=i1'", "'b'", "'int8'"}},
      {DType::U16, {"'<u2'", "'uint16'", "'H'"}},
      {DType::I32, {"'<i4'", "'=i4'", "'i'", "'<i'", "'int32'", "'intc'"}},
      {DType::I64, {"'<i8'", "'l'", "'q'", "'int64'", "'int'", "u'<i8'"}},
      {DType::F16, {"'<f2'", "'float16'", "'half'", "'e'", "'>e'"}},
      {DType::F32,
       {"'<f4'", "'=f4'", "'|f4'", "'f4'", "'f'", "'<f'", "u'<f4'", "U\"<f4\"", "r'<f4'",
        "'float32'", "'single'", "\t'<f4'\t", "\f\r\n'<f4'"}},
      {DType::F64, {"'<f8'", "'float64'", "'double'", "'float'", "u'd'"}},
  };
  for (const auto& [dtype, descrs] : types) {
    for (const std::string& descr : descrs) EXPECT_EQ(dtype_of(descr), dtype) << descr;
  }
  for (const char* descr : {"'<float32'", "'f3'", "'F4'", "'<c8'", "'@f4'", "'<f4 '",
                            "'longdouble'", "'<V4'", "'3f4'"}) {
    EXPECT_THROW(dtype_of(descr), DTypeError) << descr;
  }
  EXPECT_THROW(dtype_of("b'<f4'"), IoError);

  const std::string six = "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3)}";
  for (int version : {1, 2, 3}) {
    const std::string text = file_of(six, 24, version);
    EXPECT_TRUE(array_of(text).is_fortran_order());
    EXPECT_EQ(array_of(text).shape(), (std::vector<index_t>{2, 3}));
  }
  for (const char* header :
       {"{u'descr': u'<f4', u'fortran_order': True, u'shape': (2L, 3L), }",
        "\t{\"shape\"\t:\t(2 ,\t3 , )\t,\n'fortran_order':\rTrue,'descr':\f'f4'\t}\t\r\n",
        "{'descr':'<f4','fortran_order':True,'shape':(2,3)}"}) {
    EXPECT_EQ(array_of(file_of(header, 24)).shape(), (std::vector<index_t>{2, 3})) << header;
  }
}

/// numpy.save() twice to one open file.
TEST(Npy, ReadsArraysOneAfterTheOther) {
  const auto header = [](std::string shape) {
    return "{'descr': '|u1', 'fortran_order': False, 'shape': " + shape + ", }\n";
  };
  const std::string texts[] = {file_of(header("(3,)"), 3), file_of(header("(0, 2)"), 0, 2),
                               file_of(header("()"), 1)};
  const attn_test::TempFolder folder;
  const auto path = folder.path() / "three.npy";
  AtomicFile file(path);
  for (const std::string& text : texts) file.write(std::as_bytes(std::span(text)));
  file.commit();

  const NpyArray first(path);
  EXPECT_EQ(first.shape(), (std::vector<index_t>{3}));
  EXPECT_EQ((first.load<std::uint8_t, 1>().shape()), (Shape<1>{3}));
  ASSERT_EQ(first.next_offset(), texts[0].size());
  const NpyArray second(path, *first.next_offset());
  EXPECT_EQ(second.shape(), (std::vector<index_t>{0, 2}));
  ASSERT_EQ(second.next_offset(), texts[0].size() + texts[1].size());
  const NpyArray third(path, *second.next_offset());
  EXPECT_EQ((third.load<std::uint8_t, 1>()(0)), 1);
  EXPECT_EQ(third.next_offset(), std::nullopt);

  const std::size_t end = *second.next_offset() + texts[2].size();
  EXPECT_THROW(NpyArray(path, 1), IoError);
  EXPECT_THROW(NpyArray(path, end), IoError);
  EXPECT_TRUE(contains(error_of<ValueError>([&] { NpyArray(path, end + 1); }),
                       "three.npy: offset must lie within"));
  EXPECT_EQ(array_of(texts[0] + texts[1]).next_offset(), texts[0].size());
  EXPECT_THROW(array_of(texts[0] + texts[1].substr(0, 5)), IoError);
  EXPECT_THROW(array_of(texts[0] + "other bytes"), IoError);
}

void read(const std::string& text) {
  // Exact size on the heap, so that a sanitizer reports reads past the end.
  const std::vector<char> bytes(text.begin(), text.end());
  const NpyArray array(std::as_bytes(std::span(bytes)));
  if (array.shape().size() == 1 && array.dtype() == DType::F32) array.load<float, 1>();
}

TEST(NpyErrors, HostileFiles) {
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }";
  read(file_of(good, 12));
  for (std::size_t n = 0; n < file_of(good, 12).size(); ++n) {
    EXPECT_THROW(read(file_of(good, 12).substr(0, n)), IoError) << n;
  }
  EXPECT_THROW(read(file_of(good, 13)), IoError);
  const auto bad = [](std::string descr, std::string order, std::string shape, std::string more) {
    return file_of(
        "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + more, 12);
  };
  for (const char* shape :
       {"(-1,)", "(9223372036854775807, 4)", "(99999999999999999999,)", "(3", "3", "(3)",
        "(0, 4611686018427387904, 4)", "(1e3,)", "((3,),)", "(3,,)"}) {
    EXPECT_THROW(read(bad("'<f4'", "False", shape, ", }")), IoError) << shape;
  }
  EXPECT_THROW(read(bad("'<f4'", "0", "(3,)", "}")), IoError);
  EXPECT_THROW(read(bad("'<f4", "True", "(3,)", "}")), DTypeError);  // up to the next quote
  EXPECT_THROW(read(file_of("{'descr': '<f4", 12)), IoError);
  EXPECT_THROW(read(bad("'<f4'", "True", "(3,)", ", 'shape': (3,)}")), IoError);
  EXPECT_THROW(read(bad("'<f4'", "True", "(3,)", "} + x")), IoError);
  EXPECT_THROW(read(bad("'|O'", "False", "(3,)", "}")), DTypeError);
  EXPECT_THROW(read(bad("[('a', '<f4')]", "False", "(3,)", "}")), DTypeError);
  EXPECT_THROW(read(bad("''", "False", "(3,)", "}")), DTypeError);
  // One byte changed: an error or an array, no crash.
  const std::string text = file_of(good, 12);
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = text;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      try {
        read(changed);
      } catch (const std::exception&) {
      }
    }
  }
}

}  // namespace
}  // namespace attn
