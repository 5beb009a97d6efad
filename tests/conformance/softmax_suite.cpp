// Conformance suites Softmax and LogSoftmax, along any axis.
#include "attn/kernels/rows/softmax.hpp"

#include "conformance/cases.hpp"

namespace attn_test {
namespace {

/// Calls function(rows, isa) along the axis of the case.
template <class F>
void check(Case& c, F function) {
  on_each_isa(c, [&]<class T>(T, attn::Isa isa) {
    const auto x = c.load<T>(in("x"));
    const std::size_t axis = axis_of(c, x.shape.size());
    const Array<T> moved = axis_last(x, axis);
    const Array<T> rows = rows_from(moved, moved.shape.size() - 1);
    const auto y = to_array(function(rows.template view<2>(), attn::Execution{.isa = isa}));
    expect_output(c, "y", axis_last(y.reshaped(moved.shape), axis), isa);
  });
}

void check_softmax(Case& c) {
  check(c, [](const auto& x, const auto& execution) { return attn::softmax(x, execution); });
}

void check_log_softmax(Case& c) {
  check(c, [](const auto& x, const auto& execution) { return attn::log_softmax(x, execution); });
}

}  // namespace

const Suite softmax_suite{{"axis"}, check_softmax};
const Suite log_softmax_suite{{"axis"}, check_log_softmax};

}  // namespace attn_test
