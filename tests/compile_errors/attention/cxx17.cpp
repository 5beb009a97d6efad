// error: attn needs C++20: compile with -std=c++20
// standard: 17
#include <attn/attn.hpp>
