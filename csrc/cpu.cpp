#include "cpu.h"

#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xmmintrin.h>
#endif

namespace interlingua {
namespace {

#if defined(__x86_64__)

uint64_t enabled_state() {  // XCR0: register states that the operating system saves
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t(high) << 32 | low;
}

struct Features {
  bool avx2 = false, avxvnni = false, avx512 = false, amx = false;
};

Features detect() {
  Features features;
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return features;
  const bool fma = c & bit_FMA, f16c = c & bit_F16C;
  const uint64_t state = enabled_state();
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return features;
  features.avx2 = (state & 0x6) == 0x6 && fma && f16c && (b & bit_AVX2) && (b & bit_BMI2);
  const uint32_t wanted = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
  features.avx512 = features.avx2 && (state & 0xe0) == 0xe0 && (b & wanted) == wanted && (c & bit_AVX512VNNI);
  // AMX exists only if CPUID, XCR0 and the kernel's permission for tile data all agree.
  const uint32_t tiles = 1u << 22 | 1u << 24 | 1u << 25;  // AMX-BF16, AMX-TILE, AMX-INT8
  if (features.avx512 && (d & tiles) == tiles && (state & 0x60000) == 0x60000) {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    features.amx = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) features.avxvnni = features.avx2 && (a & 1u << 4);
  return features;
}

#endif

}  // namespace

std::vector<const KernelTable*> available_kernels() {
  std::vector<const KernelTable*> tables{scalar_kernels()};
#if defined(__x86_64__)
  const Features features = detect();
  if (features.avx2) tables.push_back(avx2_kernels());
  if (features.avxvnni) tables.push_back(avxvnni_kernels());
  // The emulated tiles are slower than AVX-512 alone, so they are never the best.
  if (features.avx512) tables.insert(tables.end(), {amx_emulated_kernels(), avx512_kernels()});
  if (features.amx) tables.push_back(amx_kernels());
#endif
  return tables;
}

const KernelTable* choose_kernels(const std::string& name) {
  const auto tables = available_kernels();
  if (name.empty() || name == "auto") return tables.back();
  std::string names;
  for (const KernelTable* table : tables) {
    if (name == table->name) return table;
    names += (names.empty() ? "" : ", ") + std::string(table->name);
  }
  throw std::invalid_argument("kernel tier '" + name + "' cannot run here; available: " + names);
}

#if defined(__x86_64__)
FlushToZero::FlushToZero() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
FlushToZero::~FlushToZero() { _mm_setcsr(saved_); }
#else
FlushToZero::FlushToZero() : saved_(0) {}
FlushToZero::~FlushToZero() {}
#endif

}  // namespace interlingua
