// agree(): compares the arguments of a call on all ranks: either every rank throws or none.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "attn/core/error.hpp"
#include "attn/core/view.hpp"
#include "attn/distributed/communicator.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// A hash of numbers and bytes in order. Sequences that differ in one number have different hashes.
class Digest {
 public:
  explicit Digest(std::uint64_t start = 0xcbf29ce484222325u) : value_(start) {}

  Digest& take(std::uint64_t number) {
    value_ = (value_ ^ number) * 0x100000001b3u;
    value_ ^= value_ >> 29;
    return *this;
  }
  Digest& take(std::span<const std::byte> bytes) {
    take(std::uint64_t{bytes.size()});
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data() + at, (std::min)(sizeof word, bytes.size() - at));
      take(word);
    }
    return *this;
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_;
};

/// Named arguments that must be equal on every rank, in a fixed order.
class AgreedFields {
 public:
  static constexpr std::size_t kMax = 64;

  /// Adds a number, which errors print.
  void add(std::string_view name, index_t value) {
    fields_.push_back({std::string(name), static_cast<std::uint64_t>(value), true});
  }
  void add(std::string_view name, double value) {
    fields_.push_back({std::string(name), std::bit_cast<std::uint64_t>(value), false});
  }
  void add(std::string_view name, const Digest& digest) {
    fields_.push_back({std::string(name), digest.value(), false});
  }
  /// Adds the shape of a view and a hash of its elements.
  template <class T, int Rank>
  void add(std::string_view name, const TensorView<T, Rank>& x) {
    Digest digest = x.data() != nullptr ? Digest() : Digest(0);
    for (index_t extent : x.shape()) digest.take(static_cast<std::uint64_t>(extent));
    Shape<Rank> at{};
    for (index_t n = 0; x.data() != nullptr && n < size_of(x.shape()); ++n) {
      index_t rest = n;
      for (std::size_t axis = at.size(); axis-- > 0;) {
        at[axis] = rest % x.shape()[axis];
        rest /= x.shape()[axis];
      }
      const std::remove_const_t<T> element = *x.at_index(at);
      std::uint64_t bits = 0;
      std::memcpy(&bits, &element, sizeof element);
      digest.take(bits);
    }
    add(name, digest);
  }

  struct Field {
    std::string name;
    std::uint64_t value;
    bool is_number;
  };
  const std::vector<Field>& all() const { return fields_; }

 private:
  std::vector<Field> fields_;
};

/// The first exchange of a call, on all ranks. arguments() checks the arguments of this rank and
/// returns them as AgreedFields. Returns if it throws on no rank, and all ranks have called the
/// same function with equal fields. Otherwise every rank throws: a rank whose arguments() threw
/// rethrows that exception; the others throw a ValueError that names the rank and the field, or has
/// the text of the exception. Nothing on a rank may throw before this call: the others would wait.
template <class Arguments>
void agree(Communicator& communicator, std::string_view function, Arguments arguments) {
  struct Record {
    char function[64] = {};
    std::uint64_t values[AgreedFields::kMax] = {};
    char error[512] = {};
  };
  Record mine;
  AgreedFields fields;
  std::exception_ptr failure;
  const auto copy = [](std::string_view text, std::span<char> to) {
    std::copy_n(text.data(), (std::min)(text.size(), to.size() - 1), to.data());
  };
  const auto take_error = [&](std::string_view text) {
    failure = std::current_exception();
    copy(text.empty() ? "unknown exception" : text, mine.error);
  };
  copy(function, mine.function);
  try {
    fields = arguments();
  } catch (const std::exception& error) {
    take_error(error.what());
  } catch (...) {
    take_error("unknown exception");
  }
  for (std::size_t n = 0; n < fields.all().size(); ++n) mine.values[n] = fields.all()[n].value;
  std::vector<Record> all(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(std::as_bytes(std::span(&mine, 1)),
                          std::as_writable_bytes(std::span(all)));
  if (failure) std::rethrow_exception(failure);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].error[0] == '\0') continue;
    throw ValueError(join(
        {"[", function, "] rank ", std::to_string(rank), ": ", std::string_view(all[rank].error)}));
  }
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const std::string_view called = all[0].function, other_called = all[rank].function;
    if (called != other_called) {
      throw ValueError(
          message(function, "the function", "be the same on every rank",
                  join({called, " on rank 0, ", other_called, " on rank ", std::to_string(rank)})));
    }
    for (std::size_t n = 0; n < fields.all().size(); ++n) {
      const std::uint64_t first = all[0].values[n], other = all[rank].values[n];
      if (first == other) continue;
      const AgreedFields::Field& field = fields.all()[n];
      const std::string at = std::to_string(rank);
      const auto text = [](std::uint64_t value) { return to_string(static_cast<index_t>(value)); };
      throw ValueError(message(
          function, field.name, "be the same on every rank",
          field.is_number ? join({text(first), " on rank 0, ", text(other), " on rank ", at})
                          : join({"another on rank ", at, " than on rank 0"})));
    }
  }
}

/// Runs the part of a call after agree(). If it throws, ranks that wait for this one end, too.
template <class F>
void run_or_fail(Communicator& communicator, const F& f) {
  try {
    f();
  } catch (const std::exception& error) {
    communicator.fail(error.what());
    throw;
  } catch (...) {
    communicator.fail("unknown exception");
    throw;
  }
}

}  // namespace detail

ATTN_NAMESPACE_END
