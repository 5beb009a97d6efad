// error: tensors in files have elements of float, double, bfloat16, float16, bool or an integer
#include <attn/io.hpp>

auto f(const attn::SafetensorsFile& file) { return file.load<long double, 2>("weight"); }
