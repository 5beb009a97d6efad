// MultiHeadAttention: projections, attention over heads and the output projection, by PyTorch's names.
#pragma once

#include "attn/attention/extend_mask.hpp"
#include "attn/attention/sdpa.hpp"
#include "attn/layers/heads.hpp"
#include "attn/layers/linear.hpp"

ATTN_NAMESPACE_BEGIN

/// PyTorch's nn.MultiheadAttention options, then what the tutorials need beyond them. 0 = the default.
struct MultiHeadAttentionOptions {
  index_t embed_dim = 0;
  index_t num_heads = 1;
  bool bias = true;
  index_t kdim = 0, vdim = 0;  ///< features of key and value; embed_dim
  bool add_bias_kv = false;    ///< a learned key and value after the others, never masked
  bool add_zero_attn = false;  ///< then a key and value of zeros, never masked
  index_t head_dim = 0;        ///< of queries and keys (d_k); embed_dim / num_heads
  index_t head_dim_v = 0;      ///< of values (d_v); head_dim
  bool output_projection = true;
  std::optional<double> scale = {};  ///< 1 / sqrt(head_dim)
};

/// What one forward call can be told.
template <class T>
struct MultiHeadAttentionCall {
  Mask mask = {};  ///< over (batch, num_heads, q_len, kv_len): key_padding_mask(p) & causal() & ..
  QueryOffset offset = bottom_right;
  MaskedRow masked_row = MaskedRow::zero;
  TensorView3<const T> residual = {};  ///< added to the result, which has its shape
  TensorView4<T> weights = {};  ///< out: per head, (batch, num_heads, q_len, kv_len + appended)
  TensorView3<T> average_weights = {};  ///< out: mean over heads, (batch, q_len, kv_len + appended)
  Execution execution = {};
};

template <class T>
class MultiHeadAttention {
 public:
  MultiHeadAttention() = default;

  /// Parameters are zero until loaded. Throws ValueError for options that contradict each other.
  explicit MultiHeadAttention(const MultiHeadAttentionOptions& options) : options_(options) {
    const auto check = [](bool good, std::string_view argument, std::string_view expected,
                          index_t found) {
      if (!good)
        throw ValueError(message("MultiHeadAttention", argument, expected, std::to_string(found)));
    };
    MultiHeadAttentionOptions& o = options_;
    check(o.embed_dim > 0, "embed_dim", "be positive", o.embed_dim);
    check(o.num_heads > 0, "num_heads", "be positive", o.num_heads);
    check(o.kdim >= 0 && o.vdim >= 0 && o.head_dim >= 0 && o.head_dim_v >= 0,
          "kdim, vdim and head sizes", "not be negative",
          std::min({o.kdim, o.vdim, o.head_dim, o.head_dim_v}));
    check(o.head_dim > 0 || o.embed_dim % o.num_heads == 0, "num_heads",
          "divide embed_dim = " + std::to_string(o.embed_dim), o.num_heads);
    if (o.head_dim == 0) o.head_dim = o.embed_dim / o.num_heads;
    if (o.head_dim_v == 0) o.head_dim_v = o.head_dim;
    if (o.kdim == 0) o.kdim = o.embed_dim;
    if (o.vdim == 0) o.vdim = o.embed_dim;

    const index_t q_width = o.num_heads * o.head_dim, v_width = o.num_heads * o.head_dim_v;
    if (o.kdim == o.embed_dim && o.vdim == o.embed_dim) {
      in_proj_weight_ = Tensor2<T>({2 * q_width + v_width, o.embed_dim});
    } else {
      q_proj_weight_ = Tensor2<T>({q_width, o.embed_dim});
      k_proj_weight_ = Tensor2<T>({q_width, o.kdim});
      v_proj_weight_ = Tensor2<T>({v_width, o.vdim});
    }
    if (o.bias) in_proj_bias_ = Tensor1<T>({2 * q_width + v_width});
    if (o.add_bias_kv) {
      bias_k_ = Tensor3<T>({1, 1, q_width});
      bias_v_ = Tensor3<T>({1, 1, v_width});
    }
    if (o.output_projection) out_proj_ = Linear<T>(v_width, o.embed_dim, o.bias);
  }

  const MultiHeadAttentionOptions& options() const { return options_; }

  /// Features of the result: embed_dim, or all heads' values where there is no output projection.
  index_t out_dim() const {
    return options_.output_projection ? options_.embed_dim
                                      : options_.num_heads * options_.head_dim_v;
  }

  /// Keys that add_bias_kv and add_zero_attn append.
  index_t appended_keys() const {
    return index_t{options_.add_bias_kv} + index_t{options_.add_zero_attn};
  }

  /// Self-attention: x (batch, seq, embed_dim) to (batch, seq, out_dim()).
  template <TensorLike X>
  Tensor3<T> operator()(const X& x, const MultiHeadAttentionCall<T>& call = {}) const {
    return (*this)(x, x, x, call);
  }

