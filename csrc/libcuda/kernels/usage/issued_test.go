//go:build cuda && cgo && linux

package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// What NVRTC 12.4 makes has 124 where the version of ELF is expected.
func TestOlderToolkit(t *testing.T) {
	h := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(elf.EM_CUDA), Version: 124, Ehsize: 64,
	}
	var cubin bytes.Buffer
	require.NoError(t, binary.Write(&cubin, binary.LittleEndian, h))
	k, err := disassemble("true", cubin.Bytes())
	require.NoError(t, err)
	require.Equal(t, elf.EM_CUDA, k.file.Machine)
}
