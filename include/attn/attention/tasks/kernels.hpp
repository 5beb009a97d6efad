// ForwardKernels: the kernel tables of one call.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <new>
#include <type_traits>

#include "attn/attention/rows/row_kernels.hpp"
#include "attn/attention/tasks/score_tile.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
struct CodeKernels;
template <class T>
struct PairKernels;
template <class T>
struct ForwardTask;

/// Memory in which a task constructs its ScorePath object without an allocation.
using PathMemory = std::array<std::byte, 512>;

/// The arithmetic of the tiled path: in T, in int8, or in pairs of bfloat16. Reached through
/// pointers, so that a program compiles only the paths that its element types and options name.
template <class T>
struct TiledProducts {
  index_t tile_rows;  ///< queries of a tile
  /// Constructs the path of `task` in `memory`; it is trivially destructible.
  ScorePath<T>& (*make_path)(PathMemory& memory, const ForwardTask<T>& task);
  const CodeKernels<T>* codes = nullptr;  ///< for int8 products
  const PairKernels<T>* pairs = nullptr;  ///< if the target has pair products
};

template <class Path, class T>
ScorePath<T>& make_path(PathMemory& memory, const ForwardTask<T>& task) {
  static_assert(sizeof(Path) <= sizeof(PathMemory) && std::is_trivially_destructible_v<Path>);
  return *::new (memory.data()) Path(task);
}

/// The tables of the instruction set that one call runs on.
template <class T>
struct ForwardKernels {
  const RowKernels<T>& rows;
  const ElementKernels<T>&own, &of_queries, &of_keys;  ///< rows of T; of q and out; of k and v
  TiledProducts<T> products;
};

}  // namespace detail

ATTN_NAMESPACE_END
