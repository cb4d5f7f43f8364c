// WIDEST jumps to the version for the processor's widest vectors, with the caller's
// arguments.
#define WIDEST(avx512, avx2) \
	CMPB ·haveAVX512(SB), $0 \
	JNE 2(PC) \
	JMP avx2 \
	JMP avx512
