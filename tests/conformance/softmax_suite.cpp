// Conformance suite Softmax, along any axis.
#include "attn/kernels/softmax.hpp"

#include "conformance/cases.hpp"

namespace attn_test {
namespace {

void check_softmax(Case& c) {
  on_each_isa(c, [&]<class T>(T, attn::Isa isa) {
    const auto x = c.load<T>(in("x"));
    const std::size_t axis = axis_of(c, x.shape.size());
    const Array<T> moved = axis_last(x, axis);
    const Array<T> rows = rows_from(moved, moved.shape.size() - 1);
    const auto y = to_array(attn::softmax(rows.template view<2>(), {.isa = isa}));
    expect_output(c, "y", axis_last(y.reshaped(moved.shape), axis), isa);
  });
}

}  // namespace

const Suite softmax_suite{{"axis"}, check_softmax};

}  // namespace attn_test
