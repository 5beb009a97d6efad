// Kernel text: the table of products of floats as bfloat16 parts.
// SPDX-License-Identifier: Apache-2.0

template <>
struct TargetTable<detail::Backend<family::PartProducts, float, float>> {
#if defined(ATTN_TARGET_TILES)
  static constexpr detail::Backend<family::PartProducts, float, float> kTable{
      .panel_width = 16,
      .k_step = kTileK,
      .high = {.gemm = detail::kKernel<gemm_tiles<SplitFloats>>,
               .pack_weights = detail::kKernel<pack_weight_tiles<SplitFloats>>},
      .medium = {
        .gemm = detail::kKernel<gemm_tiles<RoundedFloats>>,
        .pack_weights = detail::kKernel<pack_weight_tiles<RoundedFloats>>
      }};
#elif defined(ATTN_TARGET_PAIRS)
  static constexpr detail::Backend<family::PartProducts, float, float> kTable{
      .panel_width = TileShape<float>::NR, .k_step = kElements<float>, .high = {}, .medium = {
        .gemm = detail::kKernel<gemm_elements<float>>,
        .pack_weights = detail::kKernel<pack_elements<float>>
      }};
#else
  static constexpr detail::Backend<family::PartProducts, float, float> kTable{};
#endif
};
