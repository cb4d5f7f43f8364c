package emu

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"octet/backend/world"
	"octet/csrc/libmpi"
)

// meeting is what rank 0 tells the processes of MPI.
type meeting struct {
	Address string
	Secret  []byte
	Error   string
}

// joinLimit is how long ranks wait for the others to start.
const joinLimit = 5 * time.Minute

// meetingBytes is the size of a meeting's JSON, padded.
const meetingBytes = 1024

// Rendezvous agrees on the address of the control plane, and on a secret, by MPI, for launchers
// that tell neither. Rank 0 gets the listener at the address. It returns when all ranks have called
// it, or after five minutes.
func Rendezvous(ctx context.Context, p world.Place) (address string, secret world.Secret, l *world.Listener, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, joinLimit, fmt.Errorf("not all ranks have called it after %v: one has not started, or has ended", joinLimit))
	defer cancel()
	t, err := connect(ctx, p)
	if err != nil {
		return "", nil, nil, fmt.Errorf("%s tells no address of rank 0 (give --rendezvous HOST:PORT), and MPI cannot: %w", p.Launcher, err)
	}
	var m meeting
	mine, all := make([]byte, meetingBytes), make([]byte, t.Size()*meetingBytes)
	if p.Rank == 0 {
		m.Secret = make([]byte, 32)
		_, _ = rand.Read(m.Secret) // never fails
		if l, m.Address, err = world.Listen(p.LocalSize != p.Size); err != nil {
			m.Error = err.Error()
		}
		text, err := json.Marshal(m)
		if err != nil {
			return "", nil, nil, err
		}
		copy(mine, text)
	}
	parts := make([]libmpi.Part, t.Size())
	for rank := range parts {
		parts[rank] = libmpi.Part{Offset: rank * meetingBytes, Bytes: meetingBytes}
	}
	if err := t.AllGather(ctx, mine, all, parts); err != nil {
		return "", nil, nil, err
	}
	if err := json.Unmarshal(bytes.TrimRight(all[:meetingBytes], "\x00"), &m); err != nil {
		return "", nil, nil, err
	}
	if m.Error != "" {
		return "", nil, nil, errors.New(m.Error)
	}
	return m.Address, m.Secret, l, nil
}
