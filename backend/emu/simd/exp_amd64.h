// EXP computes exp of the lanes of V0, in V2; it overwrites V0, V1 and V3. EXP_SETUP
// comes first, outside the loop. As in exp, each product is rounded before it is added;
// only the product with LN2HI is fused, which is exact.
//
// VMAXPS and VMINPS return their first operand here if that is NaN.
#define EXP \
	VMAXPS V0, V14, V0 \
	VMINPS V0, V15, V0 \
	VMULPS LOG2E, V0, V1 \
	VADDPS ROUND, V1, V1 \
	VSUBPS ROUND, V1, V1 \
	VFNMADD231PS LN2HI, V1, V0 \
	VMULPS LN2LO, V1, V2 \
	VSUBPS V2, V0, V0 \
	VMULPS POLY5, V0, V2 \
	VADDPS POLY4, V2, V2 \
	VMULPS V2, V0, V2 \
	VADDPS POLY3, V2, V2 \
	VMULPS V2, V0, V2 \
	VADDPS POLY2, V2, V2 \
	VMULPS V2, V0, V2 \
	VADDPS POLY1, V2, V2 \
	VMULPS V2, V0, V2 \
	VADDPS POLY0, V2, V2 \
	VMULPS V2, V0, V2 \
	VMULPS V2, V0, V2 \
	VADDPS V0, V2, V2 \
	VADDPS ONE, V2, V2 \
	EXP_SCALE
