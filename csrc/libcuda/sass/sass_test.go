package sass

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// twice is a kernel by hand: y[i] = 2·x[i] for four i a thread, in a loop; thread 0 adds
// a word of shared memory that thread 1 wrote, behind a barrier.
const twice = `
.text.twice:
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/                   LDC.64 R2, c[0x0][0x210] ;
        /*0020*/                   ISETP.EQ.AND P0, PT, R0, 0x1, PT ;
        /*0030*/               @P0 STS [RZ], R0 ;
        /*0040*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0050*/                   LDS R6, [RZ] ;
        /*0060*/                   IMAD.MOV.U32 R5, RZ, RZ, RZ ;
        /*0070*/                   IMAD.WIDE.U32 R2, R0, 0x10, R2 ;
.L_x_0:
        /*0080*/                   LDG.E R4, desc[UR4][R2.64] ;
        /*0090*/                   FADD R4, R4, R4 ;
        /*00a0*/                   STG.E desc[UR4][R2.64+0x1000], R4 ;
        /*00b0*/                   IADD3 R2, P1, R2, 0x4, RZ ;
        /*00c0*/                   IADD3.X R3, R3, RZ, RZ, P1, !PT ;
        /*00d0*/                   VIADD R5, R5, 0x1 ;
        /*00e0*/                   ISETP.NE.U32.AND P0, PT, R5, 0x4, PT ;
        /*00f0*/               @P0 BRA ` + "`(.L_x_0)" + ` ;
        /*0100*/                   ISETP.NE.AND P0, PT, R0, RZ, PT ;
        /*0110*/              @!P0 STG.E desc[UR4][R2.64+0x2000], R6 ;
        /*0120*/                   EXIT ;
`

func TestRun(t *testing.T) {
	code, err := Parse(twice)
	require.NoError(t, err)
	const at = 0xfffffff8 // the loop's carry into the high half
	bank := make([]byte, 0x218)
	for i := range 8 {
		bank[0x210+i] = byte(uint64(at) >> (8 * i))
	}
	b := Block{
		Code: code["twice"], Threads: 64, Constant: map[int][]byte{0: bank}, Global: map[uint64]uint32{},
		Fill: func(uint64) uint32 { return 0x3fc00000 }, // 1.5
	}
	c, err := b.Run()
	require.NoError(t, err)
	// Two warps: eight instructions, eight in each of four turns, three.
	require.Equal(t, Count{Issued: 2 * (8 + 4*8 + 3), Loaded: 64 * 16, Stored: 64*16 + 32*4}, c)
	for i := range uint64(4) {
		require.Equal(t, uint32(0x40400000), b.Global[at+4*i+0x1000], "3 of element %d", i)
	}
	require.Equal(t, uint32(1), b.Global[at+16+0x2000], "what another thread left")
}

// What the words of a division by a number that is not a constant depend on.
func TestSteps(t *testing.T) {
	for _, c := range []struct {
		line string
		want uint32
	}{
		{"IMAD.HI.U32 R0, R2, R3, R4", 0x80000001*0x10/0x100000000 + 7},
		{"IADD3 R0, R2, -R3, 0x5", 0x80000001 - 0x10 + 5},
		{"LEA.HI R0, R2, R3, RZ, 0x4", 0x80000001>>28 + 0x10},
		{"SHF.R.S32.HI R0, RZ, 0x4, R2", 0xf8000000},
		{"LOP3.LUT R0, R2, 0xf0000010, R3, 0xf8, !PT", 0x80000011},
		{"PRMT R0, R2, 0x5410, R3", 0x100001},
		{"VIMNMX.U32 R0, R2, R3, !PT", 0x80000001},
		{"VIMNMX R0, R2, R3, !PT", 0x10},
		{"FSEL R0, -R6, 2.5, !PT", 0x40200000},
		{"FMUL R0, |R6|, -3", 0xc0400000},
		{"F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C R0, R6, R6, RZ", 0xb8b8},
	} {
		code, err := Parse(".text.one:\n        /*0000*/  " + c.line + " ;\n")
		require.NoError(t, err)
		th := thread{block: &Block{}, local: map[uint64]uint32{}}
		th.p[truth] = true
		th.r[2], th.r[3], th.r[4], th.r[5], th.r[6] = 0x80000001, 0x10, 0, 7, 0xbf800000
		_, err = th.step(&code["one"][0])
		require.NoError(t, err)
		require.Equal(t, c.want, th.r[0], "%s: %#x", c.line, th.r[0])
	}
	code, err := Parse(".text.one:\n        /*0000*/  LOP3.LUT P0, RZ, R4, 0xff, RZ, 0xc0, P0 ;\n")
	require.NoError(t, err)
	th := thread{block: &Block{}}
	th.p[truth], th.p[0] = true, true
	_, err = th.step(&code["one"][0])
	require.NoError(t, err)
	require.True(t, th.p[0], "what was true stays so")
	code, err = Parse(".text.one:\n        /*0000*/  HMMA.16816.F32 R0, R4, R2, RZ ;\n")
	require.NoError(t, err)
	_, err = (&Block{Code: code["one"], Threads: 1}).Run()
	require.ErrorContains(t, err, "HMMA.16816.F32 R0, R4, R2, RZ ;: not known")
}
