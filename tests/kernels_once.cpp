// The kernels' instances for all tests: the one file of them that compiles kernels.
#define ATTN_TEST_KERNELS_HERE
#include "kernels_once.hpp"

ATTN_NAMESPACE_BEGIN
namespace detail {
ATTN_TEST_KERNELS(, float)
ATTN_TEST_KERNELS(, double)
}  // namespace detail
ATTN_NAMESPACE_END
