// store_rows: writes keys or values to a KV cache, rounded or quantised to its element.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/cache/kv_storage.hpp"
#include "attn/kernels/quantized/quantize_rows.hpp"
#include "attn/kernels/rows/convert.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Writes `rows` to the last positions of keys or values; `scale` is the kind of their scales.
template <class T>
void store_rows(KvStorage& storage, const TensorView4<const T>& rows, KvRow kind, KvRow scale,
                const Execution& execution) {
  const index_t n = rows.extent(2);
  with_cache_element<T>(*storage.options().element, [&]<class E>(E) {
    const TensorView4<E> to = storage.template last<E>(kind, n);
    if constexpr (std::same_as<E, std::int8_t>) {
      quantize_rows(rows, to, storage.template last<T>(scale, n).select(3, 0), execution);
    } else {
      convert(rows, to, execution);
    }
  });
}

}  // namespace detail

ATTN_NAMESPACE_END
