// attn::compiled: the kernels for double, of every instruction set.
#define ATTN_COMPILED_LIBRARY double
#include "attn/attn.hpp"
