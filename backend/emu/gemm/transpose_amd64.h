// TRANSPOSE16 transposes 16×16 doublewords in registers: rows Z0-Z15 become columns.
// It overwrites Z16-Z31. It interleaves elements, then pairs of elements, then 128-bit
// lanes in two rounds.

#define PAIRS(a, b, lo, hi) \
	VPUNPCKLDQ b, a, lo \
	VPUNPCKHDQ b, a, hi

#define LONGS(a, b, lo, hi) \
	VPUNPCKLQDQ b, a, lo \
	VPUNPCKHQDQ b, a, hi

#define LANES(a, b, even, odd) \
	VSHUFI32X4 $0x88, b, a, even \
	VSHUFI32X4 $0xdd, b, a, odd

// After LONGS lane l of Z0 is column 4l of rows 0-3, of Z1 column 4l+1, and so on;
// Z4-Z7 are rows 4-7, Z8-Z11 rows 8-11, Z12-Z15 rows 12-15.
#define TRANSPOSE16 \
	PAIRS(Z0, Z1, Z16, Z17) \
	PAIRS(Z2, Z3, Z18, Z19) \
	PAIRS(Z4, Z5, Z20, Z21) \
	PAIRS(Z6, Z7, Z22, Z23) \
	PAIRS(Z8, Z9, Z24, Z25) \
	PAIRS(Z10, Z11, Z26, Z27) \
	PAIRS(Z12, Z13, Z28, Z29) \
	PAIRS(Z14, Z15, Z30, Z31) \
	LONGS(Z16, Z18, Z0, Z1) \
	LONGS(Z17, Z19, Z2, Z3) \
	LONGS(Z20, Z22, Z4, Z5) \
	LONGS(Z21, Z23, Z6, Z7) \
	LONGS(Z24, Z26, Z8, Z9) \
	LONGS(Z25, Z27, Z10, Z11) \
	LONGS(Z28, Z30, Z12, Z13) \
	LONGS(Z29, Z31, Z14, Z15) \
	LANES(Z0, Z4, Z16, Z20) \
	LANES(Z1, Z5, Z17, Z21) \
	LANES(Z2, Z6, Z18, Z22) \
	LANES(Z3, Z7, Z19, Z23) \
	LANES(Z8, Z12, Z24, Z28) \
	LANES(Z9, Z13, Z25, Z29) \
	LANES(Z10, Z14, Z26, Z30) \
	LANES(Z11, Z15, Z27, Z31) \
	LANES(Z16, Z24, Z0, Z8) \
	LANES(Z17, Z25, Z1, Z9) \
	LANES(Z18, Z26, Z2, Z10) \
	LANES(Z19, Z27, Z3, Z11) \
	LANES(Z20, Z28, Z4, Z12) \
	LANES(Z21, Z29, Z5, Z13) \
	LANES(Z22, Z30, Z6, Z14) \
	LANES(Z23, Z31, Z7, Z15)
