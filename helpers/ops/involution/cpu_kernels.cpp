// Involution on a CPU: the output, the gradient of the input, the gradient of the weight.
//
// The work is cut into tiles: some rows and columns of the result, of one sample and one group. A
// tile belongs to one thread, and each element is summed in one fixed order, so any number of
// threads gives the same bits. For a tile, a thread copies what it reads of an image into a buffer
// that stays in its cache, with zeros around the border, as float or double. There
//
// - neighbouring columns of the result read neighbouring elements at any stride, because the
//   columns are sorted by their remainder: 0, 2, 4, ..., 1, 3, 5, ... for a stride of 2;
// - strides, layouts and types of the tensors do not matter, so tensors are never copied whole.
//
// The weight, the largest array, is read where it lies if its rows lie there as vectors want them.
// What is left are two loops over vectors of neighbouring columns. The sums stay in registers:
//
//     result[c] = sum over taps of weight[tap] * image[c][shifted by tap]      (multiply_by_taps)
//     result[tap] = sum over c of grad_output[c] * image[c][shifted by tap]    (sum_over_channels)
//
// Two rows of the result are made at once: most rows of the image meet both, so what is loaded of
// the image is multiplied twice. The first loop makes the output from the input, and the gradient
// of the input from grad_output: seen from an input pixel, that is a sum over taps, too.
// No torch headers: this compiles in seconds.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <numeric>
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

template <class T> using SumOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

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

template <int n> using Constant = std::integral_constant<int, n>;

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
    else if (size >= 64) both_ends(Constant<64>());
    else if (size >= 32) both_ends(Constant<32>());
    else if (size >= 16) both_ends(Constant<16>());
    else for (Int i = 0; i < size; ++i) target[i] = source[i];
}

template <class T, class S> void copy_in(const T* from, Int stride, S* to, Int count) {
    if constexpr (std::is_same_v<T, S>) {
        if (stride == 1) return copy_bytes(from, to, count * Int(sizeof(T)));
    }
    if (stride == 1) for (Int i = 0; i < count; ++i) to[i] = widen(from[i]);
    else for (Int i = 0; i < count; ++i) to[i] = widen(from[i * stride]);
}

// Vectors, wherever they lie in memory.

#ifdef __AVX__
constexpr int vector_bytes = 32;
#else
constexpr int vector_bytes = 16;
#endif
template <class S> constexpr int lanes = vector_bytes / sizeof(S);
template <class S> struct VectorOf { typedef S type __attribute__((vector_size(vector_bytes))); };
template <class S> using Vector = typename VectorOf<S>::type;
template <class S> using Mask = std::conditional_t<sizeof(S) == 8, std::int64_t, std::int32_t>;

