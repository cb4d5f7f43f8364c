package emu

import (
	"context"
	"sync/atomic"

	"octet/csrc/libmpi"
)

// counted is a transport that counts what collectives send. For tensors of B bytes, n ranks and
// equal parts, a rank sends
//
//	reduce-scatter  B (n-1)/n, its part to each rank
//	all-gather      B (n-1)/n of the gathered tensor, the rank's part to each rank
//	all-reduce      2 B (n-1)/n, as both; B (n-1) if n B is at most gatheredBytes
//
// A library may forward parts through other ranks; the total is the same.
type counted struct {
	transport
	sent atomic.Int64 // bytes to other ranks
}

func (c *counted) AllToAll(ctx context.Context, send []byte, sendParts []libmpi.Part, recv []byte, recvParts []libmpi.Part) error {
	err := c.transport.AllToAll(ctx, send, sendParts, recv, recvParts)
	if err == nil {
		for rank, p := range sendParts {
			if rank != c.Rank() {
				c.sent.Add(int64(p.Bytes))
			}
		}
	}
	return err
}

func (c *counted) AllGather(ctx context.Context, send, recv []byte, parts []libmpi.Part) error {
	err := c.transport.AllGather(ctx, send, recv, parts)
	if err == nil {
		c.sent.Add(int64(parts[c.Rank()].Bytes) * int64(c.Size()-1))
	}
	return err
}

// BytesSent returns the bytes that collectives have sent to other processes. Ranks of one process
// share memory and send none.
func (d *device) BytesSent() int64 {
	if d.group.processes == nil {
		return 0
	}
	return d.group.processes.sent.Load()
}
