// attn::compiled: the kernels for float, of every instruction set.
#define ATTN_COMPILED_LIBRARY float
#include "attn/attn.hpp"
