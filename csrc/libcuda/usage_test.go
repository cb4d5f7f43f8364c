package libcuda

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Reports of NVRTC 13.0 and 12.8; helper is a function that was not inlined.
func TestParseUsage(t *testing.T) {
	const thirteen = `ptxas info    : 52 bytes gmem
ptxas info    : Compiling entry function 'attention' for 'sm_90a'
ptxas info    : Function properties for attention
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 56 registers, used 1 barriers, 256 bytes smem
ptxas info    : Compile time = 281.379 ms
ptxas info    : Compiling entry function 'attention_128' for 'sm_90a'
ptxas info    : Function properties for attention_128
ptxas         .     24 bytes stack frame, 40 bytes spill stores, 48 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 24 bytes cumulative stack size, 256 bytes smem
ptxas info    : Function properties for helper
ptxas         .     8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
`
	require.Equal(t, []Usage{
		{Kernel: "attention", Registers: 56, Shared: 256},
		{Kernel: "attention_128", Registers: 255, Shared: 256, Stack: 24, SpillStores: 40, SpillLoads: 48},
	}, parseUsage(thirteen))
	const twelve = `ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'fill' for 'sm_89'
ptxas info    : Function properties for fill
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers, 704 bytes cmem[0]
`
	require.Equal(t, []Usage{{Kernel: "fill", Registers: 12}}, parseUsage(twelve))
	require.Empty(t, parseUsage("warning: nothing of the kind\n"))
}

// The warning of NVRTC 13.5.
func TestSerialized(t *testing.T) {
	const said = "Potential Performance Loss: wgmma.mma_async instructions are serialized due to non wgmma instructions defining accumulator registers of a wgmma between start and end of the pipeline stage in the function 'f' in line 7"
	require.Equal(t, said, serialized("ptxas info    : (C7515) "+said+"\nptxas info    : 120 bytes gmem\n"))
	require.Empty(t, serialized("ptxas info    : 120 bytes gmem\n"))
}
