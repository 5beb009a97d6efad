// attn::compiled: the tables between elements, of every target.
#define ATTN_COMPILED_LIBRARY
#include "compiled_tables.hpp"

ATTN_EXPORT_CONVERSIONS(float, double)
ATTN_EXPORT_CONVERSIONS(attn::bfloat16, float)
ATTN_EXPORT_CONVERSIONS(attn::bfloat16, double)
ATTN_EXPORT_CONVERSIONS(attn::float16, float)
ATTN_EXPORT_CONVERSIONS(attn::float16, double)
ATTN_EXPORT_CONVERSIONS(attn::bfloat16, attn::float16)

// Float queries on keys and values of these; of 16 bits, queries too.
ATTN_EXPORT_PAIR(Attention, attn::bfloat16, float)
ATTN_EXPORT_PAIR(Attention, attn::float16, float)
ATTN_EXPORT_PAIR(Attention, std::int8_t, float)
ATTN_EXPORT_PAIR(RowQuantization, float, std::int8_t)
