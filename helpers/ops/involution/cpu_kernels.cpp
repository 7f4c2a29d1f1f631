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

template <class S> S widen(S x) { return x; }
inline float widen(BFloat16 x) { return float_of(std::uint32_t(x.bits) << 16); }
inline float widen(Float16 x) {
    // Exponent and fraction move to the places of a float's. The product with 2^112 accounts for
    // the other bias of the exponent, also below 2^-14; inf and nan get the largest exponent.
    const std::uint32_t size = std::uint32_t(x.bits & 0x7fff) << 13;
    const std::uint32_t top = size >= 0x0f800000u ? 0x7f800000u : 0u;
    const std::uint32_t sign = std::uint32_t(x.bits & 0x8000) << 16;
    return float_of(bits_of(float_of(size) * 0x1p112f) | top | sign);
}

template <class S> void narrow(S x, S* to) { *to = x; }
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

inline Int ceil_div(Int a, Int b) { return (a + b - 1) / b; }
inline Int floor_div(Int a, Int b) { return a / b - (a % b < 0); }
template <int n> using Constant = std::integral_constant<int, n>;

template <class T, class S> void copy_in(const T* from, Int stride, S* to, Int count) {
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
template <class S> inline Vector<S> masked(Vector<S> v, Vector<Mask<S>> mask) {
    return (Vector<S>)((Vector<Mask<S>>)v & mask);
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
    if (stride == 1 && room >= lanes<S>) std::memcpy(to, numbers, sizeof numbers);
    else for (Int i = 0; i < lanes<S> && i < room; ++i) to[i * stride] = numbers[i];
}

#if defined(__AVX512VL__) || defined(__aarch64__)
constexpr int channel_block = 8;  // 16 sums for two rows, of 32 registers
#else
constexpr int channel_block = 4;  // 8 sums, of 16 registers
#endif
constexpr Int chunk = 64;     // channels of the result that are worked on at once
constexpr Int tile_bytes = 384 * 1024;
constexpr double largest_window = 4 << 20;  // bytes

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

// A column of the kernel: columns [begin, end) of the result meet the image there. The offsets, here
// and below, are of what the first column of the result sees, and of its weight, in elements.
struct Column { Int image, weight, begin, end; };

// A row of the image, and the weights with which rows of the result meet it.
template <class S> struct Line {
    Int image, weight;          // offsets, to which a column's are added
    const S* from;              // those weights for the first column, to be read
    Int from_row, from_column;  // to those of the second row of the result, of the next column
};

// One row of the result, or two: `count` columns. And what a thread keeps for a tile.
template <class T, class S> struct Rows {
    Int count, channels;
    int rows;
    std::vector<Line<S>> lines[3];  // that meet the first row, both, the second
    std::vector<Column> columns;
    std::vector<Mask<S>> masks;     // ones where a column meets the image, in rows of `pitch`
    Int pitch;                      // at least a vector
    std::vector<S> weights;         // copies, in such rows
    Window<S> image, grad_output;
    const S* from;                  // grad_output of the first row, in its window
    Int from_row;                   // to that of the second
    T* to;                          // to + c * to_pitch, or to + line.weight + column.weight
    Int to_row, to_pitch, to_column;
    Int ahead;  // from a weight to one to prefetch: taps are more streams than a processor follows
};

// Calls f with the rows that lines meet, as constants: the sums of both are in registers.
template <class T, class S, class F> inline void for_lines(const Rows<T, S>& r, F f) {
    for (const Line<S>& line : r.lines[0]) f(Constant<0>(), Constant<1>(), line);
    for (const Line<S>& line : r.lines[1]) f(Constant<0>(), Constant<2>(), line);
    for (const Line<S>& line : r.lines[2]) f(Constant<1>(), Constant<2>(), line);
}

template <int B, class T, class S>
void taps_block(const Rows<T, S>& r, Int column, Int channel) {
    Vector<S> sum[2][B];
    for (auto& row : sum) for (auto& one : row) one = Vector<S>{};
    const S* image = r.image.buffer.data() + channel * r.image.pitch + column;
    const Int pitch = r.image.pitch, ahead = r.ahead, mask_pitch = r.pitch;
    for_lines(r, [&](auto first, auto end, const Line<S>& line) {
        const S* from = line.from + column;
        const Mask<S>* mask = r.masks.data() + column;
        for (const Column& one : r.columns) {
            const auto seen = load(mask);
            Vector<S> w[2];
            for (int i = first; i < end; ++i) {
                __builtin_prefetch(from + i * line.from_row + ahead, 0, 2);
                w[i] = masked<S>(load<S>(from + i * line.from_row), seen);
            }
            Vector<S> pixels[B];  // or the compiler loads each in both products
            const S* at = image + line.image + one.image;
            for (int j = 0; j < B; ++j, at += pitch) pixels[j] = load<S>(at);
            for (int i = first; i < end; ++i) {
                for (int j = 0; j < B; ++j) sum[i][j] += w[i] * pixels[j];
            }
            from += line.from_column;
            mask += mask_pitch;
        }
    });
    T* to = r.to + channel * r.to_pitch + column * r.to_column;
    for (int j = 0; j < B; ++j, to += r.to_pitch) {
        for (int i = 0; i < 2 && i < r.rows; ++i) {
            store<S>(sum[i][j], to + i * r.to_row, r.to_column, r.count - column);
        }
    }
}

// For the columns of the kernel from `kw` on, and N rows, from `first` on.
template <int N, int B, class T, class S>
void channels_block(const Rows<T, S>& r, const Line<S>& line, Int kw, int first, Int column) {
    Vector<S> sum[N][B];
    for (auto& row : sum) for (auto& one : row) one = Vector<S>{};
    const Column* columns = r.columns.data() + kw;
    const S* image = r.image.buffer.data() + line.image + column;
    const S* from = r.from + first * r.from_row + column;
    for (Int c = 0; c < r.channels; ++c, image += r.image.pitch, from += r.grad_output.pitch) {
        Vector<S> g[N];
        for (int i = 0; i < N; ++i) g[i] = load<S>(from + i * r.from_row);
        for (int j = 0; j < B; ++j) {
            const auto pixels = load<S>(image + columns[j].image);
            for (int i = 0; i < N; ++i) sum[i][j] += g[i] * pixels;
        }
    }
    const Mask<S>* mask = r.masks.data() + kw * r.pitch + column;
    for (int j = 0; j < B; ++j, mask += r.pitch) {
        for (int i = 0; i < N; ++i) {
            T* to = r.to + (first + i) * r.to_row + line.weight + columns[j].weight + column;
            __builtin_prefetch(to + r.ahead, 1);
            store<S>(masked<S>(sum[i][j], load(mask)), to, 1, r.count - column);
        }
    }
}

// As many blocks of B as there are between first and end, then smaller ones.
template <int B, int... smaller, class F> void for_blocks(Int first, Int end, F f) {
    for (; first + B <= end; first += B) f(Constant<B>(), first);
    if constexpr (B > 1) for_blocks<smaller...>(first, end, f);
}

// Where vectors begin. The last one overlaps another, unless the row is shorter than a vector.
template <class S, class F> void for_columns(Int count, F f) {
    for (Int column = 0; column < count; column += lanes<S>) {
        f(std::max<Int>(0, std::min(column, count - lanes<S>)));
    }
}

template <class T, class S> void multiply_by_taps(const Rows<T, S>& r) {
    for_columns<S>(r.count, [&](Int column) {
        for_blocks<channel_block, 4, 2, 1>(0, r.channels, [&](auto block, Int channel) {
            taps_block<block>(r, column, channel);
        });
    });
}

template <class T, class S> void sum_over_channels(const Rows<T, S>& r) {
    for_lines(r, [&](auto first, auto end, const Line<S>& line) {
        for_columns<S>(r.count, [&](Int column) {
            for_blocks<7, 5, 3, 1>(0, r.columns.size(), [&](auto block, Int kw) {
                channels_block<end - first, block>(r, line, kw, first, column);
            });
        });
    });
}

// Tiles.

template <class T> class Involution {
    using S = SumOf<T>;
    const Geometry s;
    const int kernel;  // 0, 1, 2: makes output, input, weight
    const Image<T> input, output;
    const Weight<T> weight;
    const Int group_channels, taps;
    Int height, width, tile_height, tile_width, tiles_down, tiles_across, channels, chunks;
    Int down, across;    // in the image, from a row or column of the result to the next, at most
    Int step, tap_step;  // between two rows of the result that are made at once
    Int weight_end;
    std::atomic<Int> next{0};
    std::atomic<bool> failed{false};

    struct Tile { Int n, g, channel, channels, top, bottom, left, right; };

    static Image<T> at(Image<T> image, Int n, Int channel) {
        image.data += n * image.n + channel * image.c;
        return image;
    }

    Int input_row(Int h, Int kh) const {
        return h * s.stride_height - s.padding_height + kh * s.dilation_height;
    }

    void start(const Tile& t, Int count, Rows<T, S>& r) const {
        r.count = count;
        r.channels = t.channels;
        r.pitch = std::max<Int>(count, lanes<S>);
        r.columns.clear();
        r.masks.assign(s.kernel_width * r.pitch, 0);
        r.weights.resize(4 * taps * r.pitch);
    }

    // Column i of the result meets column first + i * stride of an image of that width.
    void add_column(Int first, Int stride, Int width, Int image, Int weight, Rows<T, S>& r) const {
        const Int begin = first < 0 ? std::min(r.count, ceil_div(-first, stride)) : 0;
        const Int end = first < width ? std::min(r.count, ceil_div(width - first, stride)) : 0;
        const auto mask = r.masks.begin() + r.columns.size() * r.pitch;
        if (begin < end) std::fill(mask + begin, mask + end, -1);
        r.columns.push_back({image, weight, begin, std::max(begin, end)});
    }

    // Row (first + q * distance) / stride of an image, if there is one, meets row q of the kernel
    // in the first row of the result, and q - tap_step in the second. `place` is where the weights
    // of row 0 are. They are `weight_row` farther on for the next row of the image, and `second`
    // for the second row of the result.
    void find_lines(Int first, Int distance, Int stride, Int height, Int top, Int place,
                    Int weight_row, Int second, Rows<T, S>& r) const {
        for (auto& lines : r.lines) lines.clear();
        S* copy = r.weights.data();
        for (Int q = 0; q < s.kernel_height + (r.rows - 1) * tap_step; ++q) {
            const Int y = floor_div(first + q * distance, stride);
            if (y * stride != first + q * distance || y < 0 || y >= height) continue;
            const int begin = q < s.kernel_height ? 0 : 1, end = q < tap_step ? 1 : r.rows;
            if (begin >= end || r.columns.empty()) continue;
            Line<S> line{(y - top) * r.image.row_pitch, place + q * weight.kh + y * weight_row};
            if (kernel != 2) find_weights(line, begin, end, second, r, copy);
            r.lines[begin + end - 1].push_back(line);
        }
    }

    // Weights where vectors can read them: where they lie, or in a copy. What vectors read beyond
    // the ends of a column is masked.
    void find_weights(Line<S>& line, int begin, int end, Int second, const Rows<T, S>& r,
                      S*& copy) const {
        const Int first = line.weight + r.columns.front().weight;
        const Int last = line.weight + r.columns.back().weight;
        if constexpr (std::is_same_v<T, S>) {
            const auto ends = std::minmax({first, last, first + second, last + second});
            if (weight.w == 1 && ends.first >= 0 && ends.second + r.pitch <= weight_end) {
                line.from = weight.data + first;
                line.from_row = second;
                line.from_column = (last - first) / std::max<Int>(1, r.columns.size() - 1);
                return;
            }
        }
        line.from = copy;
        line.from_row = r.columns.size() * r.pitch;
        line.from_column = r.pitch;
        copy += begin * line.from_row;
        for (int i = begin; i < end; ++i) for (const Column& column : r.columns) {
            const T* from = weight.data + (line.weight + i * second + column.weight);
            if (weight.w == 1) for (Int w = column.begin; w < column.end; w += 64 / sizeof(T)) {
                __builtin_prefetch(from + r.ahead + w);
            }
            copy_in(from + column.begin * weight.w, weight.w, copy + column.begin,
                    column.end - column.begin);
            copy += r.pitch;
        }
    }

    // Calls f(first row) for it and the row `step` below, or for it alone.
    template <class F> void for_rows(const Tile& t, Rows<T, S>& r, F f) const {
        for (Int top = t.top; top < t.bottom; top += 2 * step) {
            for (Int h = top; h < std::min(top + step, t.bottom); ++h) {
                r.rows = h + step < t.bottom ? 2 : 1;
                f(h);
            }
        }
    }

    void fill_with_input(const Tile& t, Rows<T, S>& r) const {
        const Int left = t.left * s.stride_width - s.padding_width;
        r.image.fill(at(input, t.n, t.channel), t.channels, input_row(t.top, 0),
                     input_row(t.bottom - 1, s.kernel_height - 1) - input_row(t.top, 0) + 1,
                     s.height, left,
                     (t.right - 1 - t.left) * s.stride_width +
                         (s.kernel_width - 1) * s.dilation_width + 1,
                     s.width, s.stride_width);
        start(t, t.right - t.left, r);
        for (Int kw = 0; kw < s.kernel_width; ++kw) {
            const Int shift = kw * s.dilation_width;
            add_column(left + shift, s.stride_width, s.width,
                       shift % s.stride_width * r.image.part_pitch + shift / s.stride_width,
                       kw * weight.kw, r);
        }
    }

    void find_input_lines(const Tile& t, Int h, Rows<T, S>& r) const {
        find_lines(input_row(h, 0), s.dilation_height, 1, s.height, input_row(t.top, 0),
                  t.n * weight.n + t.g * weight.g + h * weight.h + t.left * weight.w, 0,
                  step * weight.h - tap_step * weight.kh, r);
    }

    // Weights that meet the border are zero, not only the input there: inf * 0 is nan.
    void forward(const Tile& t, Rows<T, S>& r) const {
        fill_with_input(t, r);
        const Image<T> to = at(output, t.n, t.channel);
        r.to_row = step * to.h;
        r.to_pitch = to.c;
        r.to_column = to.w;
        for_rows(t, r, [&](Int h) {
            r.to = to.data + h * to.h + t.left * to.w;
            find_input_lines(t, h, r);
            multiply_by_taps(r);
        });
    }

    // From the input pixel (y, x): tap (kh, kw) of the output pixel (h, w) reads it, if
    //     h * stride = y + padding - kh * dilation, and likewise w.
    // Columns x with the same (x + padding) % stride have the same taps, at neighbouring w. The tap
    // grows with y, so the first of two rows is the lower one.
    void grad_input(const Tile& t, Rows<T, S>& r) const {
        const Int sh = s.stride_height, sw = s.stride_width;
        const Int reach_down = (s.kernel_height - 1) * s.dilation_height;
        const Int reach_across = (s.kernel_width - 1) * s.dilation_width;
        const Int first_row = floor_div(t.top + s.padding_height - reach_down, sh);
        const Int first_column = floor_div(t.left + s.padding_width - reach_across, sw);
        r.image.fill(at(output, t.n, t.channel), t.channels, first_row,
                     (t.bottom - 1 + s.padding_height) / sh - first_row + 1, s.out_height,
                     first_column, (t.right - 1 + s.padding_width) / sw - first_column + 1,
                     s.out_width, 1);
        const Image<T> to = at(input, t.n, t.channel);
        r.to_row = -step * to.h;
        r.to_pitch = to.c;
        r.to_column = to.w * sw;
        for (Int part = 0; part < std::min(sw, t.right - t.left); ++part) {
            start(t, ceil_div(t.right - t.left - part, sw), r);
            for (Int kw = 0; kw < s.kernel_width; ++kw) {
                const Int w_times_stride = t.left + part + s.padding_width - kw * s.dilation_width;
                const Int w = floor_div(w_times_stride, sw);
                if (w * sw == w_times_stride) {
                    add_column(w, 1, s.out_width, w - first_column,
                               kw * weight.kw + w * weight.w, r);
                }
            }
            for_rows(t, r, [&](Int h) {
                const Int y = h + (r.rows - 1) * step;
                r.to = to.data + y * to.h + (t.left + part) * to.w;
                find_lines(y + s.padding_height, -s.dilation_height, sh, s.out_height, first_row,
                          t.n * weight.n + t.g * weight.g, weight.h, -tap_step * weight.kh, r);
                multiply_by_taps(r);
            });
        }
    }

    // Where a tap meets the border the result is zero, not 0 * grad_output: that may be inf.
    void grad_weight(const Tile& t, Rows<T, S>& r) const {
        fill_with_input(t, r);
        r.grad_output.fill(at(output, t.n, t.channel), t.channels, t.top, t.bottom - t.top,
                           s.out_height, t.left, r.count, s.out_width, 1);
        r.to = weight.data;
        r.to_row = step * weight.h - tap_step * weight.kh;
        r.from_row = step * r.grad_output.row_pitch;
        for_rows(t, r, [&](Int h) {
            r.from = r.grad_output.buffer.data() + (h - t.top) * r.grad_output.row_pitch;
            find_input_lines(t, h, r);
            sum_over_channels(r);
        });
        for (Int h = t.top; h < t.bottom; ++h) {
            for (Int kh = 0; kh < s.kernel_height; ++kh) {
                if (input_row(h, kh) >= 0 && input_row(h, kh) < s.height) continue;
                T* to = weight.data + t.n * weight.n + t.g * weight.g + kh * weight.kh +
                        h * weight.h + t.left;
                for (const Column& one : r.columns) std::fill_n(to + one.weight, r.count, T{});
            }
        }
    }

    void work() {
        try {
            Rows<T, S> r;
            r.ahead = 2 * weight.h;
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
                if (kernel == 0) forward(t, r);
                if (kernel == 1) grad_input(t, r);
                if (kernel == 2) grad_weight(t, r);
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
        down = kernel == 1 ? 1 : s.stride_height;
        across = kernel == 1 ? 1 : s.stride_width;
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
        const Int rows = tile_bytes / sizeof(S) / (channels * (tile_width * across + 24)) / down;
        tiles_down = ceil_div(height, std::max<Int>(1, rows));
        tile_height = ceil_div(height, tiles_down);
    }

    // Counted in double: a dilation may be so large that an integer overflows.
    bool fits() const {
        const double reach_down = double(s.kernel_height) * s.dilation_height;
        const double reach_across = double(s.kernel_width) * s.dilation_width;
        const double columns = double(tile_width + lanes<S>) * across + reach_across;
        const double window = channels * (double(tile_height) * down + reach_down) * columns;
        const double other = double(kernel == 2 ? channels * tile_height : 4 * taps);
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
