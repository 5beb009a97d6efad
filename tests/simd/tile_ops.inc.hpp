// Kernel text: products of single tiles.

template <class T, class F>
inline void tile_op(int depth, const void* a, const void* b, T* c, F add) {
#if defined(ATTN_TARGET_TILES)
  const TileScope scope(depth);
  Tiles::load<3>(c, 64);
  Tiles::load<4>(a, depth);
  Tiles::load<7>(b, 64);
  add();
  Tiles::store<3>(c, 64);
#else
  static_cast<void>(depth), static_cast<void>(a), static_cast<void>(b), static_cast<void>(c);
  static_cast<void>(add);
#endif
}

template <>
struct TargetTable<TileOps> {
#if defined(ATTN_TARGET_TILES)
  static void add_pairs(int depth, const void* a, const void* b, float* c) {
    tile_op(depth, a, b, c, [] { Tiles::add_pairs<3, 4, 7>(); });
  }
  static void add_bytes(int depth, const void* a, const void* b, std::int32_t* c) {
    tile_op(depth, a, b, c, [] { Tiles::add_bytes<3, 4, 7>(); });
  }
  static void add_signed_bytes(int depth, const void* a, const void* b, std::int32_t* c) {
    tile_op(depth, a, b, c, [] { Tiles::add_signed_bytes<3, 4, 7>(); });
  }
  static constexpr TileOps kTable{add_pairs, add_bytes, add_signed_bytes};
#else
  static constexpr TileOps kTable{};
#endif
};
