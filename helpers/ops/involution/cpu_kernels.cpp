// Involution on a CPU: the output, the gradient of the input, the gradient of the weight.
//
// The work is cut into tiles: some rows and columns of the result, of one sample and one group. A
// tile belongs to one thread, and each element is summed in one fixed order, so any number of
// threads gives the same bits. For a tile, a thread copies what it reads into a buffer that stays
// in its cache, with zeros around the border, as float or double. There
//
// - neighbouring columns of the result read neighbouring elements at any stride, because the
//   columns are sorted by their remainder: 0, 2, 4, ..., 1, 3, 5, ... for a stride of 2;
// - strides, layouts and types of the tensors do not matter, so tensors are never copied whole.
//
// What is left are two loops over vectors of neighbouring columns. The sums stay in registers:
//
//     result[c] = sum over taps of weight[tap] * image[c][shifted by tap]      (multiply_by_taps)
//     result[tap] = sum over c of grad_output[c] * image[c][shifted by tap]    (sum_over_channels)
//
// The first makes the output from the input, and the gradient of the input from grad_output: seen
// from an input pixel, that is a sum over taps, too. No torch headers: this compiles in seconds.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <type_traits>
#include <vector>

using Int = std::int64_t;

struct Geometry {  // the fields of Geometry in geometry.py, in the same order
    Int batch, channels, groups, height, width, out_height, out_width;
    Int kernel_height, kernel_width, stride_height, stride_width;
    Int padding_height, padding_width, dilation_height, dilation_width;
};

template <class T> struct Image {  // (N, C, H, W), strides counted in elements
    T* data;
    Int n, c, h, w;
};

template <class T> struct Weight {  // (N, G, Kh, Kw, Ho, Wo)
    T* data;
    Int n, g, kh, kw, h, w;
};

// Types. Half precision is for storage, sums are kept in float. The conversions have no branches
// (`?:` is none), so that the compiler makes vectors of them.

struct BFloat16 { std::uint16_t bits; };  // the upper half of a float
struct Float16 { std::uint16_t bits; };   // IEEE 754 binary16

template <class T> struct SumOf { using type = float; };
template <> struct SumOf<double> { using type = double; };

inline std::uint32_t bits_of(float f) { std::uint32_t u; std::memcpy(&u, &f, 4); return u; }
inline float float_of(std::uint32_t u) { float f; std::memcpy(&f, &u, 4); return f; }

inline float widen(float x) { return x; }
inline double widen(double x) { return x; }
inline float widen(BFloat16 x) { return float_of(std::uint32_t(x.bits) << 16); }
inline float widen(Float16 x) {
    // Exponent and fraction move to the places of a float's. The product with 2^112 accounts for
    // the other bias of the exponent, also below 2^-14; inf and nan get the largest exponent.
    const std::uint32_t size = std::uint32_t(x.bits & 0x7fff) << 13;
    const std::uint32_t top = size >= 0x0f800000u ? 0x7f800000u : 0u;
    const std::uint32_t sign = std::uint32_t(x.bits & 0x8000) << 16;
    return float_of(bits_of(float_of(size) * 0x1p112f) | top | sign);
}

