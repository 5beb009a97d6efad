// Prints the arrays of .npy files, for npy_headers.py: read_npy FILE...
#include <cstdio>

#include "attn/io/npy.hpp"

namespace {

template <class T, int Rank>
void print_values(const attn::NpyArray& array) {
  const attn::Tensor<T, Rank> values = array.load<T, Rank>();
  for (T value : values.elements()) std::printf(" %.17g", static_cast<double>(value));
}

template <int Rank>
void print_values(const attn::NpyArray& array) {
  if (array.dtype() == attn::DType::BOOL) {
    print_values<bool, Rank>(array);
  } else if (attn::name(array.dtype()).starts_with('F')) {
    print_values<double, Rank>(array);
  } else {
    print_values<attn::index_t, Rank>(array);
  }
}

void print(const attn::NpyArray& array) {
  std::printf("%s %d", std::string(attn::name(array.dtype())).c_str(), array.is_fortran_order());
  for (attn::index_t extent : array.shape()) std::printf(" %td", extent);
  std::printf(":");
  switch (array.shape().size()) {
    case 0:
    case 1:
      print_values<1>(array);
      break;
    case 2:
      print_values<2>(array);
      break;
    default:
      print_values<3>(array);
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    try {
      for (std::optional<std::size_t> at = 0; at;) {
        const attn::NpyArray array(argv[i], *at);
        print(array);
        at = array.next_offset();
      }
    } catch (const std::exception& error) {
      std::printf("error: %s\n", error.what());
    }
    std::printf("end of file\n");
  }
}