  /// query (batch, q_len, embed_dim), key (batch, kv_len, kdim), value (batch, kv_len, vdim).
  template <TensorLike Q, TensorLike K, TensorLike V>
  Tensor3<T> operator()(const Q& query, const K& key, const V& value,
                        const MultiHeadAttentionCall<T>& call = {}) const {
    const TensorView3<const T> q = const_view(query);
    auto out = Tensor3<T>::uninitialized({q.extent(0), q.extent(1), out_dim()});
    forward(query, key, value, out, call);
    return out;
  }

  /// Into `out` (batch, q_len, out_dim()), which must overlap none of the inputs but may be the residual.
  /// Throws ShapeError or ValueError.
  template <TensorLike Q, TensorLike K, TensorLike V, TensorLike Out>
  void forward(const Q& query, const K& key, const V& value, Out&& out,
               const MultiHeadAttentionCall<T>& call = {}) const {
    run(const_view(query), const_view(key), const_view(value), view_of(out), call);
  }

  /// Parameters by PyTorch's names: in_proj_weight where query, key and value have embed_dim features,
  /// q_proj_weight, k_proj_weight and v_proj_weight otherwise.
  template <class F>
  void visit_parameters(F&& f) {
    visit(*this, f);
  }
  template <class F>
  void visit_parameters(F&& f) const {
    visit(*this, f);
  }

  /// Lays out the projections of self-attention and of the output for the kernels: see Linear::pack().
  void pack() {
    if (in_proj_weight_) {
      packed_in_proj_ = PackedWeights<T>(in_proj_weight_.view().transpose(0, 1));
    }
    if (options_.output_projection) out_proj_.pack();
  }

  // The three input projections (out, in) and their biases, whichever way they are stored.
  TensorView2<T> q_weight() { return part(*this, 0); }
  TensorView2<T> k_weight() { return part(*this, 1); }
  TensorView2<T> v_weight() { return part(*this, 2); }
  TensorView1<T> q_bias() { return bias_part(*this, 0); }
  TensorView1<T> k_bias() { return bias_part(*this, 1); }
  TensorView1<T> v_bias() { return bias_part(*this, 2); }
  Linear<T>& out_proj() { return out_proj_; }

 private:
  template <class Self, class F>
  static void visit(Self& self, F& f) {
    if (self.in_proj_weight_) {
      f("in_proj_weight", self.in_proj_weight_.view());
    } else {
      f("q_proj_weight", self.q_proj_weight_.view());
      f("k_proj_weight", self.k_proj_weight_.view());
      f("v_proj_weight", self.v_proj_weight_.view());
    }
    if (self.in_proj_bias_) f("in_proj_bias", self.in_proj_bias_.view());
    if (self.bias_k_) f("bias_k", self.bias_k_.view());
    if (self.bias_v_) f("bias_v", self.bias_v_.view());
    if (self.options_.output_projection) visit_part("out_proj.", self.out_proj_, f);
  }

  /// Rows of the packed projections that belong to q (0), k (1) or v (2).
  std::pair<index_t, index_t> rows_of(int which) const {
    const index_t q_width = options_.num_heads * options_.head_dim;
    const index_t v_width = options_.num_heads * options_.head_dim_v;
    return {which * q_width, which * q_width + (which == 2 ? v_width : q_width)};
  }

  template <class Self>
  static auto part(Self& self, int which) {
    const auto [begin, end] = self.rows_of(which);
    if (self.in_proj_weight_) return self.in_proj_weight_.view().slice(0, begin, end);
    return (which == 0   ? self.q_proj_weight_
            : which == 1 ? self.k_proj_weight_
                         : self.v_proj_weight_)
        .view();
  }

  template <class Self>
  static auto bias_part(Self& self, int which) {
    const auto [begin, end] = self.rows_of(which);
    auto bias = self.in_proj_bias_.view();
    return bias ? bias.slice(0, begin, end) : bias;
  }

  static void check(std::string_view argument, const Shape<3>& expected, const Shape<3>& found) {
    check_shape("MultiHeadAttention", argument, expected, found);
  }

