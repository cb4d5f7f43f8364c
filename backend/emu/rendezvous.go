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
)

// announcement is what rank 0 tells the processes of MPI.
type announcement struct {
	Address string
	Secret  []byte
	Error   string
}

// joinLimit is how long ranks wait for the others to start.
const joinLimit = 5 * time.Minute

// announcedBytes is the size of an announcement's JSON, padded.
const announcedBytes = 1024

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
	var m announcement
	text := make([]byte, announcedBytes)
	if p.Rank == 0 {
		m.Secret = make([]byte, 32)
		_, _ = rand.Read(m.Secret) // never fails
		if l, m.Address, err = world.Listen(p.LocalSize != p.Size); err != nil {
			m.Error = err.Error()
		}
		own, err := json.Marshal(m)
		if err != nil {
			return "", nil, nil, err
		}
		copy(text, own)
	}
	if err := broadcast(ctx, t, text); err != nil {
		return "", nil, nil, err
	}
	if err := json.Unmarshal(bytes.TrimRight(text, "\x00"), &m); err != nil {
		return "", nil, nil, err
	}
	if m.Error != "" {
		return "", nil, nil, errors.New(m.Error)
	}
	return m.Address, m.Secret, l, nil
}
