// attn::compiled: the tables between elements, of every target.
#define ATTN_COMPILED_LIBRARY
#include "compiled_tables.hpp"

ATTN_EXPORT_CONVERSIONS(float, double)
ATTN_EXPORT_CONVERSIONS(attn::bfloat16, float)
ATTN_EXPORT_CONVERSIONS(attn::bfloat16, double)
ATTN_EXPORT_CONVERSIONS(attn::float16, float)
ATTN_EXPORT_CONVERSIONS(attn::float16, double)
ATTN_EXPORT_CONVERSIONS(attn::bfloat16, attn::float16)
