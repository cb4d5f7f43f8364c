//go:build gaudi && cgo && linux

package libsynapse

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/csrc/standin"
)

// A process has one device, so the second rank is another process of this binary, which
// gets the communicator's id in this variable.
const groupVariable = "OCTET_TEST_HCCL_GROUP"

func TestCollectives(t *testing.T) {
	t.Setenv("OCTET_LIBSYNAPSE", standin.Build(t, "libsynapse"))
	t.Setenv("STANDIN_GAUDI2", "2")
	d, err := Open(0)
	require.NoError(t, err)
	id, err := UniqueID()
	require.NoError(t, err)
	binary, err := os.Executable()
	require.NoError(t, err)
	other := exec.Command(binary, "-test.run=^TestCollectivesOfTheSecondRank$", "-test.count=1")
	other.Env = append(os.Environ(), groupVariable+"="+hex.EncodeToString(id))
	var out bytes.Buffer
	other.Stdout, other.Stderr = &out, &out
	require.NoError(t, other.Start())
	t.Cleanup(func() {
		if err := other.Wait(); err != nil {
			t.Errorf("the second rank: %v\n%s", err, &out)
		}
	})
	collectives(t, d, id, 0)
	require.NoError(t, d.Close())
}

func TestCollectivesOfTheSecondRank(t *testing.T) {
	group := os.Getenv(groupVariable)
	if group == "" {
		t.Skip("only runs as the second process of TestCollectives")
	}
	id, err := hex.DecodeString(group)
	require.NoError(t, err)
	d, err := Open(1)
	require.NoError(t, err)
	collectives(t, d, id, 1)
	require.NoError(t, d.Close())
}

// collectives runs the same collectives on each of two ranks.
func collectives(t *testing.T, d *Device, id []byte, rank int) {
	c, err := d.NewComm(id, 2, rank)
	require.NoError(t, err)
	s, err := d.NewStream()
	require.NoError(t, err)
	h, err := d.Host(4096)
	require.NoError(t, err)
	a, err := d.Alloc(256)
	require.NoError(t, err)
	b, err := d.Alloc(256)
	require.NoError(t, err)
	g := rig{t, d, s, h}
	mine := float32(rank + 1)

	for _, r := range []struct {
		op   Reduction
		want float32
	}{{Sum, 3}, {Max, 2}} {
		g.write(a, []float32{mine, 10 * mine})
		require.NoError(t, c.AllReduce(s, a, 2, F32, r.op))
		require.Equal(t, []float32{r.want, 10 * r.want}, g.read(a, 2))
	}

	g.write(a, []float32{mine, 10 * mine, 100 * mine, 1000 * mine})
	require.NoError(t, c.ReduceScatter(s, b, a, 2, F32, Sum))
	require.Equal(t, [][]float32{{3, 30}, {300, 3000}}[rank], g.read(b, 2))

	g.write(a, []float32{mine, 10 * mine})
	require.NoError(t, c.AllGather(s, b, a, 2, F32))
	require.Equal(t, []float32{1, 10, 2, 20}, g.read(b, 4))

	g.write(a, []float32{mine, 10 * mine, 100 * mine, 1000 * mine})
	require.NoError(t, c.AllToAll(s, b, a, 2, F32))
	require.Equal(t, [][]float32{{1, 10, 2, 20}, {100, 1000, 200, 2000}}[rank], g.read(b, 4))

	for root := range 2 {
		g.write(a, []float32{mine, 10 * mine})
		require.NoError(t, c.Broadcast(s, a, 2, F32, root))
		require.Equal(t, []float32{float32(root + 1), float32(10 * (root + 1))}, g.read(a, 2))
	}

	require.EqualError(t, c.AllReduce(s, a, 2, E4M3, Max), "HCCL does not support hf8, only f32, bf16, f16, i32 and u32")
	for _, err := range []error{
		c.ReduceScatter(s, b, a, 2, I8, Sum), c.AllGather(s, b, a, 2, I8), c.Broadcast(s, a, 2, I8, 0), c.AllToAll(s, b, a, 2, I8),
	} {
		require.ErrorContains(t, err, "HCCL does not support i8")
	}
	require.NoError(t, c.Close())
	for _, err := range []error{d.Free(a), d.Free(b), h.Close(), s.Close()} {
		require.NoError(t, err)
	}
}

func TestCommErrors(t *testing.T) {
	d := device(t)
	_, err := d.NewComm([]byte("an id"), 2, 0)
	require.EqualError(t, err, "an HCCL id has 5 bytes, want 1032")
	id, err := UniqueID()
	require.NoError(t, err)
	_, err = d.NewComm(id, 2, 2)
	require.EqualError(t, err, "rank 2 is not one of 2")
	_, err = d.NewComm(id, 1, -1)
	require.EqualError(t, err, "rank -1 is not one of 1")
}

// A library without HCCL's functions serves one device.
func TestSynapseWithoutHCCL(t *testing.T) {
	here, err := os.Getwd()
	require.NoError(t, err)
	dir := t.TempDir()
	source, library := filepath.Join(dir, "alone.c"), filepath.Join(dir, "alone.so")
	require.NoError(t, os.WriteFile(source, []byte(`
		#define OCTET_GAUDI_HEADERS // without its declarations
		#include "api.h"
		#define FUNCTION(result, name, parameters) int name(void) { return 0; }
		OCTET_SYNAPSE_FUNCTIONS(FUNCTION)
	`), 0o666))
	out, err := exec.Command(cmp.Or(os.Getenv("CC"), "gcc"), "-I"+here, "-shared", "-fPIC", "-o", library, source).CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Setenv("OCTET_LIBSYNAPSE", library)
	_, err = Probe()
	require.NoError(t, err)
	_, err = UniqueID()
	require.EqualError(t, err, library+" has no hcclGetErrorString: this SynapseAI has no HCCL, which several devices need")
}
