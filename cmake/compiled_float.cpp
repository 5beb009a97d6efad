// attn::compiled: the tables for float, of every target.
#define ATTN_IMPLEMENTATION_FLOAT
#include "attn/attn.hpp"