inline void narrow(float x, float* to) { *to = x; }
inline void narrow(double x, double* to) { *to = x; }
inline void narrow(float x, BFloat16* to) {
    const std::uint32_t u = bits_of(x);
    const std::uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;  // to nearest even
    to->bits = std::uint16_t((u & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}
inline void narrow(float x, Float16* to) {
    const std::uint32_t u = bits_of(x), size = u & 0x7fffffff;
    // From 2^-14 on: drop 13 bits of the fraction, to nearest even, and change the bias.
    const std::uint32_t normal = (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13;
    // Below: 0.5 has steps of 2^-24, as such numbers have. The sum rounds, and counts the steps.
    const std::uint32_t small = bits_of(float_of(size) + 0.5f) - bits_of(0.5f);
    std::uint32_t half = size < (113u << 23) ? small : normal;
    half = size >= 0x477ff000u ? 0x7c00u : half;  // from 65520 on
    half = size > 0x7f800000u ? 0x7e00u : half;
    to->bits = std::uint16_t(half | (u >> 16 & 0x8000));
}

// Rows are short, and a call of memcpy takes longer than they do: a row of 16 to 31 bytes is its
// first and its last 16, and so on.
inline void copy_bytes(const void* from, void* to, Int size) {
    const char* source = static_cast<const char*>(from);
    char* target = static_cast<char*>(to);
    const auto both_ends = [=](auto length) {
        char first[length], last[length];
        std::memcpy(first, source, length);
        std::memcpy(last, source + size - length, length);
        std::memcpy(target, first, length);
        std::memcpy(target + size - length, last, length);
    };
    if (size >= 128) std::memcpy(to, from, size);
    else if (size >= 64) both_ends(std::integral_constant<int, 64>());
    else if (size >= 32) both_ends(std::integral_constant<int, 32>());
    else if (size >= 16) both_ends(std::integral_constant<int, 16>());
    else for (Int i = 0; i < size; ++i) target[i] = source[i];
}

template <class T, class S> void copy_in(const T* from, Int stride, S* to, Int count) {
    if constexpr (std::is_same_v<T, S>) {
        if (stride == 1) {
            copy_bytes(from, to, count * Int(sizeof(T)));
            return;
        }
    }
    if (stride == 1) {
        for (Int i = 0; i < count; ++i) to[i] = widen(from[i]);
    } else {
        for (Int i = 0; i < count; ++i) to[i] = widen(from[i * stride]);
    }
}

// Asks for elements that are read soon. Rows of many taps are more streams than the processor
// follows by itself: without this, most of the time goes into waiting for the weight.
template <int write, class T> void prefetch(const T* from, Int count) {
    for (Int i = 0; i < count; i += 64 / sizeof(T)) __builtin_prefetch(from + i, write);
}

template <class T, class S> void copy_out(const S* from, T* to, Int stride, Int count) {
    if constexpr (std::is_same_v<T, S>) {
        if (stride == 1) {
            copy_bytes(from, to, count * Int(sizeof(T)));
            return;
        }
    }
    if (stride == 1) {
        for (Int i = 0; i < count; ++i) narrow(from[i], to + i);
    } else {
        for (Int i = 0; i < count; ++i) narrow(from[i], to + i * stride);
    }
}

// Vectors of L numbers, wherever they lie in memory.

template <class S, int L> struct VectorOf { typedef S type __attribute__((vector_size(L * sizeof(S)))); };

template <class V, class S> inline V load(const S* from) {
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

template <class V, class S> inline void store(S* to, V v) { std::memcpy(to, &v, sizeof v); }

#if defined(__AVX512F__)
constexpr int vector_bytes = 64;
#elif defined(__AVX__)
constexpr int vector_bytes = 32;
#else
constexpr int vector_bytes = 16;
#endif
template <class S> constexpr int lanes = vector_bytes / sizeof(S);

constexpr Int chunk = 64;  // channels that are worked on at once
constexpr int block = 8;   // sums that are kept in registers at once
#ifndef TILE
#define TILE (384 * 1024)
#endif
constexpr Int tile_bytes = TILE;
constexpr double largest_window = 4 << 20;  // bytes

// One row of the result: `count` columns, with room for a vector more behind each row.
template <class S> struct Row {
    Int count, channels, taps;
    const S* image;       // image + c * image_pitch + offsets[tap]: what a tap sees
    Int image_pitch;
    const Int* offsets;
    const S* other;       // other + weights[tap], the weight, or other + c * pitch, grad_output
    const Int* weights;
    S* result;            // result + (c or tap) * pitch
    Int pitch;
    bool add;             // to what result holds
};

template <class S, int L, int B> void taps_block(const Row<S>& r, Int column, Int channel) {
    using V = typename VectorOf<S, L>::type;
    const S* image[B];
    V sum[B];
    for (int j = 0; j < B; ++j) {
        image[j] = r.image + (channel + j) * r.image_pitch + column;
        sum[j] = V{};
    }
    const S* weight = r.other + column;
    for (Int tap = 0; tap < r.taps; ++tap) {
        const V w = load<V>(weight + r.weights[tap]);
        const Int offset = r.offsets[tap];
        for (int j = 0; j < B; ++j) sum[j] += w * load<V>(image[j] + offset);
    }
    for (int j = 0; j < B; ++j) store(r.result + (channel + j) * r.pitch + column, sum[j]);
}

template <class S, int L, int B> void channels_block(const Row<S>& r, Int column, Int tap) {
    using V = typename VectorOf<S, L>::type;
    const S* image[B];
    V sum[B];
    for (int j = 0; j < B; ++j) {
        image[j] = r.image + r.offsets[tap + j] + column;
        sum[j] = r.add ? load<V>(r.result + (tap + j) * r.pitch + column) : V{};
    }
    const S* other = r.other + column;
    for (Int c = 0; c < r.channels; ++c, other += r.pitch) {
        const V g = load<V>(other);
        const Int offset = c * r.image_pitch;
        for (int j = 0; j < B; ++j) sum[j] += g * load<V>(image[j] + offset);
    }
    for (int j = 0; j < B; ++j) store(r.result + (tap + j) * r.pitch + column, sum[j]);
}

template <class S, int L, int B> void blocks(bool taps, const Row<S>& r, Int column, Int first) {
    const Int end = taps ? r.channels : r.taps;
    for (; first + B <= end; first += B) {
        taps ? taps_block<S, L, B>(r, column, first) : channels_block<S, L, B>(r, column, first);
    }
    if constexpr (B > 1) blocks<S, L, B / 2>(taps, r, column, first);
}

template <class S> void row(bool taps, const Row<S>& r) {
    constexpr int L = lanes<S>;
    Int column = 0;
    for (; r.count - column > L / 2; column += L) blocks<S, L, block>(taps, r, column, 0);
    if (column < r.count) blocks<S, L / 2, block>(taps, r, column, 0);
}

template <class S> void multiply_by_taps(const Row<S>& r) { row(true, r); }
template <class S> void sum_over_channels(const Row<S>& r) { row(false, r); }

// Tiles.

inline Int ceil_div(Int a, Int b) { return (a + b - 1) / b; }
inline Int floor_div(Int a, Int b) { return a / b - (a % b < 0); }
inline Int wrap(Int a, Int b) { return a - floor_div(a, b) * b; }

// Part of an image, in a buffer. Row y, column x, channel c of the tensor, each counted from the
// first one here, lies at c * pitch + y * row_pitch + x % stride * part_pitch + x / stride.
template <class S> struct Window {
    std::vector<S> buffer;
    Int pitch = 0, row_pitch = 0, part_pitch = 0;

    template <class T>
    void fill(const Image<T>& from, Int channels, Int first_row, Int rows, Int height,
              Int first_column, Int columns, Int width, Int stride) {
        part_pitch = ceil_div(columns, stride) + lanes<S>;
        row_pitch = part_pitch * stride;
        pitch = row_pitch * rows;
        buffer.assign(channels * pitch, S(0));
        const Int top = std::max<Int>(0, -first_row), bottom = std::min(rows, height - first_row);
        for (Int c = 0; c < channels; ++c) {
            for (Int y = top; y < bottom; ++y) {
                const T* source = from.data + c * from.c + (first_row + y) * from.h;
                S* target = buffer.data() + c * pitch + y * row_pitch;
                for (Int part = 0; part < stride; ++part, target += part_pitch) {
                    // columns first_column + i * stride + part, as far as the tensor has them
                    const Int zero = first_column + part;
                    const Int begin = zero < 0 ? ceil_div(-zero, stride) : 0;
                    const Int end = std::min(ceil_div(columns - part, stride),
                                             zero < width ? ceil_div(width - zero, stride) : 0);
                    if (begin < end) {
                        copy_in(source + (zero + begin * stride) * from.w, from.w * stride,
                                target + begin, end - begin);
                    }
                }
            }
        }
    }
};

template <class T> class Involution {
    using S = typename SumOf<T>::type;
    const Geometry s;
    const int kernel;  // 0, 1, 2: makes output, input, weight
    const Image<T> input, output;
    const Weight<T> weight;
    const Int group_channels, taps;
    Int height, width, tile_height, tile_width, tiles_down, tiles_across, chunks;
    std::atomic<Int> next{0};
    std::atomic<bool> failed{false};

    struct Tile { Int n, g, channel, channels, top, bottom, left, right; };

    struct Span { Int begin, end, offset; };

    struct Scratch {
        Window<S> image;
        std::vector<S> other, result;
        std::vector<Int> offsets, weights;
        std::vector<Span> spans;
    };

    static Image<T> at(Image<T> image, Int n, Int channel) {
        image.data += n * image.n + channel * image.c;
        return image;
    }

    T* weight_at(const Tile& t, Int kh, Int kw, Int h, Int w) const {
        return weight.data + t.n * weight.n + t.g * weight.g + kh * weight.kh + kw * weight.kw +
               h * weight.h + w * weight.w;
    }

    void copy_weight(const T* from, const Span& span, S* to) const {
        from += span.begin * weight.w;
        if (weight.w == 1) {
            prefetch<0>(from + weight.h, span.end - span.begin);  // the same columns, next row
        }
        copy_in(from, weight.w, to + span.begin, span.end - span.begin);
    }

    Int input_row(Int h, Int kh) const {
        return h * s.stride_height - s.padding_height + kh * s.dilation_height;
    }

    void fill_with_input(const Tile& t, Int channel, Int channels, Scratch& b) const {
        b.image.fill(at(input, t.n, channel), channels, input_row(t.top, 0),
                     input_row(t.bottom - 1, s.kernel_height - 1) - input_row(t.top, 0) + 1,
                     s.height, t.left * s.stride_width - s.padding_width,
                     (t.right - 1 - t.left) * s.stride_width +
                         (s.kernel_width - 1) * s.dilation_width + 1,
                     s.width, s.stride_width);
    }

    // What each kw reads along a row of the input: columns [begin, end) of the output, counted from
    // the tile's first, see column `offset` of the window and those to its right.
    void find_spans(const Tile& t, Scratch& b) const {
        const Int count = t.right - t.left, sw = s.stride_width;
        for (Int kw = 0; kw < s.kernel_width; ++kw) {
            const Int shift = kw * s.dilation_width;
            const Int first = t.left * sw - s.padding_width + shift;
            Span& span = b.spans[kw];
            span.begin = first < 0 ? std::min(count, ceil_div(-first, sw)) : 0;
            span.end = first < s.width ? std::min(count, ceil_div(s.width - first, sw)) : 0;
            span.end = std::max(span.begin, span.end);
            span.offset = shift % sw * b.image.part_pitch + shift / sw;
        }
    }

    // Weights that meet the border are zero, not only the input there: inf * 0 is nan.
    void forward(const Tile& t, Scratch& b) const {
        fill_with_input(t, t.channel, t.channels, b);
        b.spans.resize(s.kernel_width);
        find_spans(t, b);
        const Int count = t.right - t.left, pitch = count + lanes<S>;
        b.other.assign(taps * pitch, S(0));
        b.result.resize(t.channels * pitch);
        const Image<T> to = at(output, t.n, t.channel);
        for (Int h = t.top; h < t.bottom; ++h) {
            Int used = 0;
            for (Int kh = 0; kh < s.kernel_height; ++kh) {
                const Int y = input_row(h, kh);
                if (y < 0 || y >= s.height) continue;
                const T* from = weight_at(t, kh, 0, h, t.left);
                for (Int kw = 0; kw < s.kernel_width; ++kw) {
                    const Span& span = b.spans[kw];
                    b.weights[used] = (kh * s.kernel_width + kw) * pitch;
                    b.offsets[used] = (y - input_row(t.top, 0)) * b.image.row_pitch + span.offset;
                    copy_weight(from + kw * weight.kw, span, b.other.data() + b.weights[used]);
                    ++used;
                }
            }
            multiply_by_taps<S>({count, t.channels, used, b.image.buffer.data(), b.image.pitch,
                                 b.offsets.data(), b.other.data(), b.weights.data(),
                                 b.result.data(), pitch, false});
            for (Int c = 0; c < t.channels; ++c) {
                copy_out(b.result.data() + c * pitch, to.data + c * to.c + h * to.h + t.left * to.w,
                         to.w, count);
            }
        }
    }

    // From the input pixel (y, x): tap (kh, kw) of the output pixel (h, w) reads it, if
    //     h * stride = y + padding - kh * dilation, and likewise w.
    // Columns x with the same (x + padding) % stride have the same taps, at neighbouring w.
    void grad_input(const Tile& t, Scratch& b) const {
        const Int sh = s.stride_height, sw = s.stride_width;
        const Int reach_down = (s.kernel_height - 1) * s.dilation_height;
        const Int reach_across = (s.kernel_width - 1) * s.dilation_width;
        const Int first_row = floor_div(t.top + s.padding_height - reach_down, sh);
        const Int first_column = floor_div(t.left + s.padding_width - reach_across, sw);
        b.image.fill(at(output, t.n, t.channel), t.channels, first_row,
                     (t.bottom - 1 + s.padding_height) / sh - first_row + 1, s.out_height,
                     first_column, (t.right - 1 + s.padding_width) / sw - first_column + 1,
                     s.out_width, 1);
        const Int parts = std::min(sw, t.right - t.left);
        const Int pitch = ceil_div(t.right - t.left, sw) + lanes<S>;
        b.spans.resize(parts * s.kernel_width);
        for (Int part = 0; part < parts; ++part) {
            for (Int kw = 0; kw < s.kernel_width; ++kw) {
                const Int w_times_stride = t.left + part + s.padding_width - kw * s.dilation_width;
                const Int w = floor_div(w_times_stride, sw);
                const Int count = ceil_div(t.right - t.left - part, sw);
                Span& span = b.spans[part * s.kernel_width + kw];
                span.begin = std::min(count, std::max<Int>(0, -w));
                span.end = w * sw == w_times_stride ? std::min(count, s.out_width - w) : 0;
                span.offset = w - first_column;
            }
        }
        b.other.assign(parts * taps * pitch, S(0));
        b.result.resize(t.channels * pitch);
        const Image<T> to = at(input, t.n, t.channel);
        for (Int y = t.top; y < t.bottom; ++y) {
            for (Int part = 0; part < parts; ++part) {
                const Int count = ceil_div(t.right - t.left - part, sw);
                Int used = 0;
                for (Int kh = 0; kh < s.kernel_height; ++kh) {
                    const Int h_times_stride = y + s.padding_height - kh * s.dilation_height;
                    const Int h = floor_div(h_times_stride, sh);
                    if (h * sh != h_times_stride || h < 0 || h >= s.out_height) continue;
                    for (Int kw = 0; kw < s.kernel_width; ++kw) {
                        const Span& span = b.spans[part * s.kernel_width + kw];
                        if (span.begin >= span.end) continue;
                        const Int w = span.offset + first_column;
                        b.weights[used] = ((part * s.kernel_height + kh) * s.kernel_width + kw) * pitch;
                        b.offsets[used] = (h - first_row) * b.image.row_pitch + span.offset;
                        copy_weight(weight_at(t, kh, kw, h, w), span,
                                    b.other.data() + b.weights[used]);
                        ++used;
                    }
                }
                multiply_by_taps<S>({count, t.channels, used, b.image.buffer.data(), b.image.pitch,
                                     b.offsets.data(), b.other.data(), b.weights.data(),
                                     b.result.data(), pitch, false});
                for (Int c = 0; c < t.channels; ++c) {
                    copy_out(b.result.data() + c * pitch,
                             to.data + c * to.c + y * to.h + (t.left + part) * to.w, to.w * sw,
                             count);
                }
            }
        }
    }

    // Where a tap meets the border the result is zero, not 0 * grad_output: that may be inf.
    void grad_weight(const Tile& t, Scratch& b) const {
        const Int count = t.right - t.left, pitch = count + lanes<S>;
        b.other.assign(std::min(chunk, group_channels) * pitch, S(0));
        b.result.resize(taps * pitch);
        b.spans.resize(s.kernel_width);
        for (Int h = t.top; h < t.bottom; ++h) {
            Int first_kh = s.kernel_height, used = 0;
            for (Int channel = 0; channel < group_channels; channel += chunk) {
                const Int first = t.g * group_channels + channel;
                const Int channels = std::min(chunk, group_channels - channel);
                if (h == t.top) {  // with more channels than a chunk, the tile has no other row
                    fill_with_input(t, first, channels, b);
                    find_spans(t, b);
                }
                const Image<T> from = at(output, t.n, first);
                for (Int c = 0; c < channels; ++c) {
                    copy_in(from.data + c * from.c + h * from.h + t.left * from.w, from.w,
                            b.other.data() + c * pitch, count);
                }
                used = 0;
                for (Int kh = 0; kh < s.kernel_height; ++kh) {
                    const Int y = input_row(h, kh);
                    if (y < 0 || y >= s.height) continue;
                    first_kh = std::min(first_kh, kh);
                    for (Int kw = 0; kw < s.kernel_width; ++kw) {
                        b.offsets[used++] = (y - input_row(t.top, 0)) * b.image.row_pitch +
                                            b.spans[kw].offset;
                    }
                }
                sum_over_channels<S>({count, channels, used, b.image.buffer.data(), b.image.pitch,
                                      b.offsets.data(), b.other.data(), nullptr, b.result.data(),
                                      pitch, channel > 0});
            }
            const Int first_tap = first_kh * s.kernel_width;
            for (Int kh = 0, tap = 0; kh < s.kernel_height; ++kh) {
                T* to = weight_at(t, kh, 0, h, t.left);
                for (Int kw = 0; kw < s.kernel_width; ++kw, ++tap, to += weight.kw) {
                    if (tap < first_tap || tap >= first_tap + used) {
                        std::fill(to, to + count, T{});
                        continue;
                    }
                    S* row = b.result.data() + (tap - first_tap) * pitch;
                    for (Int w = 0; w < b.spans[kw].begin; ++w) row[w] = 0;
                    for (Int w = b.spans[kw].end; w < count; ++w) row[w] = 0;
                    prefetch<1>(to + weight.h, count);
                    copy_out(row, to, 1, count);
                }
            }
        }
    }

    void work() {
        try {
            Scratch b;
            b.offsets.resize(taps);
            b.weights.resize(taps);
            const Int count = s.batch * s.groups * chunks * tiles_down * tiles_across;
            for (Int i; (i = next++) < count && !failed;) {
                Tile t;
                t.left = i % tiles_across * tile_width;
                t.right = std::min(t.left + tile_width, width);
                i /= tiles_across;
                t.top = i % tiles_down * tile_height;
                t.bottom = std::min(t.top + tile_height, height);
                i /= tiles_down;
                t.g = i / chunks % s.groups;
                t.n = i / chunks / s.groups;
                t.channel = t.g * group_channels + i % chunks * chunk;
                t.channels = std::min(chunk, (t.g + 1) * group_channels - t.channel);
                if (kernel == 0) forward(t, b);
                if (kernel == 1) grad_input(t, b);
                if (kernel == 2) grad_weight(t, b);
            }
        } catch (...) {  // what leaves a thread ends the process
            failed = true;
        }
    }

public:
    Involution(int kernel, const Geometry& s, void* const* data, const Int* strides)
        : s(s), kernel(kernel),
          input{static_cast<T*>(data[0]), strides[0], strides[1], strides[2], strides[3]},
          output{static_cast<T*>(data[2]), strides[10], strides[11], strides[12], strides[13]},
          weight{static_cast<T*>(data[1]), strides[4], strides[5], strides[6],
                 strides[7], strides[8], strides[9]},
          group_channels(s.channels / s.groups), taps(s.kernel_height * s.kernel_width) {
        height = kernel == 1 ? s.height : s.out_height;
        width = kernel == 1 ? s.width : s.out_width;
        chunks = kernel == 2 ? 1 : ceil_div(group_channels, chunk);
        tiles_across = ceil_div(width, 128);
        tile_width = ceil_div(width, tiles_across);
        // As many rows as keep the window in the cache, but no more than that
        const Int channels = std::min(chunk, group_channels);
        const Int row_size = channels * (tile_width * (kernel == 1 ? 1 : s.stride_width) + 24);
        Int rows = tile_bytes / sizeof(S) / row_size;
        rows = std::max<Int>(1, kernel == 1 ? rows : rows / s.stride_height);
        if (kernel == 2 && group_channels > chunk) rows = 1;
        tiles_down = ceil_div(height, rows);
        tile_height = ceil_div(height, tiles_down);
        tiles_down = ceil_div(height, tile_height);
    }

    // Counted in double: a dilation may be so large that an integer overflows.
    bool fits() const {
        const double down = kernel == 1 ? s.stride_height : 1, across = kernel == 1 ? s.stride_width : 1;
        const double stride_down = kernel == 1 ? 1 : s.stride_height;
        const double stride_across = kernel == 1 ? 1 : s.stride_width;
        const double rows = ((tile_height - 1) * stride_down +
                             double(s.kernel_height - 1) * s.dilation_height) / down + 2;
        const double columns = ((tile_width - 1) * stride_across +
                                double(s.kernel_width - 1) * s.dilation_width) / across + 2;
        const double parts = kernel == 1 ? std::min(s.stride_width, tile_width) : s.stride_width;
        const double window = std::min(chunk, group_channels) * rows * (columns + parts * lanes<S>);
        const double weights = double(taps) * (tile_width + (kernel == 1 ? parts : 1) * lanes<S>);
        return (window + weights) * sizeof(S) <= largest_window;
    }

    bool run(int threads) {
        // A thread takes some 20 microseconds to start, so each gets a million products or more.
        const double outputs = double(s.batch) * s.channels * s.out_height * s.out_width;
        threads = int(std::min<double>(threads, 1 + outputs * taps / 1000000));
        std::vector<std::thread> others;
        try {
            for (int i = 1; i < threads; ++i) others.emplace_back([this] { work(); });
        } catch (...) {
        }  // those that started do the work
        work();
        for (std::thread& other : others) other.join();
        return !failed;
    }
};

template <class T> int run(int kernel, const Geometry& s, void* const* data, const Int* strides,
                           int threads) {
    Involution<T> involution(kernel, s, data, strides);
    return !involution.fits() ? 2 : !involution.run(threads);
}

// kernel: 0, 1, 2, the order of KERNELS in geometry.py. type: 0 to 3, that of DTYPES.
// data, strides: of input (4), weight (6) and output (4), one of which is written; a weight that is
// written is contiguous.
// Returns 0; 1 where there is not enough memory; 2, and does nothing, where the buffers would be
// larger than `largest_window`.
extern "C" int involution2d(int kernel, int type, const Geometry* s, void* const* data,
                            const Int* strides, int threads) {
    try {
        if (type == 0) return run<double>(kernel, *s, data, strides, threads);
        if (type == 1) return run<float>(kernel, *s, data, strides, threads);
        if (type == 2) return run<Float16>(kernel, *s, data, strides, threads);
        return run<BFloat16>(kernel, *s, data, strides, threads);
    } catch (...) {  // what passes the border of C ends the process
        return 1;
    }
}
