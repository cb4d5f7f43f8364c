package ptq

import (
	"errors"
	"math"

	"octet/fp8"
)

// damping is the share of the mean diagonal of H that GPTQ adds to each of its elements.
const damping = 0.01

// hessian is H = 2XᵀX of a linear layer's inputs X [tokens, n]: the second derivatives of
// |XWᵀ - XQᵀ|² in a row of Q. Its upper triangle is set.
type hessian struct {
	n int
	h []float64
}

func newHessian(n int) *hessian { return &hessian{n, make([]float64, n*n)} }

// add adds 2XᵀX of more inputs x [tokens, n]. Each thread owns rows of H and adds tokens in
// order, so that the sum does not depend on the number of threads.
func (h *hessian) add(x []float32) {
	n := h.n
	const unroll = 4
	zeros := make([]float32, n)
	parallel(n, func(i int) {
		row := h.h[i*n:][:n]
		for t := 0; t < len(x); t += unroll * n {
			var token [unroll][]float32
			var f [unroll]float64
			for k := range token {
				if token[k] = zeros; t+k*n < len(x) {
					token[k] = x[t+k*n:][:n]
				}
				f[k] = 2 * float64(token[k][i])
			}
			a, b, c, d := token[0][:len(row)], token[1][:len(row)], token[2][:len(row)], token[3][:len(row)]
			for j := i; j < len(row); j++ {
				row[j] += f[0]*float64(a[j]) + f[1]*float64(b[j]) + f[2]*float64(c[j]) + f[3]*float64(d[j])
			}
		}
	})
}

var errNotPositive = errors.New("GPTQ: H is not positive definite, although damped: the inputs that calibration observed are not finite")

// factor returns the upper triangular U of (H + damping)⁻¹ = UᵀU and destroys H. It
// factors H = MMᵀ with M upper triangular, from the last column on; U is M⁻¹. An H of zeros
// counts as the identity.
func (h *hessian) factor() ([]float64, error) {
	n, m := h.n, h.h
	mean := 0.0
	for i := range n {
		mean += m[i*n+i] / float64(n)
	}
	for i := range n {
		if m[i*n+i] += damping * mean; mean == 0 {
			m[i*n+i] = 1
		}
	}
	for j := n - 1; j >= 0; j-- {
		last := m[j*n:][:n]
		d := last[j] - dot(last[j+1:], last[j+1:])
		if !(d > 0 && d <= math.MaxFloat64) {
			return nil, errNotPositive
		}
		last[j] = math.Sqrt(d)
		parallel(j, func(i int) {
			row := m[i*n:][:n]
			row[j] = (row[j] - dot(row[j+1:], last[j+1:])) / last[j]
		})
	}
	u := make([]float64, n*n)
	parallel(n, func(j int) { // column j of U, stored as a row until the end
		col := u[j*n:][:n]
		col[j] = 1 / m[j*n+j]
		for i := j - 1; i >= 0; i-- {
			col[i] = -dot(m[i*n+i+1:i*n+j+1], col[i+1:j+1]) / m[i*n+i]
		}
	})
	for i := range n {
		for j := range i {
			u[j*n+i], u[i*n+j] = u[i*n+j], 0
		}
	}
	return u, nil
}

func dot(a, b []float64) (sum float64) {
	for i, v := range a {
		sum += v * b[i]
	}
	return sum
}

// gptq rounds the columns of a weight [rows, cols] in order. The later columns of a row take
// over the error of each: w_k -= (w_j - q_j)/U_jj · U_jk for k > j, with U of hessian.factor.
// A group's scale comes from its weights when the group begins.
func (s Scheme) gptq(w []float32, u []float64, rows, cols int) Matrix {
	m := newMatrix(rows, cols, s.Group, fp8.Invalid)
	parallel(rows, func(r int) {
		row := make([]float64, cols)
		for c := range row {
			row[c] = float64(w[r*cols+c])
		}
		for j := range row {
			scale := m.groupScale(r, j, row, s.Bits)
			q := integer(row[j], scale, s.Bits)
			m.Codes[r*cols+j] = uint8(q)
			factor := u[j*cols:][:cols]
			e := (row[j] - float64(q)*scale) / factor[j]
			for k := j + 1; k < cols; k++ {
				row[k] -= e * factor[k]
			}
		}
	})
	return m
}