template <class S> inline Vector<S> load(const S* from) {
    Vector<S> v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

// Zero where the bits of the mask are, v where they are ones.
template <class S> inline Vector<S> masked(Vector<S> v, const Mask<S>* mask) {
    return (Vector<S>)((Vector<Mask<S>>)v & load(mask));
}

// Kept out of the loops that call it, which then compile in half the time
template <class S, class T> __attribute__((noinline)) void narrow_vector(Vector<S> v, T* to) {
    for (int i = 0; i < lanes<S>; ++i) narrow(v[i], to + i);
}

// As many numbers as there is room for.
template <class S, class T> inline void store(Vector<S> v, T* to, Int stride, Int room) {
    T numbers[lanes<S>];
    if constexpr (std::is_same_v<T, S>) std::memcpy(numbers, &v, sizeof v);
    else narrow_vector<S>(v, numbers);
    const Int count = std::min<Int>(room, lanes<S>);
    if (stride != 1) for (Int i = 0; i < count; ++i) to[i * stride] = numbers[i];
    else if (count == lanes<S>) std::memcpy(to, numbers, sizeof numbers);
    else copy_bytes(numbers, to, count * Int(sizeof(T)));
}

#if defined(__AVX512VL__) || defined(__aarch64__)
constexpr int channel_block = 8;  // 16 sums for two rows, of 32 registers
#else
constexpr int channel_block = 4;  // 8 sums, of 16 registers
#endif
constexpr int tap_block = 7;  // most kernels are 3, 5 or 7 wide
constexpr Int chunk = 64;     // channels of the result that are worked on at once
constexpr Int tile_bytes = 384 * 1024;
constexpr double largest_window = 4 << 20;  // bytes

// A tap of the kernel, in a row of the image and the rows of the result that meet it.
template <class S> struct Tap {
    Int image, weight;    // offsets in elements: of what the first column sees, of its weight
    const S* from[2];     // the weights of each row, to be read
    const Mask<S>* mask;  // of the columns that see the image
};

// One row of the result, or two: `count` columns.
template <class T, class S> struct Rows {
    Int count, channels;
    int rows;
    std::vector<Tap<S>> taps[3];  // that meet the first row, both, the second
    const S* image;               // image + c * image_pitch + tap.image
    Int image_pitch;
    const S* from;                // grad_output: from + c * from_pitch
    Int from_row, from_pitch;     // from_row: to the second row
    T* to;                        // to + c * to_pitch, or the weight: to + tap.weight
    Int to_row, to_pitch, to_column;
    Int ahead;  // from a weight to one to prefetch: taps are more streams than a processor follows
};

// Calls f with the rows that taps meet, as constants: the sums of both are in registers.
template <class T, class S, class F> inline void for_taps(const Rows<T, S>& r, F f) {
    f(Constant<0>(), Constant<1>(), r.taps[0]);
    f(Constant<0>(), Constant<2>(), r.taps[1]);
    f(Constant<1>(), Constant<2>(), r.taps[2]);
}

template <int B, class T, class S>
void taps_block(const Rows<T, S>& r, Int column, Int channel) {
    Vector<S> sum[2][B];
    for (auto& row : sum) for (auto& one : row) one = Vector<S>{};
    const S* image[B];
    for (int j = 0; j < B; ++j) image[j] = r.image + (channel + j) * r.image_pitch + column;
    for_taps(r, [&](auto first, auto end, const auto& taps) {
        for (const Tap<S>& tap : taps) {
            Vector<S> w[2];
            for (int i = first; i < end; ++i) {
                const S* from = tap.from[i] + column;
                __builtin_prefetch(from + r.ahead, 0, 2);
                w[i] = masked<S>(load<S>(from), tap.mask + column);
            }
            Vector<S> pixels[B];  // or the compiler loads each in both products
            for (int j = 0; j < B; ++j) pixels[j] = load<S>(image[j] + tap.image);
            for (int i = first; i < end; ++i) {
                for (int j = 0; j < B; ++j) sum[i][j] += w[i] * pixels[j];
            }
        }
    });
    T* to = r.to + channel * r.to_pitch + column * r.to_column;
    for (int j = 0; j < B; ++j, to += r.to_pitch) {
        for (int i = 0; i < 2 && i < r.rows; ++i) {
            store<S>(sum[i][j], to + i * r.to_row, r.to_column, r.count - column);
        }
    }
}

// For N rows, from `first` on.
template <int N, int B, class T, class S>
void channels_block(const Rows<T, S>& r, const Tap<S>* taps, int first, Int column) {
    Vector<S> sum[N][B];
    for (auto& row : sum) for (auto& one : row) one = Vector<S>{};
    const S* image = r.image + column;
    const S* from = r.from + first * r.from_row + column;
    for (Int c = 0; c < r.channels; ++c, image += r.image_pitch, from += r.from_pitch) {
        Vector<S> g[N];
        for (int i = 0; i < N; ++i) g[i] = load<S>(from + i * r.from_row);
        for (int j = 0; j < B; ++j) {
            const auto pixels = load<S>(image + taps[j].image);
            for (int i = 0; i < N; ++i) sum[i][j] += g[i] * pixels;
        }
    }
    for (int j = 0; j < B; ++j) {
        for (int i = 0; i < N; ++i) {
            T* to = r.to + (first + i) * r.to_row + taps[j].weight + column;
            __builtin_prefetch(to + r.ahead, 1);
            store<S>(masked<S>(sum[i][j], taps[j].mask + column), to, 1, r.count - column);
        }
    }
}

// As many blocks of B as there are between first and end, then smaller ones.
template <int B, class F> void for_blocks(Int first, Int end, F f) {
    for (; first + B <= end; first += B) f(Constant<B>(), first);
    if constexpr (B > 1) for_blocks<B / 2>(first, end, f);
}

// Where vectors begin. The last one overlaps another, unless the row is shorter than a vector.
template <class S, class F> void for_columns(Int count, F f) {
    for (Int column = 0; column < count; column += lanes<S>) {
        f(std::max<Int>(0, std::min(column, count - lanes<S>)));
    }
}

template <class T, class S> void multiply_by_taps(const Rows<T, S>& r) {
    for_columns<S>(r.count, [&](Int column) {
        for_blocks<channel_block>(0, r.channels, [&](auto block, Int channel) {
            taps_block<block>(r, column, channel);
        });
    });
}

template <class T, class S> void sum_over_channels(const Rows<T, S>& r) {
    for_taps(r, [&](auto first, auto end, const auto& taps) {
        for_columns<S>(r.count, [&](Int column) {
            for_blocks<tap_block>(0, taps.size(), [&](auto block, Int tap) {
                channels_block<end - first, block>(r, taps.data() + tap, first, column);
            });
        });
    });
}

// Tiles.

inline Int ceil_div(Int a, Int b) { return (a + b - 1) / b; }
inline Int floor_div(Int a, Int b) { return a / b - (a % b < 0); }

// Part of an image, in a buffer. Row y, column x, channel c of the tensor, each counted from the
// first one here, lies at y * row_pitch + c * pitch + x % stride * part_pitch + x / stride.
template <class S> struct Window {
    std::vector<S> buffer;
    Int pitch = 0, row_pitch = 0, part_pitch = 0;

    template <class T>
    void fill(const Image<T>& from, Int channels, Int first_row, Int rows, Int height,
              Int first_column, Int columns, Int width, Int stride) {
        part_pitch = ceil_div(columns, stride) + lanes<S>;
        pitch = part_pitch * stride;
        row_pitch = pitch * channels;
        buffer.assign(row_pitch * rows, S(0));
        const Int top = std::max<Int>(0, -first_row), bottom = std::min(rows, height - first_row);
        for (Int part = 0; part < stride; ++part) {
            // columns first_column + i * stride + part, as far as the tensor has them
            const Int zero = first_column + part;
            const Int begin = zero < 0 ? ceil_div(-zero, stride) : 0;
            const Int end = std::min(ceil_div(columns - part, stride),
                                     zero < width ? ceil_div(width - zero, stride) : 0);
            if (begin >= end) continue;
            const T* source = from.data + (zero + begin * stride) * from.w;
            S* target = buffer.data() + part * part_pitch + begin;
            for (Int c = 0; c < channels; ++c) {
                for (Int y = top; y < bottom; ++y) {
                    copy_in(source + c * from.c + (first_row + y) * from.h, from.w * stride,
                            target + c * pitch + y * row_pitch, end - begin);
                }
            }
        }
    }
};

template <class T> class Involution {
    using S = SumOf<T>;
    const Geometry s;
    const int kernel;  // 0, 1, 2: makes output, input, weight
    const Image<T> input, output;
    const Weight<T> weight;
    const Int group_channels, taps;
    Int height, width, tile_height, tile_width, tiles_down, tiles_across, channels, chunks;
    Int step, tap_step;  // between two rows of the result that are made at once
    Int weight_end;
    std::atomic<Int> next{0};
    std::atomic<bool> failed{false};

    struct Tile { Int n, g, channel, channels, top, bottom, left, right; };

    // Column kw of the kernel: columns [begin, end) of the result meet the image there.
    struct Column { Int image, weight, begin, end; };

    struct Scratch {
        Window<S> image, grad_output;
        std::vector<Column> columns;
        std::vector<Mask<S>> masks;  // of each column, in rows of `pitch`
        std::vector<S> weights;      // in such rows
        Int pitch;                   // at least a vector
        Rows<T, S> rows;
    };

    static Image<T> at(Image<T> image, Int n, Int channel) {
        image.data += n * image.n + channel * image.c;
        return image;
    }

    Int input_row(Int h, Int kh) const {
        return h * s.stride_height - s.padding_height + kh * s.dilation_height;
    }

    void start(const Tile& t, Int count, Scratch& b) const {
        b.rows.count = count;
        b.rows.channels = t.channels;
        b.rows.image = b.image.buffer.data();
        b.rows.image_pitch = b.image.pitch;
        b.pitch = std::max<Int>(count, lanes<S>);
        b.columns.clear();
        b.masks.assign(s.kernel_width * b.pitch, 0);
        b.weights.resize(2 * taps * b.pitch);
    }

    // Column i of the result meets column first + i * stride of an image of that width.
    void add_column(Int first, Int stride, Int width, Int image, Int weight, Scratch& b) const {
        const Int count = b.rows.count;
        const Int begin = first < 0 ? std::min(count, ceil_div(-first, stride)) : 0;
        const Int end = first < width ? std::min(count, ceil_div(width - first, stride)) : 0;
        const auto mask = b.masks.begin() + b.columns.size() * b.pitch;
        if (begin < end) std::fill(mask + begin, mask + end, -1);
        b.columns.push_back({image, weight, begin, std::max(begin, end)});
    }

    // Row (first + q * distance) / stride of an image, if there is one, meets tap q of the first
    // row of the result, and tap q - tap_step of the second. `place` is where the weights of tap 0
    // are, and they are `weight_row` farther on for the next row of the image, and `second` for the
    // second row of the result.
    void find_taps(Int first, Int distance, Int stride, Int height, Int top, Int place,
                   Int weight_row, Int second, Scratch& b) const {
        for (auto& taps : b.rows.taps) taps.clear();
        S* copy = b.weights.data();
        for (Int q = 0; q < s.kernel_height + (b.rows.rows - 1) * tap_step; ++q) {
            const Int y = floor_div(first + q * distance, stride);
            if (y * stride != first + q * distance || y < 0 || y >= height) continue;
            const int begin = q < s.kernel_height ? 0 : 1, end = q < tap_step ? 1 : b.rows.rows;
            if (begin >= end) continue;
            auto& taps = b.rows.taps[begin + end - 1];
            const Int image = (y - top) * b.image.row_pitch;
            const Int row = place + q * weight.kh + y * weight_row;
            const Mask<S>* mask = b.masks.data();
            taps.resize(taps.size() + b.columns.size());
            Tap<S>* tap = taps.data() + taps.size() - b.columns.size();
            for (const Column& column : b.columns) {
                tap->image = image + column.image;
                tap->weight = row + column.weight;
                tap->mask = mask;
                if (kernel != 2) for (int i = begin; i < end; ++i, copy += b.pitch) {
                    tap->from[i] = readable(row + column.weight + i * second, column, b, copy);
                }
                ++tap;
                mask += b.pitch;
            }
        }
    }

    // A row of weights where vectors can read it: where it lies, or a copy. What they read beyond
    // the column's ends is masked.
    const S* readable(Int row, const Column& column, const Scratch& b, S* copy) const {
        if constexpr (std::is_same_v<T, S>) {
            const bool inside = row >= 0 && row + b.pitch <= weight_end;
            if (weight.w == 1 && inside) return weight.data + row;
        }
        const T* from = weight.data + (row + column.begin * weight.w);
        const Int count = column.end - column.begin;
        if (weight.w == 1) for (Int i = 0; i < count; i += 64 / sizeof(T)) {
            __builtin_prefetch(from + b.rows.ahead + i);
        }
        copy_in(from, weight.w, copy + column.begin, count);
        return copy;
    }

    // Calls f(first row, number of rows): it and the row `step` below, or it alone.
    template <class F> void for_rows(const Tile& t, F f) const {
        for (Int top = t.top; top < t.bottom; top += 2 * step) {
            for (Int h = top; h < std::min(top + step, t.bottom); ++h) {
                f(h, h + step < t.bottom ? 2 : 1);
            }
        }
    }

    void fill_with_input(const Tile& t, Scratch& b) const {
        const Int left = t.left * s.stride_width - s.padding_width;
        b.image.fill(at(input, t.n, t.channel), t.channels, input_row(t.top, 0),
                     input_row(t.bottom - 1, s.kernel_height - 1) - input_row(t.top, 0) + 1,
                     s.height, left,
                     (t.right - 1 - t.left) * s.stride_width +
                         (s.kernel_width - 1) * s.dilation_width + 1,
                     s.width, s.stride_width);
        start(t, t.right - t.left, b);
        for (Int kw = 0; kw < s.kernel_width; ++kw) {
            const Int shift = kw * s.dilation_width;
            add_column(left + shift, s.stride_width, s.width,
                       shift % s.stride_width * b.image.part_pitch + shift / s.stride_width,
                       kw * weight.kw, b);
        }
    }

    void find_input_taps(const Tile& t, Int h, Scratch& b) const {
        find_taps(input_row(h, 0), s.dilation_height, 1, s.height, input_row(t.top, 0),
                  t.n * weight.n + t.g * weight.g + h * weight.h + t.left * weight.w, 0,
                  step * weight.h - tap_step * weight.kh, b);
    }

    // Weights that meet the border are zero, not only the input there: inf * 0 is nan.
    void forward(const Tile& t, Scratch& b) const {
        fill_with_input(t, b);
        Rows<T, S>& r = b.rows;
        const Image<T> to = at(output, t.n, t.channel);
        r.to_row = step * to.h;
        r.to_pitch = to.c;
        r.to_column = to.w;
        for_rows(t, [&](Int h, int rows) {
            r.rows = rows;
            r.to = to.data + h * to.h + t.left * to.w;
            find_input_taps(t, h, b);
            multiply_by_taps(r);
        });
    }

    // From the input pixel (y, x): tap (kh, kw) of the output pixel (h, w) reads it, if
    //     h * stride = y + padding - kh * dilation, and likewise w.
    // Columns x with the same (x + padding) % stride have the same taps, at neighbouring w. The tap
    // grows with y, so the first of two rows is the lower one.
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
        Rows<T, S>& r = b.rows;
        const Image<T> to = at(input, t.n, t.channel);
        r.to_row = -step * to.h;
        r.to_pitch = to.c;
        r.to_column = to.w * sw;
        for (Int part = 0; part < std::min(sw, t.right - t.left); ++part) {
            start(t, ceil_div(t.right - t.left - part, sw), b);
            for (Int kw = 0; kw < s.kernel_width; ++kw) {
                const Int w_times_stride = t.left + part + s.padding_width - kw * s.dilation_width;
                const Int w = floor_div(w_times_stride, sw);
                if (w * sw == w_times_stride) {
                    add_column(w, 1, s.out_width, w - first_column,
                               kw * weight.kw + w * weight.w, b);
                }
            }
            for_rows(t, [&](Int h, int rows) {
                const Int y = h + (rows - 1) * step;
                r.rows = rows;
                r.to = to.data + y * to.h + (t.left + part) * to.w;
                find_taps(y + s.padding_height, -s.dilation_height, sh, s.out_height, first_row,
                          t.n * weight.n + t.g * weight.g, weight.h, -tap_step * weight.kh, b);
                multiply_by_taps(r);
            });
        }
    }

    // Where a tap meets the border the result is zero, not 0 * grad_output: that may be inf.
    void grad_weight(const Tile& t, Scratch& b) const {
        fill_with_input(t, b);
        Rows<T, S>& r = b.rows;
        b.grad_output.fill(at(output, t.n, t.channel), t.channels, t.top, t.bottom - t.top,
                           s.out_height, t.left, r.count, s.out_width, 1);
        r.to = weight.data;
        r.to_row = step * weight.h - tap_step * weight.kh;
        r.from_row = step * b.grad_output.row_pitch;
        r.from_pitch = b.grad_output.pitch;
        for_rows(t, [&](Int h, int rows) {
            r.rows = rows;
            r.from = b.grad_output.buffer.data() + (h - t.top) * b.grad_output.row_pitch;
            find_input_taps(t, h, b);
            sum_over_channels(r);
        });
        for (Int h = t.top; h < t.bottom; ++h) {
            for (Int kh = 0; kh < s.kernel_height; ++kh) {
                if (input_row(h, kh) >= 0 && input_row(h, kh) < s.height) continue;
                for (const Column& column : b.columns) {
                    T* to = weight.data + t.n * weight.n + t.g * weight.g + kh * weight.kh +
                            h * weight.h + t.left + column.weight;
                    std::fill(to, to + r.count, T{});
                }
            }
        }
    }

    void work() {
        try {
            Scratch b;
            b.rows.ahead = 2 * weight.h;
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
                t.channel = t.g * group_channels + i % chunks * channels;
                t.channels = std::min(channels, (t.g + 1) * group_channels - t.channel);
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
        channels = kernel == 2 ? group_channels : std::min(chunk, group_channels);
        chunks = ceil_div(group_channels, channels);
        // h * stride + kh * dilation is the same for (h, kh) and (h + step, kh - tap_step)
        const Int common = std::gcd(s.stride_height, s.dilation_height);
        step = kernel == 1 ? s.dilation_height : s.dilation_height / common;
        tap_step = kernel == 1 ? 1 : s.stride_height / common;
        weight_end = 1 + (s.batch - 1) * weight.n + (s.groups - 1) * weight.g +
                     (s.kernel_height - 1) * weight.kh + (s.kernel_width - 1) * weight.kw +
                     (s.out_height - 1) * weight.h + (s.out_width - 1) * weight.w;
        // A gradient of the weight sums all channels of a group. With many, its tiles are narrow:
        // the window of 4,096 channels fits for a kernel of 7 x 7, in double, too.
        const Int narrow = 128 * 1024 / Int(sizeof(S)) / channels;
        tiles_across = ceil_div(width, std::clamp<Int>(narrow, lanes<S>, 128));
        tile_width = ceil_div(width, tiles_across);
        // As many rows as keep the window in the cache, but no more than that
        const Int row_size = channels * (tile_width * (kernel == 1 ? 1 : s.stride_width) + 24);
        Int rows = tile_bytes / sizeof(S) / row_size;
        rows = std::max<Int>(1, kernel == 1 ? rows : rows / s.stride_height);
        tiles_down = ceil_div(height, rows);
        tile_height = ceil_div(height, tiles_down);
        tiles_down = ceil_div(height, tile_height);
    }

    // Counted in double: a dilation may be so large that an integer overflows.
    bool fits() const {
        const double reach_down = double(s.kernel_height - 1) * s.dilation_height;
        const double reach_across = double(s.kernel_width - 1) * s.dilation_width;
        const double down = tile_height - 1, across = tile_width - 1;
        const double rows = 2 + (kernel == 1 ? (down + reach_down) / s.stride_height
                                             : down * s.stride_height + reach_down);
        const double columns = 2 + (kernel == 1 ? (across + reach_across) / s.stride_width
                                                : across * s.stride_width + reach_across);
        const double parts = kernel == 1 ? std::min(s.stride_width, tile_width) : s.stride_width;
        const double window = channels * rows * (columns + parts * lanes<S>);
        const double other = double(kernel == 2 ? channels * tile_height : 2 * taps);
        return (window + other * (tile_width + lanes<S>)) * sizeof(S) <= largest_window;
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
