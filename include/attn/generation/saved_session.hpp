// save_session, load_session: a session's tokens, keys, values and states in a file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/generation/gpt_session.hpp"
#include "attn/io/safetensors.hpp"
#include "attn/io/safetensors/writer.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Logits (1, vocab_size) of a few tokens in a new session with the same model, options and element
/// type: a fingerprint that depends on every weight and option.
template <class T>
Tensor2<Accumulator<T>> probe_logits(const GptSession<T>& session) {
  constexpr index_t kTokens = 4;
  GptSession<T> probe(session.model(), 1, kTokens, session.options(),
                      session.caches()[0].options().element);
  Tensor2<index_t> ids({1, kTokens});
  for (index_t i = 0; i < kTokens; ++i) ids(0, i) = i % session.vocab_size();
  Tensor2<Accumulator<T>> logits({1, session.vocab_size()});
  probe.step(ids, logits);
  return logits;
}

/// Calls f(name, view) for all tensors of a cache with elements of type E, under the names in the
/// file.
template <class E, class T, class F>
void visit_cache(const KvCache<T>& cache, std::size_t layer, const F& f) {
  const std::string prefix = concat("layers.", layer, ".");
  if (cache.options().state_size > 0) return f(prefix + "state", cache.state());
  f(prefix + "keys", cache.template keys<E>());
  f(prefix + "values", cache.template values<E>());
  if (!cache.key_scales()) return;
  f(prefix + "key_scales", cache.key_scales());
  f(prefix + "value_scales", cache.value_scales());
}

template <class T>
void check_savable(std::string_view function, const GptSession<T>& session) {
  check_generation(function, "the session's batch", session.batch(), 1, 1);
  check_generation(function, "the window of the session's caches",
                   session.caches()[0].options().window, 0, 0);
}

/// The part of a file that belongs to one layer's cache.
template <class T, class E>
struct StoredCache {
  Tensor4<E> keys, values;
  Tensor3<T> key_scales, value_scales;
  Tensor2<Accumulator<T>> state;  ///< of a recurrent layer, instead of keys and values

  StoredCache(const SafetensorsFile& file, std::size_t layer, const KvCacheOptions& o,
              index_t length) {
    const auto load = [&]<class X, int Rank>(const char* part, Tensor<X, Rank>& to,
                                             const Shape<Rank>& shape) {
      const std::string name = concat("layers.", layer, ".", part);
      if (file.dtype(name) != dtype_of<X>()) {
        throw DTypeError(message("load_session", concat(quote(file.file_name()), ": ", quote(name)),
                                 concat("hold ", attn::name(dtype_of<X>()), ", the cache's type"),
                                 attn::name(file.dtype(name))));
      }
      file.check<X>(name, shape);
      to = file.load<X, Rank>(name);
    };
    if (o.state_size > 0) {
      load("state", state, Shape<2>{1, o.state_size});
      return;
    }
    load("keys", keys, Shape<4>{1, o.num_kv_heads, length, o.head_dim});
    load("values", values, Shape<4>{1, o.num_kv_heads, length, o.head_dim_v});
    if (!std::same_as<E, std::int8_t>) return;
    load("key_scales", key_scales, Shape<3>{1, o.num_kv_heads, length});
    load("value_scales", value_scales, Shape<3>{1, o.num_kv_heads, length});
  }
};

}  // namespace detail

/// Saves a session of one row, which has processed the first session.length() of ids, as a
/// safetensors file: these ids, keys and values as stored, states, and logits by which
/// load_session() recognises the model. Throws ValueError for fewer ids, more rows, and a session
/// that forgets keys or shares them (GptSession::fork()); IoError if the file cannot be written,
/// and then keeps the previous file.
template <class T>
void save_session(const std::filesystem::path& path, const GptSession<T>& session,
                  std::span<const index_t> ids) {
  detail::check_savable("save_session", session);
  const index_t length = session.length();
  detail::check_generation("save_session", "the number of ids", std::ssize(ids), length);
  const Tensor2<Accumulator<T>> probe = detail::probe_logits(session);
  std::vector<NamedTensor> tensors = {{"ids", TensorView1<const index_t>(ids.data(), {length})},
                                      {"probe", probe}};
  for (std::size_t n = 0; n < session.caches().size(); ++n) {
    const KvCache<T>& cache = session.caches()[n];
    detail::with_cache_element<T>(*cache.options().element, [&]<class E>(E) {
      detail::visit_cache<E>(cache, n, [&](std::string name, const auto& view) {
        tensors.emplace_back(std::move(name), view);
      });
    });
  }
  save_safetensors(path, tensors, {{"format", "attn session"}});
}

/// Restores what save_session() saved into a session of one row, replacing its state, and returns
/// the ids: decoding continues with the same bits. Throws IoError for a file that cannot be read,
/// is truncated or breaks the format; ValueError for a file of another model, other options or
/// another instruction set (whose bits differ), for ids outside the vocabulary, and if the session
/// has no room; ShapeError or DTypeError for another shape or cache element. On error the session
/// stays unchanged.
template <class T>
std::vector<index_t> load_session(const std::filesystem::path& path, GptSession<T>& session) {
  detail::check_savable("load_session", session);
  const SafetensorsFile file(path);
  const auto fails = [&](std::string_view expected, std::string_view found) {
    throw ValueError(message("load_session", detail::quote(file.file_name()), expected, found));
  };
  const auto format = file.metadata().find("format");
  if (format == file.metadata().end() || format->second != "attn session") {
    fails("be a saved session", "another file");
  }
  const Tensor1<index_t> ids = file.load<index_t, 1>("ids");
  const index_t length = ids.size();
  detail::check_generation("load_session", "the number of ids", length, 0, session.capacity());
  const index_t vocab_size = session.vocab_size();
  for (index_t i = 0; i < length; ++i) {
    if (ids(i) >= 0 && ids(i) < vocab_size) continue;
    fails(detail::concat("hold ids of 0 .. ", vocab_size - 1), std::to_string(ids(i)));
  }
  const std::span<KvCache<T>> caches = session.caches();
  detail::with_cache_element<T>(*caches[0].options().element, [&]<class E>(E) {
    std::vector<detail::StoredCache<T, E>> stored;
    for (std::size_t n = 0; n < caches.size(); ++n) {
      stored.emplace_back(file, n, caches[n].options(), length);
    }
    using Logit = Accumulator<T>;
    const Tensor2<Logit> found = file.load<Logit, 2>("probe"),
                         expected = detail::probe_logits(session);
    if (!std::equal(found.data(), found.data() + found.size(), expected.data(),
                    expected.data() + expected.size())) {
      fails("be of this model, these options and this instruction set", "others");
    }
    session.clear();
    for (std::size_t n = 0; n < caches.size(); ++n) {
      const detail::StoredCache<T, E>& one = stored[n];
      if (one.state) {
        caches[n].advance(length);
        copy(one.state.view(), caches[n].state());
        continue;
      }
      caches[n].append_stored(one.keys.view(), one.values.view(), one.key_scales.view(),
                              one.value_scales.view());
    }
  });
  return {ids.data(), ids.data() + length};
}

ATTN_NAMESPACE_END
