// attn::compiled: the tables for double, of every target.
#define ATTN_COMPILED_LIBRARY
#include "compiled_tables.hpp"

ATTN_EXPORT_TABLES(double)