  void run(TensorView3<const T> query, TensorView3<const T> key, TensorView3<const T> value,
           TensorView3<T> out, const MultiHeadAttentionCall<T>& call) const {
    const MultiHeadAttentionOptions& o = options_;
    const index_t batch = query.extent(0), q_len = query.extent(1), kv_len = key.extent(1);
    const index_t keys = kv_len + appended_keys();
    const index_t q_width = o.num_heads * o.head_dim, v_width = o.num_heads * o.head_dim_v;
    check("query", {batch, q_len, o.embed_dim}, query.shape());
    check("key", {batch, kv_len, o.kdim}, key.shape());
    check("value", {batch, kv_len, o.vdim}, value.shape());
    check("out", {batch, q_len, out_dim()}, out.shape());
    if (call.residual) check("residual", out.shape(), call.residual.shape());

    Workspace& workspace = call.execution.scratch();
    const index_t width = 2 * q_width + v_width;
    const bool fused =
        in_proj_weight_ && appended_keys() == 0 && same(query, key) && same(query, value);
    Scratch<T> projected(workspace, fused ? batch * q_len * width
                                          : batch * (q_len * q_width + keys * (q_width + v_width)));
    TensorView3<T> q, k, v;
    if (fused) {
      // One product for all three: x is read, and packed, once.
      const TensorView3<T> qkv(projected.data(), {batch, q_len, width});
      const TensorView1<const T> bias = in_proj_bias_.view();
      if (packed_in_proj_.serves(call.execution)) {
        linear(query, packed_in_proj_, bias, qkv, Activation::none, {}, call.execution);
      } else {
        linear(query, in_proj_weight_, bias, qkv, Activation::none, {}, call.execution);
      }
      q = qkv.slice(2, 0, q_width);
      k = qkv.slice(2, q_width, 2 * q_width);
      v = qkv.slice(2, 2 * q_width, width);
    } else {
      q = {projected.data(), {batch, q_len, q_width}};
      k = {q.data() + q.size(), {batch, keys, q_width}};
      v = {k.data() + k.size(), {batch, keys, v_width}};
      project(query, 0, q, call.execution);
      project(key, 1, k.slice(1, 0, kv_len), call.execution);
      project(value, 2, v.slice(1, 0, kv_len), call.execution);
      append(k, kv_len, bias_k_.view());
      append(v, kv_len, bias_v_.view());
    }

    Scratch<T> context_memory(workspace, o.output_projection ? batch * q_len * v_width : 0);
    const TensorView3<T> context =
        o.output_projection ? TensorView3<T>(context_memory.data(), {batch, q_len, v_width}) : out;
    AttentionOptions<T> options{.mask = call.mask,
                                .scale = o.scale,
                                .offset = call.offset,
                                .masked_row = call.masked_row,
                                .weights = call.weights,
                                .average_weights = call.average_weights,
                                .execution = call.execution};
    Tensor4<T> extended;
    if (appended_keys() > 0) {
      extended = extend_mask<T>(call.mask, call.offset, {batch, o.num_heads, q_len, kv_len},
                                appended_keys());
      options.mask = additive_mask(extended);
    }
    scaled_dot_product_attention(split_heads(q, o.num_heads), split_heads(k, o.num_heads),
                                 split_heads(v, o.num_heads), split_heads(context, o.num_heads),
                                 options);
    if (o.output_projection) {
      out_proj_.forward(context, out, Activation::none, call.residual, call.execution);
    } else if (call.residual) {
      add(call.residual, out);
    }
  }

  /// to = from W^T + b for one of the three projections.
  void project(TensorView3<const T> from, int which, TensorView3<T> to,
               const Execution& execution) const {
    const TensorView2<const T> weight = part(*this, which);
    const TensorView1<const T> bias = bias_part(*this, which);
    // `to` may be the first keys of a longer sequence, whose batch rows do not join up.
    for (index_t b = 0; b < from.extent(0); ++b) {
      linear(from.select(0, b), weight, bias, to.select(0, b), Activation::none, {}, execution);
    }
  }

  /// The learned key or value, then zeros, behind the first kv_len.
  static void append(TensorView3<T> to, index_t kv_len, TensorView3<const T> learned) {
    for (index_t b = 0; b < to.extent(0); ++b) {
      for (index_t j = kv_len; j < to.extent(1); ++j) {
        const bool is_learned = learned && j == kv_len;
        for (index_t x = 0; x < to.extent(2); ++x)
          to(b, j, x) = is_learned ? learned(0, 0, x) : T{0};
      }
    }
  }

  static void add(TensorView3<const T> x, TensorView3<T> out) {
    for (index_t b = 0; b < out.extent(0); ++b) {
      for (index_t i = 0; i < out.extent(1); ++i) {
        for (index_t j = 0; j < out.extent(2); ++j) out(b, i, j) += x(b, i, j);
      }
    }
  }

  static bool same(const TensorView3<const T>& a, const TensorView3<const T>& b) {
    return a.data() == b.data() && a.shape() == b.shape() && a.strides() == b.strides();
  }

  MultiHeadAttentionOptions options_;
  Tensor2<T> in_proj_weight_, q_proj_weight_, k_proj_weight_, v_proj_weight_;
  PackedWeights<T> packed_in_proj_;
  Tensor1<T> in_proj_bias_;
  Tensor3<T> bias_k_, bias_v_;
  Linear<T> out_proj_;
};

ATTN_NAMESPACE_END
