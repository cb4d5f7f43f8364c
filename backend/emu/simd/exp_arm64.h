// The vector version of exp. EXP_SETUP comes first, outside the loop; it sets V16-V29.

#define EXP_SETUP(r) \
	MOVD    $·expConstants(SB), r \
	VLD1R.P 4(r), [V16.S4] \
	VLD1R.P 4(r), [V17.S4] \
	ADD     $4, r \
	VLD1R.P 4(r), [V19.S4] \
	VLD1R.P 4(r), [V18.S4] \
	VLD1R.P 4(r), [V20.S4] \
	VLD1R.P 4(r), [V21.S4] \
	VLD1R.P 4(r), [V22.S4] \
	VLD1R.P 4(r), [V23.S4] \
	VLD1R.P 4(r), [V24.S4] \
	VLD1R.P 4(r), [V25.S4] \
	VLD1R.P 4(r), [V26.S4] \
	VLD1R.P 4(r), [V27.S4] \
	VLD1R.P 4(r), [V28.S4] \
	MOVD    $254, r \
	VDUP    r, V29.S4 \
	VSUB    V29.S4, V19.S4, V29.S4

// TIMES_POWER multiplies V1 by 2^n; V2 is n in the low bits of 3·2^22. It halves
// n + 2·127, so that both halves, in V2 and V3, include the exponent bias of 127.
#define TIMES_POWER \
	VSUB  V29.S4, V2.S4, V2.S4 \
	VUSHR $1, V2.S4, V3.S4 \
	VSUB  V3.S4, V2.S4, V2.S4 \
	VSHL  $23, V3.S4, V3.S4 \
	VSHL  $23, V2.S4, V2.S4 \
	VFMUL(3, 1, 1) \
	VFMUL(2, 1, 1)

#define EXP_STEP(c) \
	VFMUL(0, 1, 1) \
	VFADD(c, 1, 1)

// EXP4 computes exp of the lanes of V0, in V1; it overwrites V0, V2 and V3. As in exp,
// each product is rounded before it is added; only the product with ln2Hi is fused, which
// is exact.
#define EXP4 \
	VFMAX(16, 0, 0) \
	VFMIN(17, 0, 0) \
	VFMUL(18, 0, 2) \
	VFADD(19, 2, 2) \
	VFSUB(19, 2, 3) \
	VFMLS V20.S4, V3.S4, V0.S4 \
	VFMUL(21, 3, 1) \
	VFSUB(1, 0, 0) \
	VFMUL(0, 22, 1) \
	VFADD(23, 1, 1) \
	EXP_STEP(24) \
	EXP_STEP(25) \
	EXP_STEP(26) \
	EXP_STEP(27) \
	VFMUL(0, 1, 1) \
	VFMUL(0, 1, 1) \
	VFADD(0, 1, 1) \
	VFADD(28, 1, 1) \
	TIMES_POWER
