//go:build linux

package cli

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// cable joins two network namespaces, in which ranks have the addresses 10.213.0.1 and .2.
type cable struct{ spaces [2]string }

// newCable skips the test without the rights or the tools for namespaces.
func newCable(t *testing.T) *cable {
	t.Helper()
	for _, tool := range []string{"ip", "iptables"} {
		if _, err := exec.LookPath(tool); err != nil || os.Geteuid() != 0 {
			t.Skip("a partition needs root, ip and iptables")
		}
	}
	c := &cable{}
	for i := range c.spaces {
		c.spaces[i] = fmt.Sprintf("octet-%d-%d-%d", os.Getpid(), time.Now().UnixNano()%1e9, i)
		if out, err := exec.Command("ip", "netns", "add", c.spaces[i]).CombinedOutput(); err != nil {
			t.Skipf("this machine has no network namespaces: %s", out)
		}
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", c.spaces[i]).Run() })
	}
	c.run(t, 0, "ip", "link", "add", "veth", "type", "veth", "peer", "name", "veth", "netns", c.spaces[1])
	for i := range c.spaces {
		c.run(t, i, "ip", "addr", "add", fmt.Sprintf("10.213.0.%d/24", i+1), "dev", "veth")
		for _, link := range []string{"veth", "lo"} {
			c.run(t, i, "ip", "link", "set", link, "up")
		}
	}
	return c
}

func (c *cable) run(t *testing.T, space int, command ...string) {
	t.Helper()
	out, err := exec.Command("ip", append([]string{"netns", "exec", c.spaces[space]}, command...)...).CombinedOutput()
	require.NoError(t, err, "%s\n%s", strings.Join(command, " "), out)
}

// A network that drops all packets between two machines, or those in one direction, ends the
// ranks on both sides. Each side says which rank it lost; the last checkpoint is whole.
func TestPartition(t *testing.T) {
	const silence = 3 * time.Second // 10 s, shortened
	text := corpus(t, 20_000)
	for name, chains := range map[string][]string{"both ways": {"INPUT", "OUTPUT"}, "to rank 2": {"INPUT"}, "from rank 2": {"OUTPUT"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, dir, secret := newCable(t), filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "secret")
			require.NoError(t, os.WriteFile(secret, bytes.Repeat([]byte("s"), 32), 0o600))
			args := trainArgs(text, dir, 1_000_000, "--backend", processes, "train.eval_every=0", "checkpoint.every=2")
			var ranks [3]*exec.Cmd
			var said [3]syncBuffer
			for rank := range ranks {
				own := rankCommand(rank, 3, "10.213.0.1:29500", args...)
				in := exec.Command("ip", append([]string{"netns", "exec", c.spaces[rank/2]}, own.Args...)...)
				in.Env = append(own.Env, fmt.Sprint("OCTET_LOCAL_RANK=", rank%2), "OCTET_SECRET_FILE="+secret, fmt.Sprintf("%s=%v", silenceDeadline, silence))
				in.Stdout, in.Stderr = &said[rank], &said[rank]
				require.NoError(t, in.Start())
				t.Cleanup(func() { _ = in.Process.Kill() })
				ranks[rank] = in
			}
			waitFor(t, func() bool { return steps(dir) >= 4 })
			for _, chain := range chains {
				c.run(t, 1, "iptables", "-A", chain, map[string]string{"INPUT": "-i", "OUTPUT": "-o"}[chain], "veth", "-j", "DROP")
			}
			cut := time.Now()
			for rank, r := range ranks {
				require.Error(t, r.Wait())
				require.Equal(t, exitFailed, r.ProcessState.ExitCode(), "rank %d: %v", rank, &said[rank])
			}
			require.Less(t, time.Since(cut), silence+5*time.Second)
			require.Regexp(t, `(?m)^octet: .*rank 2 on \S+, in step \d+: no sign of life for 3s`, said[0].String())
			require.Regexp(t, `(?m)^octet: rank 2: .*rank 0.*: no sign of life for 3s`, said[2].String())
			require.NotContains(t, said[1].String(), "octet: ")
			require.NotEmpty(t, intactCheckpoints(t, dir))
		})
	}
}
