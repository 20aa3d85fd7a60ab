// One element at a time. Parameters of every kernel: what is written, what is read, tables, integers, doubles.

typedef long long Int;
#define KERNEL extern "C" __global__ void
#define EACH(i, count)                                                                                             \
    for (Int i = blockIdx.x * (Int)blockDim.x + threadIdx.x; i < (count); i += (Int)blockDim.x * gridDim.x)

KERNEL fill(Real *out, Int count, double value) { EACH(i, count) out[i] = (Real)value; }

KERNEL add(Real *out, const Real *a, const Real *b, Int count) { EACH(i, count) out[i] = a[i] + b[i]; }

KERNEL sub(Real *out, const Real *a, const Real *b, Int count) { EACH(i, count) out[i] = a[i] - b[i]; }

KERNEL mul(Real *out, const Real *a, const Real *b, Int count) { EACH(i, count) out[i] = a[i] * b[i]; }

KERNEL scale(Real *out, const Real *a, Int count, double factor) { EACH(i, count) out[i] = (Real)factor * a[i]; }

KERNEL combine(Real *out, const Real *a, const Real *b, Int count, double alpha, double beta) {
    EACH(i, count) out[i] = (Real)alpha * a[i] + (Real)beta * b[i];
}

KERNEL inverse_sqrt(Real *out, const Real *a, Int count, double shift) {
    EACH(i, count) out[i] = (Real)(1.0 / sqrt((double)a[i] + shift));
}

KERNEL clamp(Real *out, const Real *a, Int count, double low, double high) {
    EACH(i, count) out[i] = a[i] > (Real)high ? (Real)high : a[i] < (Real)low ? (Real)low : a[i];
}

KERNEL signs(Real *out, const Real *a, Int count) { EACH(i, count) out[i] = a[i] != a[i] ? a[i] : (Real)((a[i] > 0) - (a[i] < 0)); }

// How far outside the range of its place in a row.
KERNEL excess(Real *out, const Real *x, const Real *low, const Real *high, Int count, Int width) {
    EACH(i, count) {
        const Real l = low[i % width], h = high[i % width];
        out[i] = x[i] > h ? x[i] - h : x[i] < l ? x[i] - l : x[i] - x[i];
    }
}

KERNEL clamp_rows(Real *out, const Real *x, const Real *low, const Real *high, Int count, Int width) {
    EACH(i, count) {
        const Real l = low[i % width], h = high[i % width];
        out[i] = x[i] > h ? h : x[i] < l ? l : x[i];
    }
}

// The same row again and again: what a product with a bias is added to.
KERNEL repeat_row(Real *out, const Real *row, Int count, Int width) {
    EACH(i, count) out[i] = row[(unsigned)(i % width)];
}

// The numbers of `code` in pointwise.rs.
enum { IDENTITY, LEAKY, SOFTPLUS, SIGMOID, TANH, SILU, RELU6, SQUARE, SQUARE_CUBE, SURROGATE };

__device__ Real positive(Real z) { return z < 0 ? (Real)0 : z; }

__device__ Real sigmoid(Real z) { return (Real)1 / ((Real)1 + exp(-z)); }

KERNEL activate(Real *value, Real *slope, const Real *at, Int count, Int kind, double parameter) {
    const Real one = 1, p = (Real)parameter;
    EACH(i, count) {
        const Real z = at[i];
        Real v = z, s = one;
        switch (kind) {
        case IDENTITY: break;
        case LEAKY:
            s = z > 0 ? one : p;
            v = p == 0 ? positive(z) : z * s;
            break;
        case SOFTPLUS: {
            const Real decay = exp(-p * fabs(z)), small = decay / (one + decay);
            v = positive(z) + log1p(decay) / p;
            s = z < 0 ? small : one - small;
            break;
        }
        case SIGMOID:
            v = sigmoid(z);
            s = v * (one - v);
            break;
        case TANH: {
            const Real decay = exp((Real)-2 * fabs(z));
            v = tanh(z);
            s = (Real)4 * decay / ((one + decay) * (one + decay));
            break;
        }
        case SILU: {
            const Real g = sigmoid(z);
            v = z * g;
            s = g * (one + z * (one - g));
            break;
        }
        case RELU6:
            v = positive(z) > 6 ? (Real)6 : positive(z);
            s = z > 0 && z < 6 ? one : (Real)0;
            break;
        case SQUARE:
            v = z * z;
            s = z + z;
            break;
        case SQUARE_CUBE:
            v = z * z * (one + z);
            s = z * ((Real)2 + (Real)3 * z);
            break;
        default:
            v = positive(z);
            s = sigmoid(p * z);
        }
        value[i] = v;
        slope[i] = s;
    }
}

__device__ Real curvature(Int kind, Real p, Real z, Real value, Real slope) {
    const Real one = 1;
    switch (kind) {
    case SOFTPLUS:
    case SURROGATE: return p * slope * (one - slope);
    case SIGMOID: return slope * (one - value - value);
    case TANH: return -(value + value) * slope;
    case SILU: {
        const Real s = sigmoid(z);
        return s * (one - s) * ((Real)2 + z * (one - s - s));
    }
    case SQUARE: return 2;
    case SQUARE_CUBE: return (Real)2 + (Real)6 * z;
    default: return 0;
    }
}

// The tangent of grad ⊙ φ'(z); `moved` is the gradient's own tangent, or null.
KERNEL pull_back_tangent(Real *out, const Real *z, const Real *value, const Real *slope, const Real *grad,
                         const Real *along, const Real *moved, Int count, Int kind, double parameter) {
    EACH(i, count) {
        const Real bent = grad[i] * curvature(kind, (Real)parameter, z[i], value[i], slope[i]) * along[i];
        out[i] = moved ? moved[i] * slope[i] + bent : bent;
    }
}

// One Adam step, as PyTorch computes it. `step` and `shrink` hold the corrections for the start.
KERNEL adam(Real *p_new, Real *m_new, Real *v_new, const Real *p, const Real *g, const Real *m, const Real *v,
            Int count, double step, double beta1, double beta2, double shrink, double epsilon) {
    EACH(i, count) {
        const Real mean = (Real)beta1 * m[i] + (Real)(1 - beta1) * g[i];
        const Real square = (Real)beta2 * v[i] + (Real)(1 - beta2) * g[i] * g[i];
        p_new[i] = p[i] - (Real)step * mean / (sqrt(square) * (Real)shrink + (Real)epsilon);
        m_new[i] = mean;
        v_new[i] = square;
    }
}
