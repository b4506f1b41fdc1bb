// The tile instructions that kernels use, on the tile unit or in software. Included in an anonymous namespace, after
// <immintrin.h>, <cstdio> and <cstdlib>; INTERLINGUA_SOFTWARE_TILES chooses. Both offer, for tiles 0 to 7 as template
// arguments:
//   tile_configure(config)        LDTILECFG; clears all tiles
//   tile_release()                TILERELEASE, before a kernel returns: else every switch of threads carries 8 KiB more
//   tile_zero<T>()                TILEZERO
//   tile_load<T>(memory, stride)  TILELOADD; rows lie `stride` bytes apart
//   tile_store<T>(memory, stride) TILESTORED
//   tile_dpbssd<C, A, B>()        TDPBSSD, and SUD, USD, UUD (whether A's and B's bytes are signed):
//                                 int32 C[m][n] += sum over k and i < 4 of A[m][4k+i] * B[k][4n+i]
//   tile_dpbf16ps<C, A, B>()      TDPBF16PS: float C[m][n] += even + odd, two chains of fused steps over pairs of bf16

constexpr int kTileCount = 8, kTileMaxRows = 16, kTileMaxRowBytes = 64;

// Memory layout of LDTILECFG's operand (Intel SDM, volume 1, chapter 18).
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int tile_rows, int bytes) {
    rows[tile] = uint8_t(tile_rows);
    row_bytes[tile] = uint16_t(bytes);
  }
};
static_assert(sizeof(TileConfig) == 64, "LDTILECFG reads 64 bytes");

#ifdef INTERLINGUA_SOFTWARE_TILES
#include "isa/amx/tiles_software.h"
#else
#include "isa/amx/tiles_hardware.h"
#endif
