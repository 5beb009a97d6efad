// The kernels of a program whose other files define ATTN_COMPILED.
#define ATTN_IMPLEMENTATION
#include "attn_single.hpp"
