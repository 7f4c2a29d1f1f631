// What nvcc and NVRTC provide without being asked, for a C++ compiler: enough of CUDA's vocabulary
// to run a kernel one thread after the other, or, where threads of a block meet, as block.h says.
// __restrict__ needs no line: g++ and clang know it.
#pragma once

#if defined(__APPLE__) && defined(THREADS_MEET)
#define _XOPEN_SOURCE 700  // or there is no ucontext.h
#define _DARWIN_C_SOURCE
#endif

#include <cmath>
#include <cstdint>
#include <cstdio>  // printf
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)

#ifdef __APPLE__
#define SHARED_SECTION "__DATA,shared_memory"
#else
#define SHARED_SECTION "shared_memory"
#endif
#define __shared__ static __attribute__((section(SHARED_SECTION)))
void meet_at(int barrier, int line);
#define __syncthreads() meet_at(__COUNTER__, __LINE__)  // each in the text is another barrier

// One thread adds after the other, in an order that is chance on a device.
void add_at(void* place, long long size);
template <typename T, typename V>
__attribute__((no_sanitize("thread"), noinline)) T atomicAdd(T* place, V value) {
    add_at(place, sizeof(T));
    const T before = *place;
    *place = before + T(value);
    return before;
}

struct uint3 { unsigned int x, y, z; };
using dim3 = uint3;
static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;

struct int2 { int x, y; };
inline int2 make_int2(int x, int y) { return {x, y}; }
struct float2 { float x, y; };
inline float2 make_float2(float x, float y) { return {x, y}; }
struct float3 { float x, y, z; };
inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }
struct float4 { float x, y, z, w; };
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int __mul24(int a, int b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
template <typename T> T __ldg(const T* place) { return *place; }
template <typename T> T min(T a, T b) { return b < a ? b : a; }
template <typename T> T max(T a, T b) { return a < b ? b : a; }

inline uint32_t bits_of(float value) { uint32_t u; std::memcpy(&u, &value, 4); return u; }
inline float float_of(uint32_t bits) { float f; std::memcpy(&f, &bits, 4); return f; }

// The upper half of a float, rounded to nearest even.
struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float value) {
        const uint32_t u = bits_of(value);
        bits = value != value ? 0x7fff : uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
    operator float() const { return float_of(uint32_t(bits) << 16); }
};

// IEEE 754 binary16: 1 bit sign, 5 bits exponent, 10 bits fraction.
struct __half {
    uint16_t bits;
    __half() = default;
    __half(float value) {
        const uint16_t sign = bits_of(value) >> 16 & 0x8000;
        const float size = std::fabs(value);
        if (size != size) { bits = 0x7fff; return; }
        if (size >= 65520) { bits = sign | 0x7c00; return; }  // rounds to infinity
        // The distance between neighbours is 2^(exponent - 10), at least 2^-24. Dividing by it is
        // exact, and nearbyint rounds to even.
        const int exponent = size < 6.103515625e-05f ? -14 : std::ilogb(size);
        const int steps = int(std::nearbyint(std::ldexp(size, 10 - exponent)));
        bits = sign | uint16_t((exponent + 14) * 1024 + steps);  // steps carries the leading 1
    }
    operator float() const {
        const int exponent = bits >> 10 & 31, fraction = bits & 1023;
        float size = exponent == 0 ? std::ldexp(float(fraction), -24)
                                   : std::ldexp(float(fraction + 1024), exponent - 25);
        if (exponent == 31) size = fraction ? NAN : INFINITY;
        return bits & 0x8000 ? -size : size;
    }
};

inline float __half2float(__half h) { return h; }
inline __half __float2half(float f) { return f; }
inline float __bfloat162float(__nv_bfloat16 b) { return b; }
inline __nv_bfloat16 __float2bfloat16(float f) { return f; }
