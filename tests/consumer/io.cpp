// A file of a consumer that also reads weights: attn/io.hpp must come with the component `io`.
#include <attn/io.hpp>
