// Vectors of eight float32 in GCC's and Clang's own notation: AVX2 where there is one, pairs of smaller registers
// elsewhere. Every function does the same to each lane, whatever the machine: results do not depend on its width.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace paceline {

typedef float f8 __attribute__((vector_size(32)));
typedef int32_t i8 __attribute__((vector_size(32)));
typedef uint32_t u8 __attribute__((vector_size(32)));

constexpr int LANES = 8;

static inline f8 load(const float *from) {
    f8 value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

static inline void store(float *to, f8 value) { std::memcpy(to, &value, sizeof value); }

static inline f8 same(float value) { return f8{value, value, value, value, value, value, value, value}; }

template <class To, class From> static inline To bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To result;
    std::memcpy(&result, &value, sizeof result);
    return result;
}

// A NaN in either is not kept: what is computed from the maximum has it again.
static inline f8 larger(f8 a, f8 b) { return a > b ? a : b; }

// In one fixed order of the lanes.
static inline float sum_of(f8 v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

static inline float largest_of(f8 v) {
    float best = v[0];
    for (int lane = 1; lane < LANES; lane++) best = v[lane] > best ? v[lane] : best;
    return best;
}

// e^x to about one unit in the last place, for x up to 88; 0 below -87.3, NaN for NaN. The polynomial is Cephes' expf
// (S. Moshier), the reduction x = n ln 2 + r in two steps.
static inline f8 exponential(f8 x) {
    const f8 magic = same(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits
    f8 shifted = x * 1.44269504088896341f + magic;
    f8 n = shifted - magic;
    f8 r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    f8 p = same(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    f8 y = p * (r * r) + r + 1.0f;
    u8 power = (bits<u8>(shifted) - 0x4b400000u + 127u) << 23;
    f8 result = y * bits<f8>(power);
    return x < -87.3f ? same(0.0f) : result;
}

// x / (1 + e^-x); e^-x stays finite, so that large negative x gives (almost) 0 and not 0 / 0.
static inline f8 silu(f8 x) {
    f8 negated = -x;
    negated = negated > 88.0f ? same(88.0f) : negated;
    return x / (exponential(negated) + 1.0f);
}

static inline float widened(uint16_t bfloat) { return bits<float>(uint32_t(bfloat) << 16); }

// To the nearest bfloat16, ties to even; NaN stays NaN.
static inline uint16_t narrowed(float value) {
    uint32_t raw = bits<uint32_t>(value);
    if (value != value) return 0x7fc0;
    return uint16_t((raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16);
}

}  // namespace paceline
