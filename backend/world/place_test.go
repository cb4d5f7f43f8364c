package world

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// env returns an environment of "NAME=value" words.
func env(words string) func(string) (string, bool) {
	values := map[string]string{}
	for word := range strings.FieldsSeq(words) {
		name, value, _ := strings.Cut(word, "=")
		values[name] = value
	}
	return func(name string) (string, bool) {
		value, found := values[name]
		return value, found
	}
}

const (
	torchrun = "RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=node0 MASTER_PORT=29400 TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RESTART_COUNT=2 "
	openMPI  = "OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 "
	hydra    = "PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=0 "
	batch    = "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_JOB_ID=1000 "
	srun     = "SLURM_PROCID=5 SLURM_NTASKS=6 SLURM_LOCALID=1 SLURM_RESTART_COUNT=1 SLURM_JOB_ID=1000 SLURM_STEP_ID=2 SLURM_STEP_NODELIST=gpu[03-05,9].x,gpu1 "
)

func TestFromEnv(t *testing.T) {
	for words, want := range map[string]Place{
		torchrun:                              {Rank: 3, Size: 8, LocalRank: 1, Address: "node0:29401", Launcher: "torchrun", Restarts: 2},
		"RANK=0 WORLD_SIZE=2 MASTER_ADDR=::1": {Size: 2, Address: "[::1]:29500", Launcher: "torchrun"},
		"PET_NODE_RANK=1 PET_NNODES=2 PET_MASTER_ADDR=a-node-0-0.a": {Rank: 1, Size: 2, Address: "a-node-0-0.a:29500", Launcher: "Kubeflow Trainer"},
		openMPI:                               {Rank: 1, Size: 4, LocalRank: 1, LocalSize: 2, Launcher: "Open MPI"},
		hydra:                                 {Rank: 2, Size: 4, Launcher: "MPI (PMI)"},
		hydra + "MASTER_ADDR=h MASTER_PORT=7": {Rank: 2, Size: 4, Address: "h:7", Launcher: "MPI (PMI)"},
		srun:                                  {Rank: 5, Size: 6, LocalRank: 1, Address: "gpu03.x:27002", Launcher: "Slurm", Restarts: 1},
		srun + hydra:                          {Rank: 2, Size: 4, Launcher: "MPI (PMI)"},
		srun + torchrun:                       {Rank: 3, Size: 8, LocalRank: 1, Address: "node0:29401", Launcher: "torchrun", Restarts: 2},
		torchrun + "OCTET_RANK=1 OCTET_RANKS=2 OCTET_LOCAL_RANK=1 OCTET_LOCAL_RANKS=2 OCTET_RENDEZVOUS=127.0.0.1:5": {Rank: 1, Size: 2, LocalRank: 1, LocalSize: 2, Address: "127.0.0.1:5", Launcher: "OCTET_RANK"},
		srun + "OCTET_RENDEZVOUS=h:5":              {Rank: 5, Size: 6, LocalRank: 1, Address: "h:5", Launcher: "Slurm", Restarts: 1},
		"RANK=1 WORLD_SIZE=2 OCTET_RENDEZVOUS=h:5": {Rank: 1, Size: 2, Address: "h:5", Launcher: "torchrun"},
		hydra + "OCTET_RENDEZVOUS=h:5":             {Rank: 2, Size: 4, Address: "h:5", Launcher: "MPI (PMI)"},
	} {
		p, found, err := FromEnv(env(words))
		require.NoError(t, err, words)
		require.True(t, found, words)
		require.Equal(t, want, p, words)
	}
	p, _, err := FromEnv(env(strings.Join(Environment(1, 2, "127.0.0.1:5"), " ")))
	require.NoError(t, err)
	require.Equal(t, Place{Rank: 1, Size: 2, LocalRank: 1, LocalSize: 2, Address: "127.0.0.1:5", Launcher: "octet train --ranks"}, p)
	require.True(t, p.Supervised())
	for _, words := range []string{"", batch, "RANK=0 WORLD_SIZE=1 MASTER_ADDR=h", "MASTER_ADDR=h"} {
		_, found, err := FromEnv(env(words))
		require.NoError(t, err, words)
		require.False(t, found, words)
	}
}

func TestFromEnvRefuses(t *testing.T) {
	for words, want := range map[string]string{
		"RANK=1":               "RANK is set, but WORLD_SIZE is not",
		"RANK=1 WORLD_SIZE=x":  `WORLD_SIZE is "x"`,
		"RANK=-1 WORLD_SIZE=2": `RANK is "-1"`,
		"RANK=2 WORLD_SIZE=2":  "RANK is 2, but WORLD_SIZE is 2: ranks are 0 to 1",
		"RANK=1 WORLD_SIZE=2":  "MASTER_ADDR is not set",
		"RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=99999":                    `"h:99999" is not an address`,
		"PMI_RANK=0 PMI_SIZE=2 MASTER_ADDR=h MASTER_PORT=":                       `"h:" is not an address`,
		"PET_NODE_RANK=0 PET_NNODES=2 PET_MASTER_ADDR=h PET_NPROC_PER_NODE=8":    "PET_NPROC_PER_NODE is 8",
		"PET_NODE_RANK=0 PET_NNODES=2":                                           `":29500" is not an address`,
		"PET_NODE_RANK=0 PET_NNODES=2 OCTET_RENDEZVOUS=h:1 PET_NPROC_PER_NODE=8": "PET_NPROC_PER_NODE is 8",
		"OCTET_RANK=0 OCTET_RANKS=2":                                             "OCTET_RENDEZVOUS is not set",
		openMPI + "OCTET_RENDEZVOUS=h":                                           `"h" is not an address`,
		batch + "SLURM_STEP_NODELIST=a SLURM_STEP_ID=":                           `SLURM_STEP_ID is ""`,
		batch + "SLURM_STEP_NODELIST=a[1 SLURM_STEP_ID=0":                        "no closing bracket",
		batch + "SLURM_STEP_NODELIST=,a SLURM_STEP_ID=0":                         "does not begin with a host",
	} {
		_, found, err := FromEnv(env(words))
		require.ErrorContains(t, err, want, words)
		require.False(t, found)
	}
}

func TestFirstHost(t *testing.T) {
	for list, want := range map[string]string{"a": "a", "a,b": "a", "a1,b[2-3]": "a1", "n[07-12]": "n07", "n[3,5-6]": "n3", "r1n[2-4]-ib,x": "r1n2-ib"} {
		host, err := firstHost(list)
		require.NoError(t, err)
		require.Equal(t, want, host)
	}
}

func FuzzFirstHost(f *testing.F) {
	f.Add("a[1-3,7],b2")
	f.Fuzz(func(t *testing.T, list string) {
		if host, err := firstHost(list); err == nil {
			require.NotEmpty(t, host)
			require.NotContains(t, host, "[")
		}
	})
}
