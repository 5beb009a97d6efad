// GatheredWeight: a product whose outputs are computed by several ranks and then gathered.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "attn/distributed/agreement.hpp"
#include "attn/layers/module/compressed_weight.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Neighbouring parts of 0 .. total - 1, one per rank; some may be empty.
class RankParts {
 public:
  RankParts() = default;
  /// Parts of `count` units of `size` each; they differ by one unit at most.
  RankParts(index_t count, int ranks, index_t size = 1) {
    for (index_t rank = 0; rank <= ranks; ++rank) borders_.push_back(count * rank / ranks * size);
  }

  index_t begin(int rank) const { return borders_[static_cast<std::size_t>(rank)]; }
  index_t end(int rank) const { return begin(rank + 1); }
  index_t size(int rank) const { return end(rank) - begin(rank); }
  index_t total() const { return borders_.empty() ? 0 : borders_.back(); }

 private:
  std::vector<index_t> borders_;
};

/// Writes the columns of all ranks to `all` (rows, parts.total()); `own` has those of this rank.
template <class T>
void gather_columns(Communicator& communicator, const TensorView2<const T>& own,
                    const RankParts& parts, const TensorView2<T>& all, const Execution& execution) {
  const index_t rows = all.extent(0);
  index_t most = 0;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    most = (std::max)(most, parts.size(rank));
  }
  // All messages have the size of the widest part: narrower parts end with zeros.
  const index_t size = rows * most;
  Scratch<T> sent(execution.scratch(), size);
  Scratch<T> received(execution.scratch(), size * communicator.size());
  copy(own, TensorView2<T>(sent.data(), own.shape()));
  std::fill_n(sent.data() + own.size(), size - own.size(), T{0});
  const auto bytes = [](T* data, index_t count) {
    return std::as_writable_bytes(std::span(data, static_cast<std::size_t>(count)));
  };
  communicator.all_gather(bytes(sent.data(), size),
                          bytes(received.data(), size * communicator.size()));
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const TensorView2<const T> part(received.data() + rank * size, {rows, parts.size(rank)});
    copy(part, all.slice(1, parts.begin(rank), parts.end(rank)));
  }
}

/// Rows of a weight that is not compressed.
template <class T>
class DenseWeight final : public CompressedWeight<T> {
 public:
  explicit DenseWeight(Tensor2<T> weight) : weight_(std::move(weight)) {}

  Shape<2> shape() const override { return weight_.shape(); }
  void multiply(TensorView2<const T> x, TensorView2<T> c, const Epilogue<T>& epilogue,
                const Execution& execution) const override {
    gemm(x, weight_.view().transpose(0, 1), c, epilogue, execution);
  }
  void row(index_t index, TensorView1<T> out) const override {
    copy(weight_.view().select(0, index), out);
  }
  std::shared_ptr<const CompressedWeight<T>> rows(index_t begin, index_t end) const override {
    return std::make_shared<const DenseWeight>(Tensor2<T>(weight_.view().slice(0, begin, end)));
  }
  index_t bytes() const override { return weight_.size() * index_t{sizeof(T)}; }

 private:
  Tensor2<T> weight_;
};

/// A weight W (out, in) of which each rank stores and multiplies some rows. All ranks call
/// multiply() at the same time, on one thread each, with the same x, or with a part of its columns.
template <class T>
class GatheredWeight final : public CompressedWeight<T> {
 public:
  using Form = std::shared_ptr<const CompressedWeight<T>>;

  /// Takes this rank's rows of `whole`. A word table, whose rows are read on every rank, is kept as
  /// a whole, too.
  GatheredWeight(Communicator& communicator, const Form& whole, bool is_table = false)
      : communicator_(communicator),
        outputs_(whole->shape()[0], communicator.size()),
        own_(whole->rows(outputs_.begin(rank()), outputs_.end(rank()))),
        table_(is_table ? whole : nullptr),
        in_features_(whole->shape()[1]) {}
  /// The x of multiply() has `in_features` columns, and begins with this rank's part of the columns
  /// of W.
  GatheredWeight(Communicator& communicator, const Form& whole, RankParts inputs,
                 index_t in_features)
      : GatheredWeight(communicator, whole) {
    inputs_ = std::move(inputs);
    in_features_ = in_features;
  }

  Shape<2> shape() const override { return {outputs_.total(), in_features_}; }

  void multiply(TensorView2<const T> x, TensorView2<T> c, const Epilogue<T>& epilogue,
                const Execution& execution) const override {
    run_or_fail(communicator_, [&] {
      const index_t rows = x.extent(0), begin = outputs_.begin(rank()), end = outputs_.end(rank());
      Scratch<T> gathered(execution.scratch(), rows * inputs_.total());
      if (inputs_.total() > 0) {
        const TensorView2<T> all(gathered.data(), {rows, inputs_.total()});
        gather_columns<T>(communicator_, x.slice(1, 0, inputs_.size(rank())), inputs_, all,
                          execution);
        x = all;
      }
      Scratch<T> memory(execution.scratch(), rows * (end - begin));
      const TensorView2<T> own(memory.data(), {rows, end - begin});
      Epilogue<T> part = epilogue;
      if (part.bias) part.bias = part.bias.slice(0, begin, end);
      if (part.beta != 0) {
        const TensorView2<const T> residual =
            part.residual ? TensorView2<const T>(part.residual) : c;
        part.residual = residual.slice(1, begin, end);
      }
      if (own.size() > 0) own_->multiply(x, own, part, execution);
      gather_columns<T>(communicator_, own, outputs_, c, execution);
    });
  }
  void row(index_t index, TensorView1<T> out) const override {
    if (table_ == nullptr) throw_sharded();
    table_->row(index, out);
  }
  Form rows(index_t, index_t) const override { throw_sharded(); }
  /// Bytes of this rank.
  index_t bytes() const override {
    return own_->bytes() + (table_ != nullptr ? table_->bytes() : 0);
  }

 private:
  [[noreturn]] static void throw_sharded() {
    throw ValueError(message("shard", "the module", "have whole weights",
                             "weights that are spread over ranks already"));
  }
  int rank() const { return communicator_.rank(); }

  Communicator& communicator_;
  RankParts outputs_;
  Form own_;          ///< this rank's rows
  Form table_;        ///< all rows, or nullptr
  RankParts inputs_;  ///< without parts if x has all columns
  index_t in_features_;
};

}  // namespace detail

ATTN_NAMESPACE_END
