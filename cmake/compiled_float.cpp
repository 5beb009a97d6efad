// attn::compiled: the tables for float, of every target.
#define ATTN_COMPILED_LIBRARY
#include "compiled_tables.hpp"

ATTN_EXPORT_TABLES(float)
ATTN_EXPORT_TABLE(QuantizedProducts, float)
