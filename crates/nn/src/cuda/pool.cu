// Windows over planes. `table` holds, for rows and then for columns: where each window starts and ends, and for
// each pixel the first window that holds it and the first after it that does not.

struct Axis {
    const int *start, *end, *first, *last;
    int windows, size;
};
#define TABLE(table)                                                                                                  \
    const Axis down = {table, table + windows_h, table + 2 * windows_h, table + 2 * windows_h + height,               \
                       (int)windows_h, (int)height};                                                                  \
    const int *rest = table + 2 * (windows_h + height);                                                               \
    const Axis across = {rest, rest + windows_w, rest + 2 * windows_w, rest + 2 * windows_w + width, (int)windows_w,  \
                         (int)width};
#define SIZES Int planes, Int windows_h, Int height, Int windows_w, Int width

// What a window's sum is multiplied with: `fixed`, or one over its area where that is zero.
__device__ Real weight(Axis down, Axis across, int i, int j, double fixed) {
    if (fixed != 0) return (Real)fixed;
    return (Real)(1.0 / ((double)(down.end[i] - down.start[i]) * (double)(across.end[j] - across.start[j])));
}

// The place of a window's first largest value; not a number counts as largest.
__device__ int largest(Axis down, Axis across, const Real *x, int i, int j) {
    int best = down.start[i] * across.size + across.start[j];
    for (int r = down.start[i]; r < down.end[i]; r++)
        for (int s = across.start[j]; s < across.end[j]; s++) {
            const int place = r * across.size + s;
            const bool is_nan = x[place] != x[place], was_nan = x[best] != x[best];
            if (x[place] > x[best] || (is_nan && !was_nan)) best = place;
        }
    return best;
}

KERNEL pool_sums(Real *out, const Real *x, const int *table, SIZES, double fixed) {
    TABLE(table);
    EACH(at, planes * windows_h * windows_w) {
        const int index = (int)at, j = index % across.windows, i = index / across.windows % down.windows;
        const Real *plane = x + (Int)(index / across.windows / down.windows) * down.size * across.size;
        Real sum = 0;
        for (int r = down.start[i]; r < down.end[i]; r++)
            for (int s = across.start[j]; s < across.end[j]; s++) sum += plane[r * across.size + s];
        out[index] = sum * weight(down, across, i, j, fixed);
    }
}

KERNEL pool_spread(Real *out, const Real *g, const int *table, SIZES, double fixed) {
    TABLE(table);
    EACH(at, planes * height * width) {
        const int index = (int)at, s = index % across.size, r = index / across.size % down.size;
        const Real *given = g + (Int)(index / across.size / down.size) * down.windows * across.windows;
        Real sum = 0;
        for (int i = down.first[r]; i < down.last[r]; i++)
            for (int j = across.first[s]; j < across.last[s]; j++)
                sum += given[i * across.windows + j] * weight(down, across, i, j, fixed);
        out[index] = sum;
    }
}

KERNEL take_largest(Real *out, const Real *x, const Real *of, const int *table, SIZES, double unused) {
    TABLE(table);
    EACH(at, planes * windows_h * windows_w) {
        const int index = (int)at, j = index % across.windows, i = index / across.windows % down.windows;
        const Int plane = (Int)(index / across.windows / down.windows) * down.size * across.size;
        out[index] = of[plane + largest(down, across, x + plane, i, j)];
    }
}

KERNEL put_largest(Real *out, const Real *x, const Real *g, const int *table, SIZES, double unused) {
    TABLE(table);
    EACH(at, planes * height * width) {
        const int index = (int)at, s = index % across.size, r = index / across.size % down.size;
        const int which = index / across.size / down.size;
        const Real *plane = x + (Int)which * down.size * across.size;
        const Real *given = g + (Int)which * down.windows * across.windows;
        Real sum = 0;
        for (int i = down.first[r]; i < down.last[r]; i++)
            for (int j = across.first[s]; j < across.last[s]; j++)
                if (largest(down, across, plane, i, j) == r * across.size + s) sum += given[i * across.windows + j];
        out[index] = sum;
    }
}
