// attn::compiled: the tables for double, of every target.
#define ATTN_IMPLEMENTATION_DOUBLE
#include "attn/attn.hpp"
