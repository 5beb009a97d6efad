// attend_tree(): attention of a tree of tokens, path by path.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <vector>

#include "attn/attention/kv_cache.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Appends keys and values (batch, num_kv_heads, n, dim) of a tree to a cache without a window.
/// Before, calls attend(begin, end) for each run of tokens [begin, end) in which every token
/// follows the one before; the cache then holds only the keys before the tree, those of the run's
/// ancestors and those of the run. So each token has the bits of a call in which no other path
/// exists, which a mask would not give: sums over keys depend on where keys lie. Throws ValueError
/// for functors, whose queries would count from each run.
template <class T, class Attend, class... Functors>
void attend_tree(KvCache<T>& cache, TensorView1<const index_t> parents, const TensorView4<T>& k,
                 const TensorView4<T>& v, const Execution& execution, const Attend& attend,
                 const Functors&...) {
  if (sizeof...(Functors) > 0) {
    throw ValueError(message("attend_tree", "functors", "be none with parents", "some"));
  }
  const index_t before = cache.length(), n = parents.extent(0);
  const auto append = [&](index_t begin, index_t end) {
    cache.append(k.slice(2, begin, end), v.slice(2, begin, end), execution);
  };
  std::vector<index_t> held;  // tokens of the tree in the cache
  for (index_t begin = 0, end = 0; begin < n; begin = end) {
    end = begin + 1;
    while (end < n && parents(end) == end - 1) ++end;
    std::vector<index_t> path;  // the ancestors of the run
    for (index_t at = parents(begin); at >= 0; at = parents(at)) path.push_back(at);
    std::reverse(path.begin(), path.end());
    const auto other = std::mismatch(path.begin(), path.end(), held.begin(), held.end()).first;
    cache.truncate_to(before + (other - path.begin()));
    std::for_each(other, path.end(), [&](index_t at) { append(at, at + 1); });
    append(begin, end);
    attend(begin, end);
    for (index_t at = begin; at < end; ++at) path.push_back(at);
    held = std::move(path);
  }
  if (std::ssize(held) == n) return;  // one path, in order
  cache.truncate_to(before);
  append(0, n);
}

}  // namespace detail

ATTN_NAMESPACE_END
