// attn::compiled: the tables between elements, of every target.
#define ATTN_IMPLEMENTATION_ELEMENTS
#include "attn/attn.hpp"
