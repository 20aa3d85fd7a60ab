// Sums, in double precision and in an order that does not depend on chance.

// The sum of one number of each thread of a block, in the first thread.
__device__ double block_sum(double mine) {
    __shared__ double warps[32];
    for (int lane = 16; lane > 0; lane >>= 1) mine += __shfl_down_sync(0xffffffffu, mine, lane);
    const int warp = threadIdx.x / 32, count = (blockDim.x + 31) / 32;
    if (threadIdx.x % 32 == 0) warps[warp] = mine;
    __syncthreads();
    double sum = 0;
    if (threadIdx.x == 0)
        for (int w = 0; w < count; w++) sum += warps[w];
    return sum;
}

// One part of the sum for each block; whoever reads them adds them up.
KERNEL dot_parts(double *parts, const Real *a, const Real *b, Int count) {
    double sum = 0;
    EACH(i, count) sum += (double)a[i] * (double)b[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// The sum of each of up to eight lists: one block for each.
KERNEL sum_each(double *sums, const double *p0, const double *p1, const double *p2, const double *p3, const double *p4,
                const double *p5, const double *p6, const double *p7, Int n0, Int n1, Int n2, Int n3, Int n4, Int n5,
                Int n6, Int n7) {
    const double *const lists[] = {p0, p1, p2, p3, p4, p5, p6, p7};
    const Int counts[] = {n0, n1, n2, n3, n4, n5, n6, n7};
    const double *const list = lists[blockIdx.x];
    double sum = 0;
    for (Int i = threadIdx.x; i < counts[blockIdx.x]; i += blockDim.x) sum += list[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

KERNEL distance_parts(double *parts, const Real *a, const Real *b, Int count) {
    double sum = 0;
    EACH(i, count) {
        const double d = (double)a[i] - (double)b[i];
        sum += d * d;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// Zero, unless something of either is not finite.
KERNEL finite_parts(double *parts, const Real *x, const Real *y, Int nx, Int ny) {
    double sum = 0;
    EACH(i, nx) sum += 0.0 * (double)x[i];
    EACH(i, ny) sum += 0.0 * (double)y[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// scale · (value − target), and the parts of Σ (value − target)².
KERNEL residual(Real *out, double *parts, const Real *value, const Real *target, Int count, double scale) {
    double sum = 0;
    EACH(i, count) {
        const Real d = value[i] - target[i];
        out[i] = (Real)scale * d;
        sum += (double)d * (double)d;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// The same for up to four small tensors, one block and one sum for each: fewer kernels to wait for.
KERNEL residual_each(Real *o0, Real *o1, Real *o2, Real *o3, double *squares, const Real *v0, const Real *v1,
                     const Real *v2, const Real *v3, const Real *t0, const Real *t1, const Real *t2, const Real *t3,
                     Int n0, Int n1, Int n2, Int n3, double s0, double s1, double s2, double s3) {
    Real *const outs[] = {o0, o1, o2, o3};
    const Real *const values[] = {v0, v1, v2, v3}, *const targets[] = {t0, t1, t2, t3};
    const Int counts[] = {n0, n1, n2, n3};
    const double scales[] = {s0, s1, s2, s3};
    Real *const out = outs[blockIdx.x];
    const Real *const value = values[blockIdx.x], *const target = targets[blockIdx.x];
    const Real scale = (Real)scales[blockIdx.x];
    double sum = 0;
    for (Int i = threadIdx.x; i < counts[blockIdx.x]; i += blockDim.x) {
        const Real d = value[i] - target[i];
        out[i] = scale * d;
        sum += (double)d * (double)d;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

// The numbers of `Steps::code`.
enum { ABSOLUTE, LENGTH, SQUARES };

// The steps to the right and down from a pixel of a plane; none at its edges.
__device__ void steps_from(const Real *plane, int height, int width, int row, int column, Int kind, double *value,
                           double *across, double *down) {
    const double here = (double)plane[row * width + column];
    const double a = column + 1 < width ? (double)plane[row * width + column + 1] - here : 0.0;
    const double b = row + 1 < height ? (double)plane[(row + 1) * width + column] - here : 0.0;
    switch (kind) {
    case ABSOLUTE:
        *value = fabs(a) + fabs(b);
        *across = a != a ? a : (a > 0) - (a < 0);
        *down = b != b ? b : (b > 0) - (b < 0);
        break;
    case LENGTH: {
        const double length = hypot(a, b);
        *value = length;
        *across = length > 1e-12 ? a / length : 0.0;
        *down = length > 1e-12 ? b / length : 0.0;
        break;
    }
    default:
        *value = a * a + b * b;
        *across = 2 * a;
        *down = 2 * b;
    }
}

// The gradient of a sum over steps between pixels, and the parts of the sum.
KERNEL steps(Real *gradient, double *parts, const Real *x, Int count, Int height, Int width, Int kind) {
    const int h = (int)height, w = (int)width;
    double sum = 0;
    EACH(i, count) {
        const int index = (int)i, column = index % w, row = index / w % h;
        const Real *plane = x + (Int)(index / w / h) * h * w;
        double value, across, down, before, above, unused;
        steps_from(plane, h, w, row, column, kind, &value, &across, &down);
        sum += value;
        double slope = -across - down;
        if (column > 0) {
            steps_from(plane, h, w, row, column - 1, kind, &unused, &before, &unused);
            slope += before;
        }
        if (row > 0) {
            steps_from(plane, h, w, row - 1, column, kind, &unused, &unused, &above);
            slope += above;
        }
        gradient[index] = (Real)slope;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// Sums over rows: a block of 32 × 32 threads takes 32 columns.
KERNEL sum_rows(Real *out, const Real *x, Int rows, Int width) {
    __shared__ double lines[32][33];
    const Int column = blockIdx.x * 32 + threadIdx.x;
    double sum = 0;
    if (column < width)
        for (Int row = threadIdx.y; row < rows; row += 32) sum += (double)x[row * width + column];
    lines[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < width) {
        for (int line = 1; line < 32; line++) sum += lines[line][threadIdx.x];
        out[column] = (Real)sum;
    }
}

// Σ a · b over each row: one block for each.
KERNEL dot_rows(double *out, const Real *a, const Real *b, Int length) {
    const Int start = (Int)blockIdx.x * length;
    double sum = 0;
    for (Int i = threadIdx.x; i < length; i += blockDim.x) sum += (double)a[start + i] * (double)b[start + i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// a + factor · b, each row with a factor of its own.
KERNEL add_rows(Real *out, const Real *a, const Real *b, const double *factors, Int count, Int length) {
    EACH(i, count) out[i] = a[i] + (Real)factors[(unsigned)i / (unsigned)length] * b[i];
}

// Σ over batch and pixels of x (⊙ y, unless it is null): one block for each channel.
KERNEL channel_sums(Real *out, const Real *x, const Real *y, Int batch, Int channels, Int pixels) {
    const Int channel = blockIdx.x;
    double sum = 0;
    for (Int i = threadIdx.x; i < batch * pixels; i += blockDim.x) {
        const unsigned sample = (unsigned)i / (unsigned)pixels, pixel = (unsigned)i % (unsigned)pixels;
        const Int at = (sample * channels + channel) * pixels + pixel;
        sum += y ? (double)x[at] * (double)y[at] : (double)x[at];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) out[channel] = (Real)sum;
}

// Σ_t x_t ⊙ f_t + shift for up to four terms; a bit of `single` says that one number serves all channels.
KERNEL combine_channels(Real *out, const Real *x0, const Real *x1, const Real *x2, const Real *x3, const Real *f0,
                        const Real *f1, const Real *f2, const Real *f3, const Real *shift, Int count, Int channels,
                        Int pixels, Int single) {
    EACH(i, count) {
        const unsigned channel = (unsigned)((unsigned)i / (unsigned)pixels) % (unsigned)channels;
        Real sum = shift ? shift[single & 16 ? 0 : channel] : (Real)0;
        sum += x0[i] * f0[single & 1 ? 0 : channel];
        if (x1) sum += x1[i] * f1[single & 2 ? 0 : channel];
        if (x2) sum += x2[i] * f2[single & 4 ? 0 : channel];
        if (x3) sum += x3[i] * f3[single & 8 ? 0 : channel];
        out[i] = sum;
    }
}
